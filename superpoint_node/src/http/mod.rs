//! The HTTP server: pictures in, keypoints out, as the published model package's server gives them.
//!
//! | module | what it is |
//! |---|---|
//! | `listen` | sockets: connections, their number and their patience |
//! | `routes` | which path leads where; the description of all of them (OpenAPI) |
//! | `body`, `fields` | from a request to its picture and its parameters, every error with a sentence |
//! | `predict` | one detection: decode, wait, detect, encode |
//! | `observe`, `metrics` | request ids, the log, what Prometheus reads |
//! | `problem` | errors as JSON |
//! | `app` | what all of these share |
//! | `page.html`, `docs.html` | the playground and the API's page, which need nothing from outside |
//!
//! ```text
//! request -> body, whole (limits: bytes, seconds) -> place in the queue (or 503, in a while) -> decode on the pool
//!         -> engine, in order (or 504) -> encode on the pool -> answer
//! ```
//!
//! Whatever happens to a request happens to its future: when the client goes away or the time is up, the future is
//! dropped, and with it the place in the queue, so that nothing is computed for nobody.

mod answer;
mod app;
mod body;
mod fields;
mod listen;
mod metrics;
mod observe;
mod predict;
mod problem;
mod routes;

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;
use tokio_util::sync::CancellationToken;
use tt_backend::Params;

use crate::channel::Channel;
use crate::engine::Engine;
use app::App;

pub use fields::{Request, read_predict_body};
pub use problem::Problem;

/// Where and how to serve.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// Where to listen.
    pub listen: Listen,
    /// What a request that does not say otherwise is detected with.
    pub params: Params,
    /// Which channel of a colour picture is read.
    pub channel: Channel,
    /// What a client may take.
    pub limits: Limits,
}

/// Where to listen.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Name or address of the interface.
    pub host: String,
    /// The port; 0 lets the system choose.
    pub port: u16,
    /// Whether to take one of the next hundred ports when this one is taken.
    pub port_search: bool,
}

impl Default for Listen {
    fn default() -> Self {
        Self { host: "127.0.0.1".to_owned(), port: 20_000, port_search: false }
    }
}

/// What clients may take, all together and each.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Requests that wait or are worked on; those beyond are refused with 503.
    pub queue: usize,
    /// Connections; those beyond wait until one closes.
    pub connections: usize,
    /// How long a request's head, and then its body, may take to arrive; and how long a client may take no bytes of
    /// its answer.
    pub patience: Duration,
    /// How long a request may take, from its last byte to the answer; then it is given up with 504.
    pub deadline: Duration,
    /// How long requests may still run when the server stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            queue: 16,
            connections: 256,
            patience: Duration::from_secs(30),
            deadline: Duration::from_secs(30),
            drain: Duration::from_secs(5),
        }
    }
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another program listens there.
    #[error("port {port} of {host} is taken; stop the program that has it, or choose another port")]
    PortTaken {
        /// The interface.
        host: String,
        /// The port.
        port: u16,
    },
    /// The interface does not exist, or the port is not allowed.
    #[error("cannot listen on {host:?}, port {port}")]
    Listen {
        /// The interface.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        source: io::Error,
    },
    /// The operating system refused a thread.
    #[error("cannot start the server's threads: {0}")]
    Threads(io::Error),
}

/// A running server, on threads of its own.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens and serves. Until [`Server::attach`], detections are refused with 503.
    ///
    /// # Errors
    ///
    /// If the port is taken, or the operating system refuses something else.
    pub fn start(options: HttpOptions) -> Result<Self, StartError> {
        let listener = bind(&options.listen)?;
        let failed =
            |source| StartError::Listen { host: options.listen.host.clone(), port: options.listen.port, source };
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;

        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            // Pictures are decoded and answers encoded here: as many at once as there are cores, the others in order.
            .max_blocking_threads(cores.max(2))
            .thread_name("http")
            .enable_io()
            .enable_time()
            .build()
            .map_err(StartError::Threads)?;
        let stop = CancellationToken::new();
        let app = Arc::new(App::new(options, stop.clone()));
        let serving = listen::serve(listener, Arc::clone(&app), stop.clone());
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || {
                runtime.block_on(serving);
                runtime.shutdown_background();
            })
            .map_err(StartError::Threads)?;
        Ok(Self { address, app, stop, thread: Some(thread) })
    }

    /// Gives the server an engine to detect with: it is ready.
    pub fn attach(&self, engine: &Engine) {
        self.app.attach(engine);
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, lets the requests that are being worked on finish, but no longer than
    /// [`Limits::drain`], and returns when all is over.
    pub fn stop(mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // It cannot hang: draining has an end, and threads that are busy are left behind.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Connections that wait to be accepted, at most; the system's own limit holds too. `std` asks for 128: of the next one the
/// system loses the beginning, and by the time that its client sends it again the server may be out of patience.
const BACKLOG: i32 = 1024;

fn bind(listen: &Listen) -> Result<TcpListener, StartError> {
    let Listen { host, port, port_search } = listen;
    let last = if *port_search { port.saturating_add(100) } else { *port };
    // An IPv6 address may stand in brackets, as in a URL.
    let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    for candidate in *port..=last {
        let bound = (name, candidate)
            .to_socket_addrs()
            .and_then(|addresses| TcpListener::bind(addresses.collect::<Vec<_>>().as_slice()))
            .and_then(|listener| SockRef::from(&listener).listen(BACKLOG).map(|()| listener));
        match bound {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(source) => return Err(StartError::Listen { host: host.clone(), port: candidate, source }),
        }
    }
    Err(StartError::PortTaken { host: host.clone(), port: *port })
}
