//! Sockets: connections, their number and their patience.
//!
//! axum's own loop sets no limits, so hyper is driven from here.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

use super::app::App;
use super::routes;

/// How much longer than its requests a server that ends may take: to write the answers.
const LAST_ANSWERS: Duration = Duration::from_millis(200);

/// Serves until `stop`, then lets what runs finish, within the limit.
pub(super) async fn serve(listener: TcpListener, app: Arc<App>, stop: CancellationToken) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot serve"),
    };
    let limits = *app.limits();
    let router = routes::router(Arc::clone(&app));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());

    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut complaint = Complaint::default();
    loop {
        let (stream, place) = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = accept(&listener, &places, &mut complaint) => accepted,
        };
        let _ = stream.set_nodelay(true);
        // A client that takes no bytes of its answer is left; one that waits for its answer sends none itself.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(limits.patience));
        // Also how long a connection may be idle between two requests.
        http.header_read_timeout(app.patience());
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(Box::pin(stream)), service));
        let open = app.metrics.connection();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop((open, place));
        });
    }
    drop(listener);
    let drained = tokio::time::timeout(limits.drain + LAST_ANSWERS, graceful.shutdown()).await;
    if drained.is_err() {
        tracing::warn!(seconds = limits.drain.as_secs_f64(), "requests were still running at the end of the drain");
    }
}

/// How often the log is told, at most, that connections cannot be accepted.
const BETWEEN_COMPLAINTS: Duration = Duration::from_secs(10);

/// What is logged of connections that cannot be accepted.
#[derive(Default)]
struct Complaint {
    last: Option<Instant>,
    /// Since then.
    failures: u64,
}

impl Complaint {
    fn about(&mut self, error: &std::io::Error) {
        self.failures += 1;
        if self.last.is_none_or(|last| last.elapsed() >= BETWEEN_COMPLAINTS) {
            tracing::warn!(%error, failures = self.failures, "cannot accept a connection");
            *self = Self { last: Some(Instant::now()), failures: 0 };
        }
    }
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &tokio::net::TcpListener,
    places: &Arc<Semaphore>,
    complaint: &mut Complaint,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // Never closed, so there always is a permit in the end.
    let place = Arc::clone(places).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => {
                // Out of file descriptors, or a client that was gone at once.
                complaint.about(&error);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
