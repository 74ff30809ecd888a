//! `superpoint bench p150`: the rows of the published package's speed table, on this machine's card.
//!
//! The protocol is that table's: device time from rounds of replays right after one another, and the time of calls
//! after some that are not measured. Its served rows are `superpoint bench http`'s.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tt_backend::p150::P150Backend;
use tt_backend::resize::Resizer;
use tt_backend::team::Team;
use tt_backend::weights::Weights;
use tt_backend::{Backend as _, BackendChoice, Detections, Plane, Size};

use super::detect::read;
use super::{DetectorArgs, Outcome, WrongUsage, print};
use crate::channel::Channel;
use crate::decode::{self, Samples};
use crate::message::encoding::Range16;
use crate::response::ServingPath;

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  \
    superpoint bench p150 photo.jpg\n  \
    superpoint bench p150 photo.jpg --json > p150.json\n\n\
    The published table was measured on a photo of 1600x900. Take one with ordinary texture: how many keypoints there are\n\
    decides how much is listed, sampled and read. It must be one that the card resizes: 8 bits, sides up to 2048 pixels."
)]
pub(super) struct P150Args {
    /// A PNG or JPEG file
    image: PathBuf,
    /// Rounds of replays, each of which is one sample of the device time
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Replays of a round
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    replays: u32,
    /// Measured calls, after twenty that are not
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    calls: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    detector: DetectorArgs,
}

/// Calls before the first that is measured.
const WARM_UP: u32 = 20;

#[derive(Serialize)]
struct Report {
    device: String,
    weights: String,
    keypoints: usize,
    serving_path: ServingPath,
    rows: Vec<Row>,
}

/// A row of the table.
#[derive(Serialize)]
struct Row {
    speed: &'static str,
    input: String,
    median_ms: f64,
    p99_ms: f64,
    throughput_per_s: f64,
}

impl Row {
    /// Of at least one duration.
    fn of(speed: &'static str, input: String, mut taken: Vec<Duration>) -> Self {
        taken.sort_unstable();
        let milliseconds = |share: usize| taken[(taken.len() * share / 100).min(taken.len() - 1)].as_secs_f64() * 1e3;
        let median_ms = milliseconds(50);
        Self { speed, input, median_ms, p99_ms: milliseconds(99), throughput_per_s: 1e3 / median_ms }
    }
}

pub(super) fn run(args: &P150Args) -> anyhow::Result<Outcome> {
    let settings = args.detector.settings()?;
    let (options, params) = (settings.options, settings.params);
    if options.backend == BackendChoice::Cpu {
        return Err(WrongUsage("`bench p150` measures the card; leave out `--backend cpu`".to_owned()).into());
    }
    let name = || args.image.display().to_string();
    let file = read(&args.image).with_context(name)?;
    let samples = Samples::decode(&file, Channel::First).with_context(name)?;
    let colors = decode::colors(&file, Range16::default()).with_context(name)?;
    let plane = samples.plane()?;
    let size = plane.size();
    let red = Plane::from_u8(colors.as_raw(), size, 3 * size.width, 3)?;
    P150Backend::does_all_of(&plane, &params)
        .map_err(|reason| WrongUsage(format!("{}: {reason}; take another photo or radius", args.image.display())))?;
    let frame = frame(&plane)?;
    let frame = Plane::contiguous(&frame, Size::NETWORK)?;

    let weights = Weights::find(options.weights.as_deref())?;
    let mut card = P150Backend::open(&weights, Size::NETWORK, options.device_id)?;
    let mut found = Detections::default();
    let mut rows = Vec::new();
    let with_resize = match size {
        Size::NETWORK => "Same: a photo of this size needs no resize",
        _ => "Same, with the device resize in front",
    };
    for (speed, input, plane) in [
        ("Device time per image, back-to-back trace replays", format!("{} network frame", Size::NETWORK), &frame),
        (with_resize, format!("{size} image plane"), &plane),
    ] {
        card.detect(plane, &params, &mut found)?;
        let round = || Ok(card.replay(plane.size(), &params, args.replays as usize)? / args.replays);
        let taken: Vec<Duration> =
            std::iter::repeat_with(round).take(args.rounds as usize).collect::<Result<_, tt_backend::Error>>()?;
        rows.push(Row::of(speed, input, taken));
    }
    let mut calls = |work: &mut dyn FnMut(&mut P150Backend) -> anyhow::Result<()>| -> anyhow::Result<Vec<Duration>> {
        (0..WARM_UP).try_for_each(|_| work(&mut card))?;
        let call = || {
            let start = Instant::now();
            work(&mut card)?;
            Ok(start.elapsed())
        };
        std::iter::repeat_with(call).take(args.calls as usize).collect()
    };
    let mut detect = |card: &mut P150Backend, plane: &Plane<'_>| Ok(card.detect(plane, &params, &mut found)?);
    let taken = calls(&mut |card| detect(card, &frame))?;
    rows.push(Row::of("Call", format!("{} uint8 plane", Size::NETWORK), taken));
    let taken = calls(&mut |card| detect(card, &red))?;
    rows.push(Row::of("Call", format!("{size} uint8 RGB array"), taken));
    let taken = calls(&mut |card| detect(card, &Samples::decode(&file, Channel::First)?.plane()?))?;
    rows.push(Row::of("Call, decoding included", format!("{}, {size}", args.image.display()), taken));

    let report = Report {
        device: card.description(),
        weights: weights.provenance.name,
        keypoints: found.len(),
        serving_path: found.serving_path.into(),
        rows,
    };
    print_report(&report, args.json)?;
    Ok(Outcome::Done)
}

/// The network's frame of a plane in 8 bits.
fn frame(plane: &Plane<'_>) -> Result<Vec<u8>, tt_backend::Error> {
    let mut frame = Vec::new();
    Resizer::new(Size::NETWORK).resize(plane, &mut Team::new(1)?, &mut frame);
    Ok(frame.iter().map(|&value| (255.0 * value).round() as u8).collect())
}

fn print_report(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        return print(&format!("{}\n", serde_json::to_string(report)?));
    }
    let mut text = format!("{}, {} keypoints", report.device, report.keypoints);
    if !report.serving_path.device_nms {
        text += "; as many survivors in a column as the card lists or more, so that suppression ran on the host: take another photo";
    }
    for Row { speed, input, median_ms, p99_ms, throughput_per_s } in &report.rows {
        text += &format!(
            "\n{speed:<50} {input:<28} median {median_ms:7.3} ms   p99 {p99_ms:7.3} ms   {throughput_per_s:6.0}/s"
        );
    }
    print(&(text + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_middle_and_the_last_hundredth() {
        let row = Row::of("Call", "480x640".into(), (1..=200).rev().map(Duration::from_millis).collect());
        assert_eq!((row.median_ms.round(), row.p99_ms.round(), row.throughput_per_s.round()), (101.0, 199.0, 10.0));
        let one = Row::of("Call", "480x640".into(), vec![Duration::from_millis(4)]);
        assert_eq!((one.median_ms.round(), one.p99_ms.round()), (4.0, 4.0));
    }
}
