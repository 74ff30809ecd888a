//! How the keypoints move that lie on the plane of most.
//!
//! From one image to the next a motion of a pixel or two is not to be had from keypoints: they lie on whole pixels, and the
//! network rather finds them at some places of its grid of 8 x 8 pixels than at others, so that many seem to rest. So
//! keypoints are followed on from an image, the anchor, as long as there are enough of them; what is measured of each
//! image is its motion since the anchor, less that of the image before. Errors of single images then do not add up.

use tt_backend::Detections;

use super::pair::{PLANE_PX, Pairing};
use crate::replay::geometry::{Homography, Pair, Point, ransac_homography};

/// How far off the motion a keypoint still counts. Rounding to whole pixels in both images puts it off by up to 1; many are
/// further off, and not to all sides alike. But where a motion lies half-way between whole pixels, one half of the keypoints
/// say the one and one half the other, and the biweight settles between them only if it reaches further than the distance
/// to either times the root of 5.
const REACH_PX: f64 = 2.0;

/// With fewer keypoints that are followed from the anchor, the image before becomes the anchor.
const ENOUGH: usize = 200;

/// Follows the keypoints on the plane.
#[derive(Debug)]
pub(super) struct Motion {
    /// Where each keypoint of the newest image lay in the anchor, if it was seen in all images since.
    in_anchor: Vec<Option<Point>>,
    /// From the anchor to the newest image, in pixels of the network frame.
    since_anchor: Homography,
}

impl Default for Motion {
    fn default() -> Self {
        Self { in_anchor: Vec::new(), since_anchor: Homography::identity() }
    }
}

impl Motion {
    /// Goes on to an image: how the keypoints on the plane moved on average, right and down, in pixels of the image.
    /// `pairing` is with the image before.
    pub(super) fn add(&mut self, pairing: Option<&Pairing>, newest: &Detections) -> Option<Point> {
        let Self { in_anchor, since_anchor } = std::mem::take(self);
        let pairing = pairing?;
        let on_plane = || pairing.plane_inliers.iter().map(|&at| (pairing.indices[at], pairing.pairs[at]));
        let followed = on_plane()
            .filter_map(|([first, second], (_, now))| Some((second, (in_anchor.get(first).copied().flatten()?, now))));
        let followed: Vec<(usize, Pair)> = followed.collect();
        let (followed, before) = if followed.len() >= ENOUGH {
            (followed, since_anchor)
        } else {
            (on_plane().map(|([_, second], pair)| (second, pair)).collect(), Homography::identity())
        };

        let pairs: Vec<Pair> = followed.iter().map(|&(_, pair)| pair).collect();
        let plane = ransac_homography(&pairs, PLANE_PX)?;
        let now = plane.model.settled(&pairs, REACH_PX)?;
        self.in_anchor = vec![None; newest.len()];
        let mut sum = [0.0; 2];
        for &at in &plane.inliers {
            let (second, (anchor, _)) = followed[at];
            self.in_anchor[second] = Some(anchor);
            let ([x, y], [u, v]) = (before.map(anchor), now.map(anchor));
            sum = [sum[0] + u - x, sum[1] + v - y];
        }
        self.since_anchor = now;
        let (scale_x, scale_y) = newest.scale();
        let [x, y] = sum.map(|sum| sum / plane.inliers.len() as f64);
        let motion = [x * scale_x, y * scale_y];
        motion.iter().all(|value| value.is_finite()).then_some(motion)
    }
}
