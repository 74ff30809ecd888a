//! Which keypoints of two pictures are the same point: mutual nearest neighbours of descriptors.

use ndarray::ArrayView2;
use tt_backend::Detections;
use tt_backend::cpu::{Descriptor, InstructionSet, Nearest, nearest};

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
    mutual(&there, &back)
}

/// Those who are each other's nearest.
fn mutual(there: &[Nearest], back: &[Nearest]) -> Vec<Match> {
    let pairs = there.iter().enumerate();
    let mutual = pairs.filter(|&(first, there)| back.get(there.index).is_some_and(|back| back.index == first));
    mutual.map(|(first, there)| Match { first, second: there.index, similarity: there.product }).collect()
}

fn rows<'a>(descriptors: &ArrayView2<'a, f32>) -> &'a [Descriptor] {
    descriptors.to_slice().unwrap_or_default().as_chunks().0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_match_is_chosen_from_both_sides() {
        let nearest = |indices: &[usize]| -> Vec<Nearest> {
            indices.iter().map(|&index| Nearest { index, product: 0.5 + index as f32 / 8.0 }).collect()
        };
        // 0 and 2 would have 1, which would have 2; 1 and 0 have each other; nobody would have 3.
        let found = mutual(&nearest(&[1, 0, 1, 2]), &nearest(&[1, 2, 0, 3]));
        let expected = [(1, 0, 0.5), (2, 1, 0.625)];
        assert_eq!(found, expected.map(|(first, second, similarity)| Match { first, second, similarity }));
        assert_eq!(mutual(&[], &[]), []);
    }
}
