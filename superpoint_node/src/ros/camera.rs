//! One camera: its images, its place in the engine, its output topics.

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::BoxStream;
use r2r::qos::ReliabilityPolicy;
use r2r::{Node, QosProfile};
use tt_backend::Detections;

use super::frame::{Output, Pipeline, Publishers};
use super::latency::Latency;
use super::names::Names;
use super::parameter_services::next;
use super::parameters::{Fixed, Live, NodeParameters, Quality, Transport};
use super::tally::{Counts, Pass, Tally};
use crate::engine::{Engine, NewestSlot};
use crate::message::keypoints;

pub(super) struct Camera {
    /// Its namespace in `cameras`; empty for the only camera.
    pub(super) name: String,
    /// The full name of the topic it reads.
    pub(super) topic: String,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) last_arrival: Option<Instant>,
    images: BoxStream<'static, Vec<u8>>,
    slot: NewestSlot,
    pace: Pace,
    quality: Quality,
    transport: Transport,
    /// Publishers that have been complained of.
    named: HashSet<String>,
}

impl Camera {
    /// Subscribes and advertises. `index` is the camera's place in `cameras`.
    pub(super) fn open(
        node: &mut Node,
        names: &Names,
        engine: &Engine,
        (index, name): (usize, &str),
        fixed: &Fixed,
        parameters: &Arc<Mutex<NodeParameters>>,
    ) -> Result<Self, String> {
        let below = |topic: &str| if name.is_empty() { topic.to_owned() } else { format!("{name}/{topic}") };
        let subject = match fixed.transport {
            Transport::Raw => below("image"),
            // Who remaps the image means this topic beside it, as image_transport would name it.
            Transport::Compressed => match names.remapped(&below("image/compressed")) {
                Some(_) => below("image/compressed"),
                None => format!("{}/compressed", names.resolve(&below("image"))),
            },
        };
        let images = node
            .subscribe_raw(&subject, fixed.transport.message_type(), fixed.input.profile())
            .map_err(|error| format!("cannot subscribe to {subject}: {error}"))?;
        let topic = names.resolve(&subject);

        let points = below("keypoints");
        let overlay = format!(
            "~/{}overlay",
            if name.is_empty() { String::new() } else { format!("{}/", name.trim_matches('/')) }
        );
        let publishers = Publishers {
            keypoints: node
                .create_publisher_untyped(&points, keypoints::MESSAGE_TYPE, fixed.output.profile())
                .map_err(|error| format!("cannot publish {points}: {error}"))?,
            overlay: node
                .create_publisher(&overlay, QosProfile::default().keep_last(1))
                .map_err(|error| format!("cannot publish {overlay}: {error}"))?,
        };
        let logger = node.logger().to_owned();
        r2r::log_info!(
            &logger,
            "reading {topic} ({}, {}), publishing {} ({})",
            fixed.transport.message_type(),
            fixed.input.reliability(),
            names.resolve(&points),
            fixed.output.reliability()
        );
        Ok(Self {
            name: name.to_owned(),
            topic,
            pipeline: Arc::new(Pipeline {
                logger,
                camera: index,
                prefix: if name.is_empty() { String::new() } else { format!("{name}: ") },
                transport: fixed.transport,
                parameters: Arc::clone(parameters),
                tally: Tally::default(),
                latency: Latency::default(),
                output: Output::new(publishers),
                overlays: AtomicU64::new(0),
                found: Mutex::new(Detections::default()),
            }),
            last_arrival: None,
            images: images.boxed(),
            slot: engine.newest_slot(),
            pace: Pace::default(),
            quality: fixed.input,
            transport: fixed.transport,
            named: HashSet::new(),
        })
    }

    /// Takes what has come. r2r queues ten messages and then drops the newest, so they are taken out at once; of
    /// several, the newest stays in the slot.
    pub(super) fn offer_all(&mut self, live: &Live, enabled: bool) {
        while let Some(message) = next(&mut self.images) {
            let arrived = Instant::now();
            self.last_arrival = Some(arrived);
            let tally = &self.pipeline.tally;
            tally.received();
            if !enabled {
                tally.passed(Pass::Disabled);
            } else if live.lazy && !self.is_watched(live) {
                tally.passed(Pass::Unwatched);
            } else if self.pipeline.admits(&message) {
                if self.pace.allows(arrived, live.max_rate_hz) {
                    let pipeline = Arc::clone(&self.pipeline);
                    self.slot.offer(move |detector| pipeline.run(&message, arrived, detector));
                } else {
                    tally.passed(Pass::TooFast);
                }
            }
        }
    }

    fn is_watched(&self, live: &Live) -> bool {
        let (keypoints, overlay) = self.pipeline.output.subscribers();
        keypoints > 0 || (live.overlay && overlay > 0)
    }

    pub(super) fn counts(&self) -> Counts {
        self.pipeline.tally.counts(self.slot.replaced())
    }

    /// Publishers whose images cannot arrive, with the reason; each is logged once.
    pub(super) fn unmatched_publishers(&mut self, node: &Node) -> Vec<String> {
        // When the graph cannot be read there is nothing to say about it.
        let publishers = node.get_publishers_info_by_topic(&self.topic, false).unwrap_or_default();
        let mut reasons = Vec::new();
        for publisher in publishers {
            let who = format!("{}/{}", publisher.node_namespace.trim_end_matches('/'), publisher.node_name);
            let expected = self.transport.message_type();
            let reason = if publisher.topic_type != expected {
                format!("{who} publishes {} on {}, this node reads {expected}", publisher.topic_type, self.topic)
            } else if self.quality.reliable && publisher.qos_profile.reliability == ReliabilityPolicy::BestEffort {
                format!(
                    "{who} publishes {} best_effort, this node subscribes reliable (qos_reliability), so nothing \
                     arrives; set qos_reliability: best_effort",
                    self.topic
                )
            } else {
                continue;
            };
            if self.named.insert(reason.clone()) {
                r2r::log_warn!(&self.pipeline.logger, "{reason}");
            }
            reasons.push(reason);
        }
        reasons
    }
}

impl Transport {
    pub(super) fn message_type(self) -> &'static str {
        match self {
            Self::Raw => "sensor_msgs/msg/Image",
            Self::Compressed => "sensor_msgs/msg/CompressedImage",
        }
    }
}

/// Lets through at most so many frames a second.
#[derive(Debug, Default)]
struct Pace {
    /// When the last frame that was let through was due.
    last: Option<Instant>,
}

impl Pace {
    /// Whether a frame that arrives `now` is let through; `rate_hz` 0 lets all through.
    fn allows(&mut self, now: Instant, rate_hz: f64) -> bool {
        if rate_hz <= 0.0 {
            self.last = None;
            return true;
        }
        let period = Duration::try_from_secs_f64(1.0 / rate_hz).unwrap_or(Duration::MAX);
        let due = self.last.map(|last| now.saturating_duration_since(last));
        match (self.last, due) {
            (_, Some(passed)) if passed < period => return false,
            // A frame that comes a little late does not put off the next one: the mean rate is as asked for.
            (Some(last), Some(passed)) if passed < period.saturating_mul(2) => self.last = Some(last + period),
            _ => self.last = Some(now),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_rate_is_the_one_asked_for() {
        let start = Instant::now();
        for (camera_hz, rate_hz, expected) in
            [(30, 10.0, 10), (30, 20.0, 20), (30, 7.0, 7), (10, 20.0, 10), (30, 0.0, 30)]
        {
            let mut pace = Pace::default();
            let seconds = 20;
            let through = (0..seconds * camera_hz)
                .filter(|&n| pace.allows(start + Duration::from_secs(1) * n / camera_hz, rate_hz))
                .count();
            let wanted = (seconds * expected) as usize;
            assert!(through.abs_diff(wanted) <= 1, "{camera_hz} Hz to {rate_hz}: {through} of {wanted}");
        }
    }

    #[test]
    fn another_rate_holds_from_the_next_frame_on() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(pace.allows(start, 1e-300), "the first frame, and then none for longer than anything lasts");
        assert!(!pace.allows(start + Duration::from_secs(1 << 40), 1e-300));
        assert!(pace.allows(start + Duration::from_millis(100), 30.0));
        assert!(!pace.allows(start + Duration::from_millis(110), 30.0));
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(pace.allows(start, 1.0));
        let later = start + Duration::from_secs(60);
        assert!(pace.allows(later, 1.0));
        assert!(!pace.allows(later + Duration::from_millis(999), 1.0));
        assert!(pace.allows(later + Duration::from_millis(1001), 1.0));
    }
}
