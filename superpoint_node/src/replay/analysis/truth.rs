//! Keypoints against the true motion between images of a plane, by the measures of the SuperPoint paper
//! (arXiv:1712.07629, section 7 and appendix A).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tt_backend::{Detections, Size};

use super::pair::{Pairing, point};
use crate::message::image::Stamp;
use crate::replay::geometry::{Homography, Point, squared_distance};

/// How far a keypoint may be from its counterpart, in pixels of the network frame.
pub const CORRECT_PX: f64 = 3.0;

/// Where each image of a plane was taken from: the file that `superpoint synth` writes beside its recording.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TruthFile {
    /// One entry an image.
    pub frames: Vec<TruthFrame>,
}

/// One image.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct TruthFrame {
    /// The header's stamp: seconds, nanoseconds.
    pub stamp: (i32, u32),
    /// Maps pixels of the image to pixels of a reference that all images share, row by row; pixel centres are at
    /// integers.
    pub reference_from_image: [[f64; 3]; 3],
}

/// The ending of the file that stands beside a recording.
const ENDING: &str = "truth.json";

/// The file that belongs to a recording: `walk.truth.json` to `walk.mcap`.
pub fn file_beside(recording: &Path) -> PathBuf {
    recording.with_extension(ENDING)
}

/// The true place of each image.
#[derive(Debug)]
pub(crate) struct Truth {
    frames: HashMap<(i32, u32), Homography>,
    /// Images of which it says nothing.
    pub(super) unknown: u64,
}

impl Truth {
    /// Reads a [`TruthFile`].
    ///
    /// # Errors
    ///
    /// If it cannot be read, or a homography has no inverse.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let context = || format!("cannot read the truth in {}", path.display());
        let text = std::fs::read(path).with_context(context)?;
        let file: TruthFile = serde_json::from_slice(&text).with_context(context)?;
        let mut frames = HashMap::new();
        for frame in file.frames {
            let homography = Homography::from_rows(frame.reference_from_image);
            if homography.inverse().is_none() {
                let TruthFrame { stamp, reference_from_image } = frame;
                bail!("{}: the homography at {stamp:?} has no inverse: {reference_from_image:?}", path.display());
            }
            frames.insert(frame.stamp, homography);
        }
        Ok(Self { frames, unknown: 0 })
    }

    /// From pixels of the network frame to the reference.
    pub(super) fn of(&mut self, stamp: Stamp, detections: &Detections) -> Option<Homography> {
        let Some(image_to_reference) = self.frames.get(&(stamp.sec, stamp.nanosec)) else {
            self.unknown += 1;
            return None;
        };
        // Pixel centres at integers on both sides, as in the message.
        let (x, y) = detections.scale();
        let network_to_image = Homography::scaling([x, y], [0.5 * x - 0.5, 0.5 * y - 0.5]);
        Some(network_to_image.then(image_to_reference))
    }
}

/// How two images' keypoints fit the true motion.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct TruthPair {
    /// Share of the keypoints in the common part of both images that have a counterpart within [`CORRECT_PX`]; `None`
    /// if there is none in it.
    pub repeatability: Option<f64>,
    /// Mean distance of those from their counterparts, in pixels.
    pub localisation_px: Option<f64>,
    /// Share of the keypoints in the common part that are matched with their counterpart, mean of both images.
    pub matching_score: Option<f64>,
    /// Mean distance of the frame's corners under the homography that the matches give from where they truly are; `None`
    /// if the matches give none, which counts as wrong.
    pub corner_error_px: Option<f64>,
}

impl TruthPair {
    /// `motion` maps pixels of the first network frame to the second.
    pub(super) fn of(first: &Detections, second: &Detections, motion: &Homography, pairing: &Pairing) -> Self {
        let Some(back) = motion.inverse() else {
            return Self { repeatability: None, localisation_px: None, matching_score: None, corner_error_px: None };
        };
        // Those of the first image that the second one could show, where they are there; and the other way round.
        let warped: Vec<Point> = (0..first.len())
            .map(|index| motion.map(point(first, index)))
            .filter(|&at| lies_in(at, second.network))
            .collect();
        let there: Vec<Point> = (0..second.len())
            .map(|index| point(second, index))
            .filter(|&at| lies_in(back.map(at), first.network))
            .collect();
        let visible = warped.len() + there.len();
        let distances: Vec<f64> = [nearest(&warped, &there), nearest(&there, &warped)]
            .concat()
            .into_iter()
            .filter(|&distance| distance <= CORRECT_PX)
            .collect();
        let correct_matches = pairing
            .pairs
            .iter()
            .filter(|&&(from, to)| squared_distance(motion.map(from), to) <= CORRECT_PX * CORRECT_PX)
            .count() as f64;
        let share = |count: usize| (count > 0).then(|| correct_matches / count as f64);
        Self {
            repeatability: (visible > 0).then(|| distances.len() as f64 / visible as f64),
            localisation_px: (!distances.is_empty()).then(|| distances.iter().sum::<f64>() / distances.len() as f64),
            matching_score: share(warped.len()).zip(share(there.len())).map(|(a, b)| (a + b) / 2.0),
            corner_error_px: pairing.plane.map(|plane| corner_error(&plane, motion, first.network)),
        }
    }
}

/// Whether a point lies on the image's pixels.
fn lies_in([x, y]: Point, size: Size) -> bool {
    x >= 0.0 && y >= 0.0 && x <= (size.width - 1) as f64 && y <= (size.height - 1) as f64
}

/// For each point the distance of the nearest of the others; infinite if there is none.
fn nearest(points: &[Point], others: &[Point]) -> Vec<f64> {
    let smallest = |&at: &Point| others.iter().map(|&other| squared_distance(at, other)).fold(f64::INFINITY, f64::min);
    points.iter().map(|at| smallest(at).sqrt()).collect()
}

/// Mean distance of the frame's corners under two homographies.
fn corner_error(estimated: &Homography, motion: &Homography, size: Size) -> f64 {
    let (right, bottom) = ((size.width - 1) as f64, (size.height - 1) as f64);
    let corners = [[0.0, 0.0], [right, 0.0], [0.0, bottom], [right, bottom]];
    corners.iter().map(|&at| squared_distance(estimated.map(at), motion.map(at)).sqrt()).sum::<f64>() / 4.0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn detections(points: &[[u16; 2]]) -> Detections {
        let mut detections = Detections::default();
        (detections.network, detections.original) = (Size::NETWORK, Size::NETWORK);
        detections.points = points.to_vec();
        detections.scores = vec![0.5; points.len()];
        detections
    }

    fn pairing(first: &Detections, second: &Detections, indices: &[[usize; 2]], plane: Option<Homography>) -> Pairing {
        let pairs = indices.iter().map(|&[a, b]| (point(first, a), point(second, b))).collect();
        Pairing { indices: indices.to_vec(), pairs, inliers: Vec::new(), plane_inliers: Vec::new(), plane }
    }

    #[test]
    fn measures_are_those_of_the_paper() {
        // The camera moves right by 100: what was at 150 is at 50; what was at 50 has left, 600 is new.
        let motion = Homography::scaling([1.0, 1.0], [-100.0, 0.0]);
        let first = detections(&[[150, 10], [250, 10], [350, 10], [50, 10]]);
        let second = detections(&[[50, 10], [152, 10], [300, 10], [600, 10]]);
        let pairing = pairing(&first, &second, &[[0, 0], [1, 1], [2, 2]], Some(motion));
        let measured = TruthPair::of(&first, &second, &motion, &pairing);
        // Visible: three of the first, three of the second. Two of each have a counterpart, at 0 and at 2 pixels.
        assert_eq!(measured.repeatability, Some(4.0 / 6.0));
        assert_eq!(measured.localisation_px, Some(1.0));
        assert_eq!(measured.matching_score, Some(2.0 / 3.0));
        assert_eq!(measured.corner_error_px, Some(0.0));
    }

    #[test]
    fn images_with_nothing_in_common_have_no_measure() {
        let motion = Homography::scaling([1.0, 1.0], [-5000.0, 0.0]);
        let some = detections(&[[150, 10]]);
        let measured = TruthPair::of(&some, &some, &motion, &pairing(&some, &some, &[], None));
        assert_eq!(
            measured,
            TruthPair { repeatability: None, localisation_px: None, matching_score: None, corner_error_px: None }
        );
    }

    #[test]
    fn the_truth_is_taken_over_to_the_network_frame() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("truth.json");
        let shift = [[1.0, 0.0, 5.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
        let file = TruthFile { frames: vec![TruthFrame { stamp: (7, 8), reference_from_image: shift }] };
        std::fs::write(&path, serde_json::to_string(&file).unwrap()).unwrap();
        let mut truth = Truth::read(&path).unwrap();
        let mut large = detections(&[]);
        large.original = Size::new(960, 1280);
        let homography = truth.of(Stamp { sec: 7, nanosec: 8 }, &large).unwrap();
        // The first network pixel covers the first two of the image, whose middle is at 0.5.
        assert_eq!(homography.map([0.0, 0.0]), [5.5, 0.5]);
        assert!(truth.of(Stamp { sec: 7, nanosec: 9 }, &large).is_none());
        assert_eq!(truth.unknown, 1);

        std::fs::write(&path, r#"{"frames": [{"stamp": [0, 0], "reference_from_image": [[0,0,0],[0,0,0],[0,0,0]]}]}"#)
            .unwrap();
        assert!(Truth::read(&path).unwrap_err().to_string().contains("no inverse"));
    }
}
