//! `superpoint serve`: the HTTP server.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{DetectorArgs, Outcome, ParamsArgs};
use crate::engine::Engine;
use crate::http::{HttpOptions, Limits, Listen, Server};
use crate::log;

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  \
    superpoint serve\n  \
    superpoint serve --port 8080 --port-search\n  \
    superpoint serve --config config/superpoint.yaml --log-format json\n\n\
    Then open http://127.0.0.1:20000 in a browser, or:\n  \
    curl --data-binary @photo.jpg 'http://127.0.0.1:20000/predict_raw?max_keypoints=100'\n\n\
    RUST_LOG sets what is logged, for example RUST_LOG=warn; a line a request if it is not set."
)]
pub(super) struct ServeArgs {
    /// Interface to listen on; 0.0.0.0 lets everyone in [default: 127.0.0.1]
    #[arg(long, help_heading = "Server")]
    host: Option<String>,
    /// Port to listen on; 0 takes any [default: 20000]
    #[arg(long, help_heading = "Server")]
    port: Option<u16>,
    /// Take the next free port if this one is taken
    #[arg(long, help_heading = "Server")]
    port_search: bool,
    /// Requests that may wait or be worked on; more are refused with 503
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096), help_heading = "Server")]
    queue: u16,
    /// Seconds until a request that is not answered is given up with 504
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds, help_heading = "Server")]
    deadline: f64,
    /// Seconds that a client may take to send a request's head, its body, or to read on
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds, help_heading = "Server")]
    patience: f64,
    /// MiB that a request's body may have
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Server")]
    max_body: u16,
    /// How lines of the log look
    #[arg(long, value_enum, default_value_t = LogFormat::Text, help_heading = "Server")]
    pub(super) log_format: LogFormat,
    #[command(flatten)]
    params: ParamsArgs,
    #[command(flatten)]
    detector: DetectorArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    Text,
    Json,
}

impl From<LogFormat> for log::Format {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

/// How long closing a card may take at the end.
const PATIENCE: Duration = Duration::from_secs(5);

fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.01..=3600.0).contains(&number) { Ok(number) } else { Err("must be 0.01 to 3600 seconds".to_owned()) }
}

/// What ends the wait at start and while serving.
enum Event {
    Signal,
    Opened(Result<Engine, tt_backend::Error>),
}

pub(super) fn run(args: &ServeArgs) -> anyhow::Result<Outcome> {
    let mut settings = args.detector.settings()?;
    args.params.apply(&mut settings)?;
    let (sender, events) = mpsc::channel();
    listen_for_signals(sender.clone())?;

    let server = Server::start(HttpOptions {
        listen: Listen {
            host: args.host.clone().unwrap_or(settings.listen.host),
            port: args.port.unwrap_or(settings.listen.port),
            port_search: args.port_search,
        },
        params: settings.params,
        channel: settings.channel,
        limits: Limits {
            body_bytes: usize::from(args.max_body) << 20,
            queue: usize::from(args.queue),
            patience: Duration::from_secs_f64(args.patience),
            deadline: Duration::from_secs_f64(args.deadline),
            ..Limits::default()
        },
    })?;
    log::say(format_args!("superpoint: listening on http://{}", server.address()));

    // The server already says that it is starting: a device may take minutes.
    let options = settings.options;
    std::thread::Builder::new()
        .name("opening".to_owned())
        .spawn(move || {
            // Nobody listens any more when a signal came first.
            let _ = sender.send(Event::Opened(Engine::start(options)));
        })
        .context("cannot start a thread")?;

    let mut engine = None;
    for event in &events {
        match event {
            Event::Signal => break,
            Event::Opened(opened) => {
                let opened = opened?;
                let weights = &opened.model().weights;
                let path = weights.path.as_deref().unwrap_or(Path::new("bundled"));
                tracing::info!(
                    backend = opened.model().description,
                    weights = weights.name,
                    path = %path.display(),
                    sha256 = weights.sha256,
                    "ready"
                );
                server.attach(&opened);
                log::say(format_args!(
                    "superpoint: ready, {} with weights {}",
                    opened.model().description,
                    weights.name
                ));
                engine = Some(opened);
            }
        }
    }
    tracing::info!("ending on a signal");
    server.stop();
    if let Some(engine) = engine {
        engine.close(PATIENCE);
    }
    Ok(Outcome::Done)
}

/// The first signal asks for an orderly end, the second ends at once.
fn listen_for_signals(events: mpsc::Sender<Event>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut asked = false;
            for signal in signals.forever() {
                if asked {
                    signal_hook::low_level::exit(128 + signal);
                }
                asked = true;
                let _ = events.send(Event::Signal);
            }
        })
        .context("cannot start a thread")?;
    Ok(())
}
