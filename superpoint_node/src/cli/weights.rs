//! `superpoint weights`: which weights are used, what is in them, and fetching Magic Leap's.

mod hub;
mod place;

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tt_backend::weights::{self, HUB_FILE, HUB_REPO, HUB_REVISION, Location, TensorSummary, Weights};

use super::print;
use crate::log::say;
use hub::{Hub, HubError};

/// What was asked of `superpoint weights`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    superpoint weights path\n  \
    superpoint weights inspect my.safetensors\n  \
    superpoint weights fetch --accept-licence")]
pub struct WeightsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the weights file that would be used, or `bundled`
    Path {
        /// A weights file, or `bundled`; looked for in the Hugging Face cache if not given
        #[arg(long, value_name = "FILE")]
        weights: Option<PathBuf>,
    },
    /// Download Magic Leap's weights into the Hugging Face cache, after showing their licence
    ///
    /// Honours HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and
    /// HF_HUB_DOWNLOAD_TIMEOUT (seconds without a byte, 10 if not set) as huggingface_hub does, and the usual
    /// proxy variables.
    Fetch {
        /// Accept the licence without being asked
        #[arg(long, alias = "accept-license")]
        accept_licence: bool,
    },
    /// Print the tensors of a weights file, and check them
    Inspect {
        /// A safetensors file, or `bundled`; the weights that would be used if not given
        file: Option<PathBuf>,
    },
}

/// Runs `superpoint weights`. Data goes to standard output, all else to standard error.
///
/// # Errors
///
/// Every error is one sentence for the user.
pub fn run(args: &WeightsArgs) -> anyhow::Result<()> {
    match &args.command {
        Command::Path { weights } => path(weights.as_deref()),
        Command::Fetch { accept_licence } => fetch(*accept_licence),
        Command::Inspect { file } => inspect(file.as_deref()),
    }
}

/// A path that nobody can use is not printed as if it were the answer: the weights are read first.
fn path(explicit: Option<&Path>) -> anyhow::Result<()> {
    let location = Weights::locate(explicit)?;
    location.load()?;
    print(&format!("{location}\n"))
}

fn fetch(accept_licence: bool) -> anyhow::Result<()> {
    let env = |name: &str| std::env::var_os(name);
    let cache = weights::hub_cache_dir(env)
        .context("there is no Hugging Face cache folder to download into: set HOME, HF_HOME or HF_HUB_CACHE")?;
    let file = weights::hub_snapshot_file(&cache);
    if Weights::load(&file).is_ok() {
        say("These weights are already in the cache.");
        return print(&format!("{}\n", file.display()));
    }
    let hub = Hub::from_env(env)?;
    accept(&hub, accept_licence)?;

    let remote = hub.describe()?;
    let bar = ProgressBar::new(remote.bytes).with_style(
        ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.set_message(HUB_FILE);
    let bytes = hub.download(&remote, |received| bar.set_position(received))?;
    bar.finish_and_clear();

    // Nothing is put into the cache that the loader would refuse there.
    let weights = Weights::from_bytes(&bytes, &remote.url)?;
    if weights.provenance.sha256 != remote.sha256 {
        return Err(
            HubError::WrongHash { url: remote.url, expected: remote.sha256, found: weights.provenance.sha256 }.into()
        );
    }
    let file = place::place(&cache, &remote.sha256, &bytes)?;
    say(format_args!("{} bytes, SHA-256 {}", bytes.len(), remote.sha256));
    print(&format!("{}\n", file.display()))
}

/// Shows the terms, and asks unless they were accepted on the command line.
fn accept(hub: &Hub, accepted: bool) -> anyhow::Result<()> {
    say(format_args!(
        "{HUB_REPO} at revision {HUB_REVISION}, from {endpoint}\n\n\
         These weights belong to Magic Leap, Inc. Their licence allows academic or non-profit, noncommercial research\n\
         use only. They may not be redistributed or sublicensed. The whole text is the file LICENSE in\n\
         {endpoint}/{HUB_REPO}/tree/{HUB_REVISION}\n",
        endpoint = hub.endpoint()
    ));
    if accepted {
        say("Accepted on the command line.");
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        bail!(
            "these weights may be downloaded only by someone who accepts their licence (above), and there is no terminal \
             to ask at; if you accept it, run `superpoint weights fetch --accept-licence`"
        );
    }
    write!(io::stderr(), "Do you accept this licence? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("the licence was not accepted, so nothing was downloaded"),
    }
}

/// The table first, also of a file that turns out to be wrong: it shows what is in it.
fn inspect(file: Option<&Path>) -> anyhow::Result<()> {
    let location = Weights::locate(file)?;
    let tensors = match &location {
        Location::Bundled => weights::summarize_bundled()?,
        Location::Explicit(path) | Location::HubCache(path) => weights::summarize(path)?,
    };
    print(&table(&tensors))?;
    let provenance = location.load()?.provenance;
    let revision = provenance.revision.as_deref().unwrap_or("not stated");
    print(&format!(
        "\nfile      {location}\nname      {}\nrevision  {revision}\nsha256    {}\n",
        provenance.name, provenance.sha256
    ))
}

/// One line a tensor.
fn table(tensors: &[TensorSummary]) -> String {
    let width = tensors.iter().map(|tensor| tensor.name.chars().count()).max().unwrap_or(0).max("tensor".len());
    let mut text =
        format!("{:width$}  {:<18} {:<5} {:>12} {:>12} {:>12}\n", "tensor", "shape", "dtype", "min", "max", "mean abs");
    for tensor in tensors {
        let shape = format!("{:?}", tensor.shape);
        let range = match tensor.range {
            Some(range) => range.map(|value| format!("{value:>12.6}")).join(" "),
            None => String::new(),
        };
        text += format!("{:width$}  {shape:<18} {:<5} {range}", tensor.name, tensor.dtype).trim_end();
        text.push('\n');
    }
    text
}
