//! `superpoint bench`: how long the parts of a detection take.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tt_backend::cpu::Network;
use tt_backend::{BackendChoice, Detector, Params, Plane, Size};

use super::{DetectorArgs, Outcome, WrongUsage, print};

#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// The CPU backend on a noise picture
    Cpu(CpuArgs),
    /// A card on a photo: the rows of the published package's speed table
    P150(super::bench_p150::P150Args),
    /// The HTTP server on a photo
    Http(super::bench_http::HttpArgs),
}

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  \
    superpoint bench cpu\n  \
    superpoint bench cpu --json --threads 2 --size 240x320 | jq .network_ms.median"
)]
pub(super) struct CpuArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measured runs, after one that is not
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Size of the network frame, height x width, multiples of 8
    #[arg(long, default_value_t = Size::NETWORK, value_name = "HxW", value_parser = network_size)]
    size: Size,
    #[command(flatten)]
    detector: DetectorArgs,
}

#[derive(Serialize)]
struct Report {
    network_ms: Spread,
    postprocess_ms: Spread,
    threads: usize,
    size: String,
    runs: u32,
    keypoints: usize,
    weights: String,
}

/// Milliseconds over all runs.
#[derive(Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// Of at least one duration.
    fn of(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        let milliseconds = |index: usize| durations[index].as_secs_f64() * 1e3;
        Self { median: milliseconds(durations.len() / 2), min: milliseconds(0), max: milliseconds(durations.len() - 1) }
    }
}

pub(super) fn run(command: &BenchCommand) -> anyhow::Result<Outcome> {
    match command {
        BenchCommand::Cpu(args) => cpu(args),
        BenchCommand::P150(args) => super::bench_p150::run(args),
        BenchCommand::Http(args) => super::bench_http::run(args),
    }
}

fn cpu(args: &CpuArgs) -> anyhow::Result<Outcome> {
    let mut settings = args.detector.settings()?;
    if settings.options.backend == BackendChoice::P150 {
        return Err(WrongUsage("`bench cpu` measures the CPU; leave out `--backend p150`".to_owned()).into());
    }
    settings.options.backend = BackendChoice::Cpu;
    settings.options.network = args.size;
    let mut detector = Detector::open(&settings.options)?;

    let pixels = noise(args.size);
    let plane = Plane::contiguous(&pixels, args.size)?;
    // A threshold of 0 gives as many keypoints as are wanted, whatever the picture.
    let params = Params { keypoint_threshold: 0.0, ..settings.params };
    let mut detections = detector.detect(&plane, &params)?;
    let (mut network, mut postprocess) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        detector.detect_into(&plane, &params, &mut detections)?;
        network.push(detections.timings.network);
        postprocess.push(detections.timings.keypoints);
    }
    let model = detector.model();
    let report = Report {
        network_ms: Spread::of(network),
        postprocess_ms: Spread::of(postprocess),
        threads: model.threads,
        size: args.size.to_string(),
        runs: args.runs,
        keypoints: detections.len(),
        weights: model.weights.name.clone(),
    };
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&report)?))?;
    } else {
        let line = |name: &str, spread: &Spread| {
            format!(
                "{name:<12} median {:8.2} ms   min {:8.2} ms   max {:8.2} ms\n",
                spread.median, spread.min, spread.max
            )
        };
        print(&format!(
            "{} at {}, {} runs, {} keypoints\n{}{}",
            model.description,
            report.size,
            report.runs,
            report.keypoints,
            line("network", &report.network_ms),
            line("postprocess", &report.postprocess_ms)
        ))?;
    }
    Ok(Outcome::Done)
}

/// A size that the network takes.
fn network_size(text: &str) -> Result<Size, String> {
    let size = text.parse()?;
    Network::check_size(size).map_err(|error| error.to_string())?;
    Ok(size)
}

/// Reproducible noise, so that no step has an easy picture.
fn noise(size: Size) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(|| {
        // xorshift64, Marsaglia 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 56) as u8
    })
    .take(size.height.saturating_mul(size.width))
    .collect()
}
