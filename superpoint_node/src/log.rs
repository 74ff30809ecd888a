//! What both programs log, on standard error: standard output is for data.

use std::io::{self, IsTerminal as _};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    /// One JSON object.
    Json,
}

/// Logs from `level` on, unless the environment variable `RUST_LOG` says otherwise: `debug`, or
/// `superpoint_node=debug,warn`.
pub(crate) fn to_stderr(level: LevelFilter, format: Format) {
    let wanted = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let parsed = wanted.as_deref().map(str::parse::<Targets>).transpose();
    let ignored = parsed.as_ref().err().map(ToString::to_string);
    let filter = parsed.ok().flatten().unwrap_or_else(|| Targets::new().with_default(level));
    let lines = match format {
        Format::Text => layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal()).boxed(),
        Format::Json => layer().with_writer(io::stderr).json().boxed(),
    };
    // Another subscriber may be there already, when this is called as a library.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    if let Some(reason) = ignored {
        tracing::warn!(%reason, "RUST_LOG is ignored");
    }
}
