//! The same images' keypoints in another run, keypoint by keypoint: what a change of backend or weights does.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tt_backend::Detections;

use super::pair::point;
use crate::message::keypoints::{self, Keypoints};
use crate::replay::bag::{self, Messages, Recording, TimeRange};
use crate::replay::geometry::{Point, squared_distance};

/// How far keypoints of two runs may be apart and still be the same, in pixels of the network frame.
pub const SAME_PX: f64 = 2.0;

/// How many of the other run's images are kept at most while this run's next is looked for among them.
const MAX_AHEAD: usize = 16;

/// How far two runs agree.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct AgreementFigures {
    /// Images that both runs have.
    pub images: u64,
    /// Images that only this run has.
    pub only_here: u64,
    /// Images that only the other has, among those before this run's last one.
    pub only_there: u64,
    /// Keypoints of this run in the images of both.
    pub keypoints_here: u64,
    /// Keypoints of the other.
    pub keypoints_there: u64,
    /// Keypoints within [`SAME_PX`] of each other, each the other's nearest.
    pub same: u64,
    /// 2 `same` / (`keypoints_here` + `keypoints_there`).
    pub f1: Option<f64>,
    /// Pearson's correlation of the scores of those.
    pub score_pcc: Option<f64>,
    /// Pearson's correlation of their descriptors' values.
    pub descriptor_pcc: Option<f64>,
    /// What of the other's keypoints could not be read, and why.
    #[serde(default)]
    pub damage: Vec<String>,
}

/// Walks through another run's keypoints beside this one's.
#[derive(Debug)]
pub(crate) struct Agreement {
    theirs: Messages,
    /// Read, but not yet reached by this run, in the recording's order.
    ahead: VecDeque<bag::Message>,
    figures: AgreementFigures,
    scores: Correlation,
    descriptors: Correlation,
}

impl Agreement {
    /// With the keypoints that another replay wrote to `path`.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub(crate) fn with(path: &Path) -> anyhow::Result<Self> {
        let recording = Recording::open(path, &Arc::default())
            .with_context(|| format!("cannot read the other run's keypoints in {}", path.display()))?;
        let topic = recording.topics().iter().find(|topic| topic.message_type == keypoints::MESSAGE_TYPE).cloned();
        let Some(topic) = topic else { bail!("{} holds no {}", path.display(), keypoints::MESSAGE_TYPE) };
        Ok(Self {
            theirs: recording.messages(&topic, TimeRange::ALL),
            ahead: VecDeque::new(),
            figures: AgreementFigures::default(),
            scores: Correlation::default(),
            descriptors: Correlation::default(),
        })
    }

    pub(super) fn add(&mut self, log_time: u64, ours: &Detections) {
        // Both runs follow the recording, whose times may go back, and either may have left out images.
        let mut looked_at = 0;
        let found = loop {
            match self.ahead.get(looked_at) {
                Some(message) if message.log_time == log_time => break Some(looked_at),
                Some(_) => looked_at += 1,
                None if self.ahead.len() < MAX_AHEAD => match self.theirs.next() {
                    Some(message) => self.ahead.push_back(message),
                    None => break None,
                },
                None if self.ahead.front().is_some_and(|first| first.log_time < log_time) => {
                    self.ahead.pop_front();
                    looked_at -= 1;
                    self.figures.only_there += 1;
                }
                None => break None,
            }
        };
        let passed_over = found.map(|found| self.ahead.drain(..found).count()).unwrap_or_default();
        self.figures.only_there += passed_over as u64;
        match found.and_then(|_| self.ahead.pop_front()).map(|message| Keypoints::parse(&message.data)) {
            Some(Ok(theirs)) => self.compare(ours, &theirs),
            Some(Err(_)) | None => self.figures.only_here += 1,
        }
    }

    fn compare(&mut self, ours: &Detections, theirs: &Keypoints) {
        // Both in the frame of this run.
        let (x_scale, y_scale) = ours.scale();
        let in_frame = |&[x, y]: &[f32; 2]| -> Point {
            [(f64::from(x) + 0.5) / x_scale - 0.5, (f64::from(y) + 0.5) / y_scale - 0.5]
        };
        let there: Vec<Point> = theirs.points.iter().map(in_frame).collect();
        let here: Vec<Point> = (0..ours.len()).map(|index| point(ours, index)).collect();
        self.figures.images += 1;
        self.figures.keypoints_here += here.len() as u64;
        self.figures.keypoints_there += there.len() as u64;
        let descriptors = ours.descriptors();
        for (a, b) in same_points(&here, &there) {
            self.figures.same += 1;
            self.scores.add(ours.scores[a], theirs.scores.get(b).copied().unwrap_or(0.0));
            let Some(rows) = &descriptors else { continue };
            let row = rows.row(a);
            if let Some(other) = theirs.descriptors.get(b * row.len()..(b + 1) * row.len()) {
                row.iter().zip(other).for_each(|(&x, &y)| self.descriptors.add(x, y));
            }
        }
    }

    pub(super) fn finish(self) -> AgreementFigures {
        let mut figures = self.figures;
        figures.damage = self.theirs.damage().iter().map(ToString::to_string).collect();
        let both = figures.keypoints_here + figures.keypoints_there;
        figures.f1 = (both > 0).then(|| 2.0 * figures.same as f64 / both as f64);
        figures.score_pcc = self.scores.coefficient();
        figures.descriptor_pcc = self.descriptors.coefficient();
        figures
    }
}

/// Points that are each other's nearest, and near enough.
fn same_points(here: &[Point], there: &[Point]) -> Vec<(usize, usize)> {
    let nearest = |at: Point, others: &[Point]| {
        let distances = others.iter().map(|&other| squared_distance(at, other)).enumerate();
        distances.min_by(|(_, a), (_, b)| a.total_cmp(b)).filter(|&(_, distance)| distance <= SAME_PX * SAME_PX)
    };
    let mutual = |(a, &at): (usize, &Point)| {
        let (b, _) = nearest(at, there)?;
        let (back, _) = nearest(there[b], here)?;
        (back == a).then_some((a, b))
    };
    here.iter().enumerate().filter_map(mutual).collect()
}

/// Sums for Pearson's correlation coefficient.
#[derive(Clone, Copy, Debug, Default)]
struct Correlation {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    yy: f64,
    xy: f64,
}

impl Correlation {
    fn add(&mut self, x: f32, y: f32) {
        let (x, y) = (f64::from(x), f64::from(y));
        self.count += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.yy += y * y;
        self.xy += x * y;
    }

    /// `None` if one side does not vary.
    fn coefficient(&self) -> Option<f64> {
        let Self { count, x, y, xx, yy, xy } = *self;
        let spread = ((count * xx - x * x) * (count * yy - y * y)).sqrt();
        (spread > 0.0).then(|| ((count * xy - x * y) / spread).clamp(-1.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn points_are_the_same_when_each_is_the_others_nearest() {
        let here = [[10.0, 10.0], [11.0, 10.0], [50.0, 50.0], [90.0, 90.0]];
        let there = [[11.2, 10.0], [52.1, 50.0], [90.0, 92.0]];
        assert_eq!(same_points(&here, &there), [(1, 0), (3, 2)]);
        assert_eq!(same_points(&here, &[]), []);
    }

    #[test]
    fn correlation_is_pearsons() {
        let mut correlation = Correlation::default();
        // numpy.corrcoef([1, 2, 3, 4], [2, 1, 4, 3])[0, 1] == 0.6
        for (x, y) in [(1.0, 2.0), (2.0, 1.0), (3.0, 4.0), (4.0, 3.0)] {
            correlation.add(x, y);
        }
        assert!((correlation.coefficient().unwrap() - 0.6).abs() < 1e-12);
        assert_eq!(Correlation::default().coefficient(), None);
    }
}
