//! Which keypoints of two pictures are the same point: mutual nearest neighbours of descriptors.

use tt_backend::Detections;

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
    let similarities = a.dot(&b.t());
    let nearest = |row: ndarray::ArrayView1<'_, f32>| {
        let better = |best: Option<(usize, f32)>, (index, &value): (usize, &f32)| match best {
            Some((_, highest)) if value <= highest => best,
            _ => Some((index, value)),
        };
        row.iter().enumerate().fold(None, better)
    };
    let back: Vec<_> = similarities.columns().into_iter().map(nearest).collect();
    let there = similarities.rows().into_iter().map(nearest).enumerate();
    there
        .filter_map(|(first, nearest)| {
            let (second, similarity) = nearest?;
            let mutual = back[second].is_some_and(|(index, _)| index == first);
            mutual.then_some(Match { first, second, similarity })
        })
        .collect()
}
