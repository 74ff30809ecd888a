//! What a replay's keypoints are worth: figures of each image, and over the whole recording.
//!
//! | module | what it measures |
//! |---|---|
//! | `pair` | matches between two images, and what geometry they agree with |
//! | `motion` | how the keypoints on a plane move |
//! | `tracks` | over how many images a point is followed |
//! | `spread` | scores, and where in the frame keypoints lie |
//! | [`truth`] | repeatability and its kin, where the true motion is known |
//! | [`agreement`] | the same images' keypoints in another run |
//! | `figures` | the summary of it all |
//!
//! Distances are in pixels of the network frame (480 x 640), whatever the camera's size, so that figures of different
//! cameras can be compared with each other and with HPatches. Motion alone is in pixels of the image.

pub mod agreement;
mod figures;
mod motion;
mod pair;
mod spread;
mod tracks;
pub mod truth;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tt_backend::Detections;

use self::agreement::Agreement;
pub use self::agreement::AgreementFigures;
pub use self::figures::{Distribution, Figures, TruthFigures};
use self::motion::Motion;
use self::pair::Pairing;
pub use self::spread::{GRID, Spread};
use self::tracks::Tracks;
use self::truth::{Truth, TruthPair};
use super::geometry::Homography;
use super::pipeline::Found;

/// What is measured of each image, a column each. Where there is nothing to measure, a value is missing.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Frames {
    /// Recording time, in seconds from the first image.
    pub time_s: Vec<f64>,
    /// Keypoints.
    pub keypoints: Vec<u32>,
    /// Decompressing the message and reading the channel, in milliseconds.
    pub decode_ms: Vec<f32>,
    /// Resizing to the network frame.
    pub resize_ms: Vec<f32>,
    /// The network.
    pub network_ms: Vec<f32>,
    /// Suppression, selection, descriptors.
    pub keypoints_ms: Vec<f32>,
    /// Mutual nearest neighbours with the image before.
    pub matches: Vec<Option<u32>>,
    /// Matches that agree on one motion of the camera through a rigid scene.
    pub inliers: Vec<Option<u32>>,
    /// Matches that agree on one plane.
    pub plane_inliers: Vec<Option<u32>>,
    /// How the keypoints on that plane moved on average, in pixels of the image.
    pub motion_x_px: Vec<Option<f64>>,
    /// As `motion_x_px`, downwards.
    pub motion_y_px: Vec<Option<f64>>,
    /// Share of the frame's fields that hold a keypoint.
    pub coverage: Vec<f32>,
    /// Against the image before, where the truth is known.
    pub truth_before: Vec<Option<TruthPair>>,
    /// Against the first image, where the truth is known.
    pub truth_first: Vec<Option<TruthPair>>,
}

impl Frames {
    /// Whether all columns are as long as each other, and the times some that a recording can have.
    pub(in crate::replay) fn is_sound(&self) -> bool {
        let Self {
            time_s,
            keypoints,
            decode_ms,
            resize_ms,
            network_ms,
            keypoints_ms,
            matches,
            inliers,
            plane_inliers,
            motion_x_px,
            motion_y_px,
            coverage,
            truth_before,
            truth_first,
        } = self;
        let floats = [decode_ms, resize_ms, network_ms, keypoints_ms, coverage].map(Vec::len);
        let counts = [matches, inliers, plane_inliers].map(Vec::len);
        let motion = [motion_x_px, motion_y_px].map(Vec::len);
        let truth = [truth_before, truth_first].map(Vec::len);
        let all = [&floats[..], &counts, &motion, &truth, &[keypoints.len()]].concat();
        // Log times are 64 bits of nanoseconds.
        let can_be_drawn = |time: &f64| time.abs() < 2e10;
        all.iter().all(|&length| length == time_s.len()) && time_s.iter().all(can_be_drawn)
    }
}

/// An image that later ones are compared with.
#[derive(Debug)]
struct Seen {
    detections: Detections,
    /// From the network frame to the truth's reference.
    to_reference: Option<Homography>,
}

/// Collects figures image by image. Memory grows by about 200 bytes an image.
#[derive(Debug)]
pub(super) struct Analysis {
    frames: Frames,
    spread: Spread,
    tracks: Tracks,
    motion: Motion,
    truth: Option<Truth>,
    agreement: Option<Agreement>,
    /// Log time of the first image.
    start: Option<u64>,
    before: Option<Seen>,
    first: Option<Seen>,
}

/// All that was measured.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) frames: Frames,
    pub(super) spread: Spread,
    pub(super) track_lengths: Vec<u64>,
    pub(super) figures: Figures,
    pub(super) agreement: Option<AgreementFigures>,
}

impl Analysis {
    pub(super) fn new(truth: Option<Truth>, agreement: Option<Agreement>) -> Self {
        Self {
            frames: Frames::default(),
            spread: Spread::default(),
            tracks: Tracks::default(),
            motion: Motion::default(),
            truth,
            agreement,
            start: None,
            before: None,
            first: None,
        }
    }

    pub(super) fn add(&mut self, found: Found) {
        let Found { header, detections, decoding } = found;
        if let Some(agreement) = &mut self.agreement {
            agreement.add(header.log_time, &detections);
        }
        let frames = &mut self.frames;
        let start = *self.start.get_or_insert(header.log_time);
        frames.time_s.push((i128::from(header.log_time) - i128::from(start)) as f64 / 1e9);
        frames.keypoints.push(detections.len() as u32);
        let milliseconds = |duration: Duration| (duration.as_secs_f64() * 1e3) as f32;
        let timings = detections.timings;
        frames.decode_ms.push(milliseconds(decoding));
        frames.resize_ms.push(milliseconds(timings.resize));
        frames.network_ms.push(milliseconds(timings.network));
        frames.keypoints_ms.push(milliseconds(timings.keypoints));
        frames.coverage.push(self.spread.add(&detections));

        let to_reference = self.truth.as_mut().and_then(|truth| truth.of(header.stamp, &detections));
        let seen = Seen { detections, to_reference };
        let pairing = self.before.as_ref().and_then(|before| Pairing::of(&before.detections, &seen.detections));
        let count = |indices: &[usize]| indices.len() as u32;
        frames.matches.push(pairing.as_ref().map(|pairing| pairing.pairs.len() as u32));
        frames.inliers.push(pairing.as_ref().map(|pairing| count(&pairing.inliers)));
        frames.plane_inliers.push(pairing.as_ref().map(|pairing| count(&pairing.plane_inliers)));
        let motion = self.motion.add(pairing.as_ref(), &seen.detections);
        frames.motion_x_px.push(motion.map(|[x, _]| x));
        frames.motion_y_px.push(motion.map(|[_, y]| y));
        self.tracks.add(pairing.as_ref(), seen.detections.len());

        let compare = |earlier: &Option<Seen>, pairing: Option<&Pairing>| {
            let earlier = earlier.as_ref()?;
            let motion = earlier.to_reference?.then(&seen.to_reference?.inverse()?);
            Some(TruthPair::of(&earlier.detections, &seen.detections, &motion, pairing?))
        };
        frames.truth_before.push(compare(&self.before, pairing.as_ref()));
        // The pair with the first image is only looked at for the truth.
        let with_first = (self.truth.is_some())
            .then(|| self.first.as_ref().and_then(|first| Pairing::of(&first.detections, &seen.detections)))
            .flatten();
        frames.truth_first.push(compare(&self.first, with_first.as_ref()));
        if self.first.is_none() && seen.to_reference.is_some() {
            self.first = Some(Seen { detections: seen.detections.clone(), to_reference: seen.to_reference });
        }
        self.before = Some(seen);
    }

    /// `elapsed` is how long the whole replay took.
    pub(super) fn finish(self, elapsed: Duration) -> Measured {
        // Where no two images could be compared, nothing was followed, and all lengths would be 1.
        let was_followed = self.frames.matches.iter().any(Option::is_some);
        let track_lengths = if was_followed { self.tracks.finish() } else { Vec::new() };
        let figures = Figures::of(&self.frames, &track_lengths, self.truth.as_ref(), elapsed);
        let agreement = self.agreement.map(Agreement::finish);
        Measured { frames: self.frames, spread: self.spread, track_lengths, figures, agreement }
    }
}
