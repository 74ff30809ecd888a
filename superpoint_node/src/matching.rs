//! Which keypoints of two pictures are the same point: mutual nearest neighbours of descriptors.

use ndarray::ArrayView2;
use tt_backend::Detections;
use tt_backend::cpu::{Descriptor, InstructionSet, nearest};

/// Two keypoints whose descriptors are each other's nearest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Match {
    /// Index in the first picture's keypoints.
    pub first: usize,
    /// Index in the second picture's keypoints.
    pub second: usize,
    /// Cosine of the angle between the descriptors, at most 1.
    pub similarity: f32,
}

/// Mutual nearest neighbours, in the first picture's order. Of equally near ones the first counts.
///
/// Both must have descriptors; without, there are no matches.
pub fn mutual_nearest(first: &Detections, second: &Detections) -> Vec<Match> {
    let (Some(a), Some(b)) = (first.descriptors(), second.descriptors()) else { return Vec::new() };
    // Rows have unit length, so the nearest is the one with the largest product.
    let (there, back) = nearest(rows(&a), rows(&b), InstructionSet::detect());
    let pairs = there.iter().enumerate();
    let mutual = pairs.filter(|&(first, there)| back.get(there.index).is_some_and(|back| back.index == first));
    mutual.map(|(first, there)| Match { first, second: there.index, similarity: there.product }).collect()
}

fn rows<'a>(descriptors: &ArrayView2<'a, f32>) -> &'a [Descriptor] {
    descriptors.to_slice().unwrap_or_default().as_chunks().0
}
