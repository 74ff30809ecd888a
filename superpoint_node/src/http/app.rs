//! What all requests share.

use std::sync::OnceLock;

use tt_backend::Watch;

use super::body::Bodies;
use super::metrics::Metrics;
use super::problem::Problem;
use super::{HttpOptions, Limits};
use crate::engine::{Engine, Queue};

/// The server's state.
#[derive(Debug)]
pub(super) struct App {
    pub(super) options: HttpOptions,
    pub(super) metrics: Metrics,
    pub(super) bodies: Bodies,
    detection: OnceLock<Detection>,
}

/// The way to the detector.
#[derive(Debug)]
pub(super) struct Detection {
    pub(super) queue: Queue,
    pub(super) watch: Watch,
}

/// What the server can do at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Starting,
    Ready,
    /// The last detection failed, and the device said this.
    Failed(String),
}

impl Readiness {
    /// The word in `/health`, `/info` and `/metrics`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ok",
            Self::Failed(_) => "failed",
        }
    }
}

impl App {
    pub(super) fn new(options: HttpOptions) -> Self {
        Self { options, metrics: Metrics::default(), bodies: Bodies::default(), detection: OnceLock::new() }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.options.limits
    }

    /// The first engine counts.
    pub(super) fn attach(&self, engine: &Engine) {
        let queue = engine.queue(self.limits().queue);
        let _ = self.detection.set(Detection { queue, watch: engine.watch().clone() });
    }

    pub(super) fn readiness(&self) -> Readiness {
        match self.detection.get() {
            None => Readiness::Starting,
            Some(detection) => detection.watch.failure().map_or(Readiness::Ready, Readiness::Failed),
        }
    }

    /// The way to the detector, once it is there.
    pub(super) fn detection(&self) -> Result<&Detection, Problem> {
        self.detection.get().ok_or_else(Problem::starting)
    }

    /// The way to the detector, for those who have something to say also without it.
    pub(super) fn detection_if_ready(&self) -> Option<&Detection> {
        self.detection.get()
    }
}
