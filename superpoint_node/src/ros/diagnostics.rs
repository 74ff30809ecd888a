//! `/diagnostics`, once a second: one status for the detector, one for each camera.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use r2r::diagnostic_msgs::msg::{DiagnosticArray, DiagnosticStatus, KeyValue};
use r2r::std_msgs::msg::Header;
use r2r::{Clock, Node, Publisher, QosProfile};
use tt_backend::Model;

use super::camera::Camera;
use super::latency::Times;
use super::tally::Counts;
use crate::engine::Engine;

/// When the next report is due, and what the last one counted.
pub(super) struct Diagnostics {
    publisher: Publisher<DiagnosticArray>,
    clock: Arc<Mutex<Clock>>,
    node: String,
    last: Instant,
    last_counts: Vec<Counts>,
}

impl Diagnostics {
    const PERIOD: Duration = Duration::from_secs(1);
    /// A camera that is silent for longer is stale.
    const STALE: Duration = Duration::from_secs(2);

    pub(super) fn start(node: &mut Node, cameras: usize) -> r2r::Result<Self> {
        Ok(Self {
            publisher: node.create_publisher("/diagnostics", QosProfile::default())?,
            clock: node.get_ros_clock(),
            node: node.fully_qualified_name()?.trim_start_matches('/').to_owned(),
            last: Instant::now(),
            last_counts: vec![Counts::default(); cameras],
        })
    }

    /// Reports when it is time to; wall time, so that a stopped `/clock` does not silence it.
    pub(super) fn report_when_due(&mut self, node: &Node, engine: &Engine, cameras: &mut [Camera], enabled: bool) {
        let elapsed = self.last.elapsed();
        if elapsed < Self::PERIOD {
            return;
        }
        self.last = Instant::now();
        let hardware_id = engine.model().description.clone();
        let mut status = vec![self.detector(engine, enabled, &hardware_id)];
        for (index, camera) in cameras.iter_mut().enumerate() {
            let unmatched = camera.unmatched_publishers(node);
            let counts = camera.counts();
            let before = std::mem::replace(&mut self.last_counts[index], counts);
            status.push(self.camera(camera, unmatched, before, counts, elapsed, &hardware_id));
        }
        let now = self.clock.lock().unwrap_or_else(PoisonError::into_inner).get_now().unwrap_or_default();
        let header = Header { stamp: Clock::to_builtin_time(&now), frame_id: String::new() };
        // Diagnostics that cannot be sent cannot be reported either.
        let _ = self.publisher.publish(&DiagnosticArray { header, status });
    }

    fn detector(&self, engine: &Engine, enabled: bool, hardware_id: &str) -> DiagnosticStatus {
        let model = engine.model();
        let panics = engine.panics();
        let (level, message) = condition(&model, engine.watch().failure(), panics, enabled);
        let mut values = vec![
            value("backend", model.backend.name()),
            value("device", &model.description),
            value("weights", &model.weights.name),
            value("weights_sha256", &model.weights.sha256),
            value("panics", panics),
        ];
        values.extend(model.reason.as_ref().map(|reason| value("backend_reason", reason)));
        status(level, format!("{}: detector", self.node), message, hardware_id, values)
    }

    fn camera(
        &self,
        camera: &Camera,
        unmatched: Vec<String>,
        before: Counts,
        counts: Counts,
        elapsed: Duration,
        hardware_id: &str,
    ) -> DiagnosticStatus {
        let rate = |now: u64, before: u64| (now - before) as f64 / elapsed.as_secs_f64();
        let silent = camera.last_arrival.map(|last| last.elapsed());
        let rejected = counts.rejected - before.rejected;

        let mut complaints = unmatched;
        match silent {
            None => complaints.push(format!("no image on {} yet", camera.topic)),
            Some(silent) if silent > Self::STALE => {
                complaints.push(format!("no image on {} for {:.1} s", camera.topic, silent.as_secs_f64()));
            }
            Some(_) => {}
        }
        if rejected > 0 {
            complaints.push(format!("{rejected} frames rejected in the last second; the log says why"));
        }
        let (level, message) = if complaints.is_empty() {
            (OK, format!("{:.1} frames/s", rate(counts.published, before.published)))
        } else {
            (WARN, complaints.join("; "))
        };

        let mut values = vec![
            value("topic", &camera.topic),
            value("received_hz", format!("{:.2}", rate(counts.received, before.received))),
            value("published_hz", format!("{:.2}", rate(counts.published, before.published))),
            value("received", counts.received),
            value("published", counts.published),
            value("dropped_for_newer", counts.replaced),
            value("rejected", counts.rejected),
            value("passed_disabled", counts.disabled),
            value("passed_unwatched", counts.unwatched),
            value("passed_max_rate", counts.too_fast),
            value("unfinished", counts.unfinished),
            value("overlays", camera.pipeline.overlays.load(Ordering::Relaxed)),
        ];
        let latency = &camera.pipeline.latency;
        for (name, found) in [
            ("latency_ms", latency.percentiles(|times| times.total)),
            ("detector_ms", latency.percentiles(|times| times.detector)),
            ("added_ms", latency.percentiles(Times::added)),
        ] {
            let Some(found) = found else { continue };
            for (percentile, ms) in [("p50", found.p50), ("p90", found.p90), ("p99", found.p99)] {
                values.push(value(&format!("{name}_{percentile}"), format!("{ms:.3}")));
            }
        }
        let name = if camera.name.is_empty() { "camera" } else { &camera.name };
        status(level, format!("{}: {name}", self.node), message, hardware_id, values)
    }
}

/// How the detector is: the worst that there is to say.
fn condition(model: &Model, failure: Option<String>, panics: u64, enabled: bool) -> (u8, String) {
    match failure {
        Some(failure) => (ERROR, failure),
        None if model.is_fallback => (WARN, format!("on the CPU: {}", model.reason.as_deref().unwrap_or_default())),
        None if panics > 0 => (WARN, format!("{panics} frames made the detector panic; please report it")),
        None if enabled => (OK, "running".to_owned()),
        None => (OK, "disabled by ~/enable".to_owned()),
    }
}

// r2r gives every constant a type of its own.
const OK: u8 = DiagnosticStatus::OK as u8;
const WARN: u8 = DiagnosticStatus::WARN as u8;
const ERROR: u8 = DiagnosticStatus::ERROR as u8;

fn value(key: &str, value: impl ToString) -> KeyValue {
    KeyValue { key: key.to_owned(), value: value.to_string() }
}

fn status(level: u8, name: String, message: String, hardware_id: &str, values: Vec<KeyValue>) -> DiagnosticStatus {
    DiagnosticStatus { level, name, message, hardware_id: hardware_id.to_owned(), values }
}

#[cfg(test)]
mod tests {
    use tt_backend::{BackendChoice, Detector, Options, Size};

    use super::*;

    #[test]
    fn a_lost_card_is_an_error_and_its_stand_in_a_warning() {
        let options = Options {
            backend: BackendChoice::Cpu,
            weights: Some("bundled".into()),
            network: Size::new(16, 16),
            ..Options::default()
        };
        let cpu = Detector::open(&options).expect("a detector").model().clone();
        assert_eq!(condition(&cpu, None, 0, true), (OK, "running".to_owned()));
        assert_eq!(condition(&cpu, None, 0, false).0, OK);
        assert_eq!(condition(&cpu, None, 2, true).0, WARN);
        let reason = "the p150 failed: it hangs".to_owned();
        assert_eq!(condition(&cpu, Some(reason.clone()), 2, true), (ERROR, reason.clone()));
        let stand_in = Model { is_fallback: true, reason: Some(reason), ..cpu };
        assert_eq!(condition(&stand_in, None, 0, true), (WARN, "on the CPU: the p150 failed: it hangs".to_owned()));
    }
}
