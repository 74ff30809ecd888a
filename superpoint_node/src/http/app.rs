//! What all requests share.

use std::sync::OnceLock;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
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
    stop: CancellationToken,
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
    /// `stop` is when the server begins to end.
    pub(super) fn new(options: HttpOptions, stop: CancellationToken) -> Self {
        let (metrics, bodies, detection) = (Metrics::default(), Bodies::default(), OnceLock::new());
        Self { options, metrics, bodies, stop, detection }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.options.limits
    }

    /// How long a client that sends nothing is waited for. When half of the places are taken that is a tenth:
    /// connections that say nothing must not keep out those that have something to ask.
    pub(super) fn patience(&self) -> Duration {
        let Limits { patience, connections, .. } = *self.limits();
        if self.metrics.connections() > connections / 2 { patience / 10 } else { patience }
    }

    /// Comes when the time is up in which a server that ends lets requests finish.
    pub(super) async fn drained(&self) {
        self.stop.cancelled().await;
        tokio::time::sleep(self.limits().drain).await;
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
