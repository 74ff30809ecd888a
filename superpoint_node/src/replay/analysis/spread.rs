//! How keypoints spread: over scores, and over the frame.

use serde::{Deserialize, Serialize};
use tt_backend::Detections;

/// Fields of the frame, rows and columns: 40 x 40 pixels of the network frame each.
pub const GRID: [usize; 2] = [12, 16];

/// Steps of the scores' histogram for each factor of ten.
const STEPS: usize = 10;
/// Factors of ten below 1 that the histogram covers.
const DECADES: usize = 4;

/// Over the whole recording.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Spread {
    /// Lower and upper bounds of the scores' histogram, one more than there are counts. The first step also counts what
    /// lies below it.
    pub score_bounds: Vec<f64>,
    /// Keypoints in each step.
    pub score_counts: Vec<u64>,
    /// Keypoints in each field of the frame, [`GRID`] rows and columns, row by row.
    pub field_counts: Vec<u64>,
}

impl Default for Spread {
    fn default() -> Self {
        let steps = STEPS * DECADES;
        let bound = |step: usize| 10f64.powf(step as f64 / STEPS as f64 - DECADES as f64);
        Self {
            score_bounds: (0..=steps).map(bound).collect(),
            score_counts: vec![0; steps],
            field_counts: vec![0; GRID[0] * GRID[1]],
        }
    }
}

impl Spread {
    /// Whether it has all steps of the histogram and all fields of the frame.
    pub(in crate::replay) fn is_complete(&self) -> bool {
        let whole = Self::default();
        self.score_bounds.len() == whole.score_bounds.len()
            && self.score_counts.len() == whole.score_counts.len()
            && self.field_counts.len() == whole.field_counts.len()
    }

    /// Counts an image's keypoints; the share of fields that hold any.
    pub(super) fn add(&mut self, detections: &Detections) -> f32 {
        for &score in &detections.scores {
            let step = (f64::from(score).log10() + DECADES as f64) * STEPS as f64;
            self.score_counts[(step.max(0.0) as usize).min(STEPS * DECADES - 1)] += 1;
        }
        let [rows, columns] = GRID;
        let size = detections.network;
        let mut taken = [[false; GRID[1]]; GRID[0]];
        for &[x, y] in &detections.points {
            let row = (usize::from(y) * rows / size.height.max(1)).min(rows - 1);
            let column = (usize::from(x) * columns / size.width.max(1)).min(columns - 1);
            self.field_counts[row * columns + column] += 1;
            taken[row][column] = true;
        }
        taken.as_flattened().iter().filter(|&&taken| taken).count() as f32 / (rows * columns) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tt_backend::Size;

    #[test]
    fn every_keypoint_is_counted_once_in_its_place() {
        let mut detections = Detections::default();
        (detections.network, detections.original) = (Size::NETWORK, Size::NETWORK);
        detections.points = vec![[0, 0], [39, 39], [40, 0], [639, 479]];
        detections.scores = vec![1.0, 0.5, 0.011, 1e-7];
        let mut spread = Spread::default();
        assert_eq!(spread.add(&detections), 3.0 / 192.0);
        assert_eq!((spread.field_counts[0], spread.field_counts[1], spread.field_counts[191]), (2, 1, 1));
        let counted: Vec<(usize, u64)> =
            spread.score_counts.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect();
        // 0.5 lies between 10^-0.4 and 10^-0.3; 0.011 between 10^-2 and 10^-1.9.
        assert_eq!(counted, [(0, 1), (20, 1), (36, 1), (39, 1)]);
        for (step, score) in [(20, 0.011), (36, 0.5), (39, 1.0)] {
            assert!(spread.score_bounds[step] <= score && score <= spread.score_bounds[step + 1]);
        }
    }
}
