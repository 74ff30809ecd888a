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
    let mut there: Vec<Option<Match>> = vec![None; a.nrows()];
    let mut back = vec![None; b.nrows()];
    // In the order of memory: column by column it takes several times as long.
    for ((first, second), &similarity) in similarities.indexed_iter() {
        let found = Match { first, second, similarity };
        for best in [&mut there[first], &mut back[second]] {
            if best.is_none_or(|best| similarity > best.similarity) {
                *best = Some(found);
            }
        }
    }
    there.into_iter().flatten().filter(|found| back[found.second] == Some(*found)).collect()
}
