//! What one detection gives.

use std::time::Duration;

use ndarray::ArrayView2;

use crate::Size;
use crate::keypoints::DESCRIPTOR_DIM;

/// The keypoints of one image. Can be kept and filled again, so that a stream of images allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Detections {
    /// `[x, y]` in pixels of the network frame, score descending, ties by row, then column.
    pub points: Vec<[u16; 2]>,
    /// Scores in the points' order, each above the threshold and at most 1.
    pub scores: Vec<f32>,
    pub(crate) descriptors: Vec<f32>,
    pub(crate) has_descriptors: bool,
    /// Size of the network frame.
    pub network: Size,
    /// Size of the image that was given.
    pub original: Size,
    /// Which steps ran where.
    pub serving_path: ServingPath,
    /// How long the steps took.
    pub timings: Timings,
}

/// Which steps ran where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServingPath {
    /// The network was replayed from a trace on the device.
    pub traced: bool,
    /// Suppression ran on the device.
    pub device_nms: bool,
}

/// How long each step of a detection took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Resizing the plane to the network frame, where that happens on the host.
    pub resize: Duration,
    /// The network: frame in, maps out; on a device with upload and read-back.
    pub network: Duration,
    /// From maps to keypoints and descriptors, where that happens on the host.
    pub keypoints: Duration,
}

impl Detections {
    /// Number of keypoints.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Whether there is no keypoint, which is a normal answer.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// Descriptors in the points' order, `len x 256`, each row of unit L2 norm; `None` if they were not asked for.
    pub fn descriptors(&self) -> Option<ArrayView2<'_, f32>> {
        if !self.has_descriptors {
            return None;
        }
        ArrayView2::from_shape((self.len(), DESCRIPTOR_DIM), &self.descriptors).ok()
    }

    /// Drops the keypoints for whose `[x, y]` in the network frame `keep` says no; the others stay in order.
    pub fn retain(&mut self, mut keep: impl FnMut([u16; 2]) -> bool) {
        let mut kept = 0;
        for index in 0..self.points.len() {
            if !keep(self.points[index]) {
                continue;
            }
            self.points[kept] = self.points[index];
            self.scores[kept] = self.scores[index];
            if self.has_descriptors {
                let row = index * DESCRIPTOR_DIM;
                self.descriptors.copy_within(row..row + DESCRIPTOR_DIM, kept * DESCRIPTOR_DIM);
            }
            kept += 1;
        }
        self.points.truncate(kept);
        self.scores.truncate(kept);
        if self.has_descriptors {
            self.descriptors.truncate(kept * DESCRIPTOR_DIM);
        }
    }

    /// Pixels of the original image for each pixel of the network frame, `(x, y)`.
    pub fn scale(&self) -> (f64, f64) {
        (
            self.original.width as f64 / self.network.width as f64,
            self.original.height as f64 / self.network.height as f64,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_scores_and_descriptors_leave_together() {
        for has_descriptors in [true, false] {
            let mut detections = Detections {
                points: vec![[0, 0], [1, 0], [2, 0], [3, 0]],
                scores: vec![0.9, 0.8, 0.7, 0.6],
                descriptors: (0..4).flat_map(|value| [value as f32; DESCRIPTOR_DIM]).collect(),
                has_descriptors,
                ..Detections::default()
            };
            detections.retain(|[x, _]| x % 2 == 1);
            assert_eq!(detections.points, [[1, 0], [3, 0]]);
            assert_eq!(detections.scores, [0.8, 0.6]);
            let first_values = detections.descriptors().map(|rows| rows.column(0).to_vec());
            assert_eq!(first_values, has_descriptors.then(|| vec![1.0, 3.0]));
            detections.retain(|_| false);
            assert!(detections.is_empty());
        }
    }
}
