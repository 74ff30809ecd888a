//! What all requests share.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tt_backend::Watch;

use super::answer::Answers;
use super::body::Bodies;
use super::metrics::Metrics;
use super::problem::Problem;
use super::{HttpOptions, Limits};
use crate::engine::{Engine, Place, Queue};

/// How long lies at least between two refusals because the queue is full, all clients together. Many do not heed
/// `Retry-After` but come again at once, and what they cost is taken from the network: refused as fast as they came,
/// 48 clients on the network's two cores left it half of its speed.
const BETWEEN_REFUSALS: Duration = Duration::from_millis(4);

/// So much longer for each byte of the refused body: reading it took time, and cache from the network. Without, 64 clients
/// with bodies of 400 kB took a fifth of the network's speed.
const FOR_EACH_BYTE: Duration = Duration::from_nanos(40);

/// However large the body, the next one is not kept waiting longer.
const LONGEST: Duration = Duration::from_millis(100);

/// The server's state.
#[derive(Debug)]
pub(super) struct App {
    pub(super) options: HttpOptions,
    pub(super) metrics: Metrics,
    pub(super) bodies: Bodies,
    pub(super) answers: Answers,
    stop: CancellationToken,
    /// When the next request may be refused. Those that wait for it stand in line, in the order in which they came.
    next_refusal: Mutex<Instant>,
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
        let next_refusal = Mutex::new(Instant::now());
        let (metrics, bodies, answers) = (Metrics::default(), Bodies::default(), Answers::default());
        Self { options, metrics, bodies, answers, stop, next_refusal, detection: OnceLock::new() }
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

    /// A place in the queue. Where all are taken, a request waits for one until it is its turn to be refused: so whoever
    /// comes back only when told to has as good a chance at each request as those who come back at once.
    ///
    /// `body` is the number of bytes that were received for it.
    ///
    /// # Errors
    ///
    /// If no place became free in that time.
    pub(super) async fn place(&self, body: usize) -> Result<Place, Problem> {
        let queue = &self.detection()?.queue;
        let full = match queue.reserve() {
            Ok(place) => return Ok(place),
            Err(full) => full,
        };
        tokio::select! {
            biased;
            place = queue.wait_for_place() => Ok(place?),
            () = self.turn_to_be_refused(body) => Err(full.into()),
            () = self.stop.cancelled() => Err(full.into()),
        }
    }

    /// A request whose client leaves while it waits takes nobody's turn.
    async fn turn_to_be_refused(&self, body: usize) {
        let mut next = self.next_refusal.lock().await;
        tokio::time::sleep_until(*next).await;
        let for_body = FOR_EACH_BYTE.saturating_mul(u32::try_from(body).unwrap_or(u32::MAX));
        *next = (*next + (BETWEEN_REFUSALS + for_body).min(LONGEST)).max(Instant::now());
    }

    /// Whether a client that was refused is to come back on a new connection: others must get in between.
    pub(super) fn is_crowded(&self) -> bool {
        self.metrics.connections() > self.limits().connections / 4 * 3
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
