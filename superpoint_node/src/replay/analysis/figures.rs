//! The summary of a replay.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Frames;
use super::truth::{Truth, TruthPair};

/// How values are distributed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Smallest value.
    pub min: f64,
    /// A twentieth of the values lie below.
    pub p5: f64,
    /// The middle value, of an even number the lower one.
    pub median: f64,
    /// A twentieth of the values lie above.
    pub p95: f64,
    /// Largest value.
    pub max: f64,
}

impl Distribution {
    /// `None` of no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let quantile = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
        Some(Self {
            count: sorted.len() as u64,
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
            min,
            p5: quantile(0.05),
            median: quantile(0.5),
            p95: quantile(0.95),
            max,
        })
    }
}

/// Over all images.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Figures {
    /// Images, in which keypoints were looked for.
    pub images: u64,
    /// Images divided by the time that the whole replay took, reading and writing included.
    pub images_per_s: f64,
    /// Keypoints of an image.
    pub keypoints: Option<Distribution>,
    /// Decoding, resizing, network and keypoints of an image together.
    pub latency_ms: Option<Distribution>,
    /// The stages alone.
    pub decode_ms: Option<Distribution>,
    /// See [`Frames`].
    pub resize_ms: Option<Distribution>,
    /// See [`Frames`].
    pub network_ms: Option<Distribution>,
    /// See [`Frames`].
    pub keypoints_ms: Option<Distribution>,
    /// Matches with the image before.
    pub matches: Option<Distribution>,
    /// Share of the matches that agree on one motion of the camera.
    pub inlier_ratio: Option<Distribution>,
    /// Share of the matches that agree on one plane.
    pub plane_inlier_ratio: Option<Distribution>,
    /// How the plane moved from image to image, in pixels of the image.
    pub motion_x_px: Option<Distribution>,
    /// As `motion_x_px`, downwards.
    pub motion_y_px: Option<Distribution>,
    /// Images in which a keypoint is followed; one that is never seen again counts as 1.
    pub track_length: Option<Distribution>,
    /// Share of the frame's fields that hold a keypoint.
    pub coverage: Option<Distribution>,
    /// Against the image before, where the truth is known.
    pub truth_before: Option<TruthFigures>,
    /// Against the first image, where the truth is known.
    pub truth_first: Option<TruthFigures>,
    /// Images of which the truth says nothing.
    pub truth_unknown: Option<u64>,
}

/// Over all pairs of images whose true motion is known.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TruthFigures {
    /// Pairs.
    pub pairs: u64,
    /// See [`TruthPair`].
    pub repeatability: Option<Distribution>,
    /// See [`TruthPair`].
    pub localisation_px: Option<Distribution>,
    /// See [`TruthPair`].
    pub matching_score: Option<Distribution>,
    /// Share of the pairs whose homography is right within 1, 3 and 5 pixels.
    pub homography_correct: [f64; 3],
}

/// Within how many pixels the frame's corners must lie for a homography to be right.
pub(crate) const CORNER_PX: [f64; 3] = [1.0, 3.0, 5.0];

impl TruthFigures {
    fn of(pairs: &[Option<TruthPair>]) -> Option<Self> {
        let known: Vec<&TruthPair> = pairs.iter().flatten().collect();
        if known.is_empty() {
            return None;
        }
        let column =
            |value: fn(&TruthPair) -> Option<f64>| Distribution::of(known.iter().filter_map(|&pair| value(pair)));
        let correct = |limit: f64| {
            let right = known.iter().filter(|pair| pair.corner_error_px.is_some_and(|error| error <= limit)).count();
            right as f64 / known.len() as f64
        };
        Some(Self {
            pairs: known.len() as u64,
            repeatability: column(|pair| pair.repeatability),
            localisation_px: column(|pair| pair.localisation_px),
            matching_score: column(|pair| pair.matching_score),
            homography_correct: CORNER_PX.map(correct),
        })
    }
}

impl Figures {
    pub(super) fn of(frames: &Frames, track_lengths: &[u64], truth: Option<&Truth>, elapsed: Duration) -> Self {
        let images = frames.time_s.len();
        let of_floats = |values: &[f32]| Distribution::of(values.iter().map(|&value| f64::from(value)));
        let of_counts =
            |values: &[Option<u32>]| Distribution::of(values.iter().flatten().map(|&value| f64::from(value)));
        let ratio = |part: &[Option<u32>]| {
            let pairs = part.iter().zip(&frames.matches).filter_map(|(part, whole)| part.zip(*whole));
            Distribution::of(
                pairs.filter(|(_, whole)| *whole > 0).map(|(part, whole)| f64::from(part) / f64::from(whole)),
            )
        };
        let latency = (0..images).map(|index| {
            let stages = [&frames.decode_ms, &frames.resize_ms, &frames.network_ms, &frames.keypoints_ms];
            stages.iter().map(|stage| f64::from(stage[index])).sum::<f64>()
        });
        Self {
            images: images as u64,
            images_per_s: images as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE),
            keypoints: Distribution::of(frames.keypoints.iter().map(|&count| f64::from(count))),
            latency_ms: Distribution::of(latency),
            decode_ms: of_floats(&frames.decode_ms),
            resize_ms: of_floats(&frames.resize_ms),
            network_ms: of_floats(&frames.network_ms),
            keypoints_ms: of_floats(&frames.keypoints_ms),
            matches: of_counts(&frames.matches),
            inlier_ratio: ratio(&frames.inliers),
            plane_inlier_ratio: ratio(&frames.plane_inliers),
            motion_x_px: Distribution::of(frames.motion_x_px.iter().flatten().copied()),
            motion_y_px: Distribution::of(frames.motion_y_px.iter().flatten().copied()),
            track_length: of_histogram(track_lengths),
            coverage: of_floats(&frames.coverage),
            truth_before: TruthFigures::of(&frames.truth_before),
            truth_first: TruthFigures::of(&frames.truth_first),
            truth_unknown: truth.map(|truth| truth.unknown),
        }
    }
}

/// Of lengths that are counted; the first count is of length 1.
fn of_histogram(counts: &[u64]) -> Option<Distribution> {
    let total: u64 = counts.iter().sum();
    let lengths = || (1u64..).zip(counts).filter(|(_, count)| **count > 0);
    let (min, max) = (lengths().next()?.0, lengths().last()?.0);
    let quantile = |share: f64| {
        let mut rank = ((total - 1) as f64 * share) as u64;
        lengths()
            .find(|(_, count)| {
                let here = rank < **count;
                rank = rank.saturating_sub(**count);
                here
            })
            .map_or(max, |(length, _)| length) as f64
    };
    Some(Distribution {
        count: total,
        mean: lengths().map(|(length, count)| length as f64 * *count as f64).sum::<f64>() / total as f64,
        min: min as f64,
        p5: quantile(0.05),
        median: quantile(0.5),
        p95: quantile(0.95),
        max: max as f64,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn counted_lengths_are_distributed_as_the_lengths_themselves() {
        for counts in [vec![3, 0, 2, 1], vec![0, 1], vec![100, 1, 1, 1]] {
            let lengths = (1u64..).zip(&counts).flat_map(|(length, &count)| (0..count).map(move |_| length as f64));
            assert_eq!(of_histogram(&counts), Distribution::of(lengths));
        }
        assert_eq!(of_histogram(&[]), None);
        assert_eq!(of_histogram(&[0, 0]), None);
    }

    #[test]
    fn a_missing_homography_is_a_wrong_one() {
        let pair = |corner_error_px| {
            Some(TruthPair { repeatability: Some(0.5), localisation_px: None, matching_score: None, corner_error_px })
        };
        let figures = TruthFigures::of(&[None, pair(Some(0.9)), pair(Some(4.0)), pair(None), pair(Some(3.0))]).unwrap();
        assert_eq!((figures.pairs, figures.homography_correct), (4, [0.25, 0.5, 0.75]));
        assert_eq!(figures.localisation_px, None);
    }
}
