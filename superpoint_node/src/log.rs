//! What both programs log, on standard error: standard output is for data.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// A line for people. Whether somebody can read it or not, the work goes on; `eprintln!` would panic where nobody can.
pub(crate) fn say(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

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
    // Where the log cannot be written, complaining about it there would panic.
    let lines = layer().with_writer(io::stderr).log_internal_errors(false);
    let lines = match format {
        Format::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        Format::Json => lines.json().boxed(),
    };
    // Another subscriber may be there already, when this is called as a library.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    if let Some(reason) = ignored {
        tracing::warn!(%reason, "RUST_LOG is ignored");
    }
}
