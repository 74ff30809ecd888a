//! The command line: arguments here, one file a command beside it.

mod bench;
mod bench_http;
mod bench_p150;
mod detect;
mod info;
mod match_pictures;
mod replay;
mod serve;
mod synth;
pub mod weights;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use tracing::level_filters::LevelFilter;
use tt_backend::{BackendChoice, Detector, Fallback, Params, Postprocess};

use crate::channel::Channel;
use crate::log;
use crate::settings::Settings;

/// SuperPoint keypoints and descriptors, on a Tenstorrent p150 or on the CPU.
#[derive(Debug, Parser)]
#[command(name = "superpoint", version, about, long_about = None, after_help = "Examples:\n  \
    superpoint detect photo.jpg --overlay keypoints.png\n  \
    superpoint match left.jpg right.jpg --overlay matches.png\n  \
    superpoint serve\n\n\
    Exit status: 0 done, 1 failed, 2 wrong usage, 3 done but some inputs could not be read.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Find keypoints in pictures
    Detect(detect::DetectArgs),
    /// Find the same points in two pictures
    Match(match_pictures::MatchArgs),
    /// Run a recording's images through the detector
    Replay(replay::ReplayArgs),
    /// Make a recording with known truth: a camera that moves over a photo
    Synth(synth::SynthArgs),
    /// Answer requests over HTTP, with a page to try it out
    Serve(serve::ServeArgs),
    /// Show which weights are used, look into them, or fetch Magic Leap's
    Weights(weights::WeightsArgs),
    /// Say which backend and which weights would be used, as JSON
    #[command(after_help = "Examples:\n  \
        superpoint info\n  \
        superpoint info --config config/superpoint.yaml | jq .weights")]
    Info(DetectorArgs),
    /// Measure the speed of a backend
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:\n  \
        superpoint completions bash > ~/.local/share/bash-completion/completions/superpoint\n  \
        superpoint completions fish > ~/.config/fish/completions/superpoint.fish")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// What a command came to, when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// Some inputs could not be read; they were named on standard error.
    SomeUnreadable,
}

/// Arguments that are well formed but make no sense; exit status 2, as for those that are not well formed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongUsage(String);

impl From<tt_backend::Error> for WrongUsage {
    fn from(error: tt_backend::Error) -> Self {
        Self(error.to_string())
    }
}

/// How a detector is opened.
#[derive(Debug, Args)]
struct DetectorArgs {
    /// YAML file with the ROS node's parameters; options given here win over it
    #[arg(long, value_name = "FILE", help_heading = "Detector")]
    config: Option<PathBuf>,
    /// What runs the network: auto (a p150 if there is one, else the CPU), p150 or cpu
    #[arg(long, help_heading = "Detector")]
    backend: Option<BackendChoice>,
    /// Number of the card, as `tt-smi -ls` counts them [default: 0]
    #[arg(long, value_name = "N", help_heading = "Detector", value_parser = clap::value_parser!(u32).range(..=255))]
    device_id: Option<u32>,
    /// When the card fails in the middle of its work: none (errors from then on) or cpu [default: none]
    #[arg(long, help_heading = "Detector")]
    fallback: Option<Fallback>,
    /// Weights file (safetensors), or `bundled`; searched for if not given, see `superpoint weights path`
    #[arg(long, value_name = "FILE", help_heading = "Detector")]
    weights: Option<PathBuf>,
    /// Threads of the cpu backend; 0 is one for each core
    #[arg(long, value_name = "N", help_heading = "Detector", value_parser = clap::value_parser!(u16).range(..=1024))]
    threads: Option<u16>,
}

/// Parameters of each detection.
#[derive(Debug, Args)]
#[command(next_help_heading = "Detection")]
struct ParamsArgs {
    /// Keep the best so many keypoints, 0 to 307200; -1 keeps all [default: 1024]
    #[arg(long, value_name = "N")]
    max_keypoints: Option<i64>,
    /// Keypoints must score above this, 0 to 1 [default: 0.005]
    #[arg(long, value_name = "SCORE")]
    keypoint_threshold: Option<f32>,
    /// Radius of non-maximum suppression in pixels of the network's 480x640 frame, 0 (none) to 32 [default: 4]
    #[arg(long, value_name = "PIXELS")]
    nms_radius: Option<usize>,
    /// Drop keypoints closer than this to a border of the network's frame, 0 to 240 [default: 4]
    #[arg(long, value_name = "PIXELS")]
    border_removal_distance: Option<usize>,
    /// Do not compute descriptors
    #[arg(long)]
    no_descriptors: bool,
    /// package, or upstream (as the transformers library picks keypoints) [default: package]
    #[arg(long)]
    postprocess: Option<Postprocess>,
    /// What is read of a colour picture: first (the red channel) or luma [default: first]
    #[arg(long)]
    channel: Option<Channel>,
}

impl DetectorArgs {
    /// The configuration file's settings, or the defaults, with the options laid over them.
    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = self.config.as_deref().map(Settings::from_file).transpose()?.unwrap_or_default();
        if let Some(backend) = self.backend {
            settings.options.backend = backend;
        }
        if let Some(id) = self.device_id {
            settings.options.device_id = id;
        }
        if let Some(fallback) = self.fallback {
            settings.options.fallback = fallback;
        }
        if let Some(weights) = &self.weights {
            settings.options.weights = Some(weights.clone());
        }
        if let Some(threads) = self.threads {
            settings.options.threads = threads.into();
        }
        Ok(settings)
    }
}

impl ParamsArgs {
    /// Lays the options over the settings.
    fn apply(&self, settings: &mut Settings) -> Result<(), WrongUsage> {
        let params = &mut settings.params;
        if let Some(number) = self.max_keypoints {
            params.max_keypoints = Params::max_keypoints_from(number)?;
        }
        if let Some(threshold) = self.keypoint_threshold {
            params.keypoint_threshold = threshold;
        }
        if let Some(radius) = self.nms_radius {
            params.nms_radius = radius;
        }
        if let Some(distance) = self.border_removal_distance {
            params.border_removal_distance = distance;
        }
        if self.no_descriptors {
            params.return_descriptors = false;
        }
        if let Some(postprocess) = self.postprocess {
            params.postprocess = postprocess;
        }
        if let Some(channel) = self.channel {
            settings.channel = channel;
        }
        Ok(settings.params.check()?)
    }
}

/// A detector with the parameters of each detection.
fn open(settings: &Settings) -> anyhow::Result<Detector> {
    let detector = Detector::open(&settings.options)?;
    let model = detector.model();
    tracing::info!(backend = model.description, weights = %model.weights.name, "detector ready");
    Ok(detector)
}

/// Writes data to standard output. A reader that has gone away (`| head`) has had what it wanted: that ends the
/// program quietly.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.context("cannot write to standard output"),
    }
}

/// A bar, when somebody looks at it. `text` stands behind it, with indicatif's placeholders.
fn progress(length: u64, text: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(&format!("{{bar:40}} {text}, {{eta}} left"));
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A server logs its requests, other commands only what is wrong.
fn start_log(command: &Command) {
    match command {
        Command::Serve(args) => log::to_stderr(LevelFilter::INFO, args.log_format.into()),
        _ => log::to_stderr(LevelFilter::WARN, log::Format::Text),
    }
}

/// Runs the command line and gives the process's exit status.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors, and go to standard output.
            let status = u8::from(error.use_stderr()) * 2;
            let _ = error.print();
            return ExitCode::from(status);
        }
    };
    start_log(&cli.command);
    let result = match &cli.command {
        Command::Detect(args) => detect::run(args),
        Command::Match(args) => match_pictures::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Synth(args) => synth::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Weights(args) => weights::run(args).map(|()| Outcome::Done),
        Command::Info(args) => info::run(args),
        Command::Bench(command) => bench::run(command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "superpoint", &mut script);
            print(&String::from_utf8_lossy(&script)).map(|()| Outcome::Done)
        }
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::SomeUnreadable) => ExitCode::from(3),
        Err(error) => {
            log::say(format_args!("superpoint: {error:#}"));
            ExitCode::from(if error.is::<WrongUsage>() { 2 } else { 1 })
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    /// An example that clap does not take helps nobody.
    #[test]
    fn every_command_has_examples_that_parse() {
        fn examples(command: &clap::Command) -> Vec<String> {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let own = help.lines().take_while(|line| !line.is_empty()).filter(|line| line.contains("superpoint "));
            let mut lines: Vec<_> = own.map(str::to_owned).collect();
            // Those of a group may stand with the group.
            if lines.is_empty() || command.get_name() == "superpoint" {
                lines.extend(command.get_subcommands().flat_map(examples));
            }
            assert!(!lines.is_empty(), "{} has none", command.get_name());
            lines
        }
        for line in examples(&Cli::command()) {
            // Of a pipeline, the part that is this program.
            let own = line.split(['|', '>']).find(|part| part.trim_start().starts_with("superpoint ")).unwrap_or(&line);
            let parsed = Cli::try_parse_from(own.split_whitespace());
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn completions_name_the_commands() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "superpoint", &mut script);
            let script = String::from_utf8(script).unwrap();
            for word in ["detect", "match", "replay", "synth", "serve", "weights", "completions"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }
}
