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

    /// Pixels of the original image for each pixel of the network frame, `(x, y)`.
    pub fn scale(&self) -> (f64, f64) {
        (
            self.original.width as f64 / self.network.width as f64,
            self.original.height as f64 / self.network.height as f64,
        )
    }
}
