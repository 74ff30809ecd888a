//! Two images' keypoints matched, and the geometry that the matches agree with.

use tt_backend::Detections;

use crate::matching::mutual_nearest;
use crate::replay::geometry::{Homography, Pair, Point, ransac_fundamental, ransac_homography};

/// How far a match may be from the camera's motion, as Sampson's distance, in pixels of the network frame. Keypoints lie
/// on whole pixels, so a right one is up to 0.7 off in each image.
const EPIPOLAR_PX: f64 = 1.5;

/// How far a match may be from a plane's motion, in pixels of the network frame: the threshold of HPatches' protocol.
pub(super) const PLANE_PX: f64 = 3.0;

/// The matches between two images.
#[derive(Debug)]
pub(super) struct Pairing {
    /// Indices of the keypoints in the first and in the second image.
    pub(super) indices: Vec<[usize; 2]>,
    /// Where they lie, in pixels of the network frame.
    pub(super) pairs: Vec<Pair>,
    /// Which of them agree on one motion of the camera through a rigid scene.
    pub(super) inliers: Vec<usize>,
    /// Which of them agree on one plane.
    pub(super) plane_inliers: Vec<usize>,
    /// That plane's motion.
    pub(super) plane: Option<Homography>,
}

impl Pairing {
    /// `None` if there are no descriptors to match by.
    pub(super) fn of(first: &Detections, second: &Detections) -> Option<Self> {
        first.descriptors()?;
        second.descriptors()?;
        let indices: Vec<[usize; 2]> =
            mutual_nearest(first, second).iter().map(|found| [found.first, found.second]).collect();
        let pairs: Vec<Pair> = indices.iter().map(|&[a, b]| (point(first, a), point(second, b))).collect();
        let motion = ransac_fundamental(&pairs, EPIPOLAR_PX);
        let plane = ransac_homography(&pairs, PLANE_PX);
        Some(Self {
            indices,
            inliers: motion.map(|found| found.inliers).unwrap_or_default(),
            plane: plane.as_ref().map(|found| found.model),
            plane_inliers: plane.map(|found| found.inliers).unwrap_or_default(),
            pairs,
        })
    }
}

/// A keypoint in pixels of the network frame.
pub(super) fn point(detections: &Detections, index: usize) -> Point {
    detections.points[index].map(f64::from)
}
