//! What Prometheus reads.
//!
//! `prometheus-client` (the Prometheus project's own) because its registry is a value: two servers in one process,
//! as in tests, do not share it.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::app::{App, Readiness};

/// A part of a request's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// JSON, base64 and the picture file.
    Decode,
    Queue,
    Resize,
    Network,
    Keypoints,
    /// npz, base64 and JSON.
    Encode,
    /// From the last byte of the request to the first of the answer.
    Total,
}

impl Stage {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Queue => "queue",
            Self::Resize => "resize",
            Self::Network => "network",
            Self::Keypoints => "keypoints",
            Self::Encode => "encode",
            Self::Total => "total",
        }
    }
}

impl EncodeLabelValue for Stage {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.name().encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    /// A route of the server, or `none`: never a client's text, which would grow the registry without end.
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

/// Every counter of the server.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    abandoned: Counter,
    pub(super) unread: Counter,
    stages: Family<StageLabel, Histogram>,
    connections: Gauge,
    queue_depth: Gauge,
    queue_limit: Gauge,
    replaced_frames: Counter,
    panics: Counter,
    device: Family<StateLabel, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("superpoint");
        let stages = Family::new_with_constructor(stage_histogram as fn() -> Histogram);
        let metrics = Self {
            requests: Family::default(),
            abandoned: Counter::default(),
            unread: Counter::default(),
            stages,
            connections: Gauge::default(),
            queue_depth: Gauge::default(),
            queue_limit: Gauge::default(),
            replaced_frames: Counter::default(),
            panics: Counter::default(),
            device: Family::default(),
            registry: Registry::default(),
        };
        registry.register("http_requests", "Requests that were answered", metrics.requests.clone());
        registry.register(
            "http_requests_abandoned",
            "Requests whose client went away before the answer",
            metrics.abandoned.clone(),
        );
        registry.register(
            "http_answers_unread",
            "Answers that were not sent whole because the client read them too slowly",
            metrics.unread.clone(),
        );
        registry.register_with_unit(
            "stage_duration",
            "Time that the parts of a detection took",
            Unit::Seconds,
            metrics.stages.clone(),
        );
        registry.register("http_connections", "Open connections", metrics.connections.clone());
        registry.register("queue_depth", "Requests that wait or are worked on", metrics.queue_depth.clone());
        registry.register("queue_limit", "Requests beyond this are refused", metrics.queue_limit.clone());
        registry.register(
            "frames_replaced",
            "Camera frames that gave way to newer ones",
            metrics.replaced_frames.clone(),
        );
        registry.register(
            "detector_panics",
            "Detections that panicked: defects of the program",
            metrics.panics.clone(),
        );
        registry.register(
            "device_state",
            "1 for the state the detector is in, 0 for the others",
            metrics.device.clone(),
        );
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registry
            .sub_registry_with_labels(version.map(|(name, value)| (name.into(), value.into())).into_iter())
            .register("build", "This program", ConstGauge::new(1_i64));
        Self { registry, ..metrics }
    }
}

/// 0.1 ms to 13 s, doubling.
fn stage_histogram() -> Histogram {
    Histogram::new(std::iter::successors(Some(1e-4), |bound| Some(bound * 2.0)).take(18))
}

impl Metrics {
    pub(super) fn request(&self, route: &str, status: u16) {
        self.requests.get_or_create(&RequestLabels { route: route.to_owned(), status }).inc();
    }

    pub(super) fn abandoned(&self) {
        self.abandoned.inc();
    }

    pub(super) fn stage(&self, stage: Stage, duration: Duration) {
        self.stages.get_or_create(&StageLabel { stage }).observe(duration.as_secs_f64());
    }

    /// One more connection, until what is returned is dropped.
    pub(super) fn connection(&self) -> impl Drop + Send + 'static {
        struct Open(Gauge);
        impl Drop for Open {
            fn drop(&mut self) {
                self.0.dec();
            }
        }
        self.connections.inc();
        Open(self.connections.clone())
    }

    /// Open connections now.
    pub(super) fn connections(&self) -> usize {
        usize::try_from(self.connections.get()).unwrap_or(0)
    }

    /// Everything, as OpenMetrics text.
    pub(super) fn openmetrics(&self, app: &App) -> String {
        if let Some(detection) = app.detection_if_ready() {
            let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
            self.queue_depth.set(count(detection.queue.taken()));
            self.queue_limit.set(count(detection.queue.limit()));
            let raise = |counter: &Counter, to: u64| counter.inc_by(to.saturating_sub(counter.get()));
            raise(&self.replaced_frames, detection.queue.frames_replaced());
            raise(&self.panics, detection.queue.panics());
        }
        let now = app.readiness();
        for state in [Readiness::Starting, Readiness::Ready, Readiness::Failed(String::new())] {
            let is_now = state.name() == now.name();
            self.device.get_or_create(&StateLabel { state: state.name() }).set(i64::from(is_now));
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }

    /// Everything, as Prometheus' own text format 0.0.4.
    pub(super) fn prometheus(&self, app: &App) -> String {
        classic(&self.openmetrics(app))
    }
}

/// OpenMetrics text as Prometheus' older format: counters are described by their samples' names, and there are neither
/// units nor an end mark. <https://prometheus.io/docs/instrumenting/exposition_formats/>
fn classic(openmetrics: &str) -> String {
    let counter = |name: &str| openmetrics.contains(&format!("# TYPE {name} counter\n"));
    let mut classic = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT" | "EOF"), _, _) => continue,
            (Some("#"), Some(what), Some(name), Some(rest)) if counter(name) => {
                classic.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => classic.push_str(line),
        }
        classic.push('\n');
    }
    classic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_names_counters_as_their_samples() {
        let text = "# HELP a Some.\n# TYPE a counter\na_total{x=\"# EOF\"} 3\n# HELP b Time.\n# TYPE b histogram\n\
                    # UNIT b seconds\nb_sum 1\n# EOF\n";
        let expected = "# HELP a_total Some.\n# TYPE a_total counter\na_total{x=\"# EOF\"} 3\n# HELP b Time.\n\
                        # TYPE b histogram\nb_sum 1\n";
        assert_eq!(classic(text), expected);
    }
}
