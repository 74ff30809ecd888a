//! `superpoint replay`: a recording's images through the detector.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::{DetectorArgs, Outcome, ParamsArgs, WrongUsage, open, print, progress};
use crate::log::say;
use crate::replay::analysis::truth::file_beside;
use crate::replay::bag::{Recording, TimeRange};
use crate::replay::topic::{self, TopicError};
use crate::replay::{Replay, ReportOptions, Summary, report};

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  \
    superpoint replay drive_2026_11_30 --out keypoints.mcap\n  \
    superpoint replay drive.mcap --topic /camera/image_raw --start 10 --duration 60 --every 2 --report report\n  \
    superpoint replay drive.mcap --report new --out new/keypoints.mcap --compare old/report.json\n  \
    superpoint replay tour.mcap --truth tour.truth.json --report tour\n\n\
    Exit status: 0 done, 1 failed, 2 wrong usage, 3 done but the recording or some of its images could not be read."
)]
pub(super) struct ReplayArgs {
    /// A rosbag2 recording: its folder, or one file (MCAP or SQLite, compressed or not)
    bag: PathBuf,
    /// The topic with the images (sensor_msgs Image or CompressedImage); not needed if there is only one
    #[arg(long)]
    topic: Option<String>,
    /// Leave out the first so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    start: f64,
    /// Take only so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<f64>,
    /// Take every N-th image
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Write the keypoints as superpoint_p150/msg/Keypoints, with the images' stamps, for `ros2 bag play` and Foxglove
    #[arg(long, value_name = "OUT.mcap")]
    out: Option<PathBuf>,
    /// Write a report into this folder: report.json, and report.html with plots
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Where each image of a plane was taken from, for repeatability and its kin [default: BAG.truth.json if it is there]
    #[arg(long, value_name = "FILE", requires = "report")]
    truth: Option<PathBuf>,
    /// Put another run beside this one; of one with --out, keypoints are compared one by one
    #[arg(long, value_name = "OTHER.json", requires = "report")]
    compare: Option<PathBuf>,
    #[command(flatten)]
    params: ParamsArgs,
    #[command(flatten)]
    detector: DetectorArgs,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1e9).contains(&number) { Ok(number) } else { Err("must be 0 to 1e9".to_owned()) }
}

pub(super) fn run(args: &ReplayArgs) -> anyhow::Result<Outcome> {
    let mut settings = args.detector.settings()?;
    args.params.apply(&mut settings)?;
    let stop = stop_on_signals()?;
    let recording = Recording::open(&args.bag)?;
    let truth = args.truth.clone().or_else(|| Some(file_beside(&args.bag)).filter(|file| file.is_file()));
    refuse_lost_input(args, &recording, truth.as_ref())?;
    let (topic, kind) = match topic::choose(&recording, args.topic.as_deref()) {
        Ok(chosen) => chosen,
        Err(error) if !recording.damage().is_empty() => {
            recording.damage().iter().for_each(|damage| say(format_args!("superpoint: {damage}")));
            say(format_args!("superpoint: no image can be read: {error}"));
            return Ok(Outcome::SomeUnreadable);
        }
        Err(error) => return Err(wrong_topic(error)),
    };
    let replay = Replay {
        path: &args.bag,
        recording: &recording,
        topic: &topic,
        kind,
        range: range(args, &recording),
        every: args.every as usize,
        out: args.out.clone(),
        report: args.report.clone().map(|folder| ReportOptions { folder, truth, compare: args.compare.clone() }),
    };
    let mut detector = open(&settings)?;

    let bar = progress(BAR_STEPS, "{percent:>3}%, {msg}");
    let summary = replay.run(&settings, &mut detector, &stop, |done, images, rejected| {
        if let Some(reason) = rejected {
            bar.suspend(|| {
                say(format_args!("superpoint: an image cannot be used: {reason} (said once; others are counted)"))
            });
        }
        bar.set_position((f64::from(done) * BAR_STEPS as f64) as u64);
        bar.set_message(format!("{images} images"));
    })?;
    bar.finish_and_clear();
    print(&format!("{}\n", line(&summary, &topic.name)))?;
    if stop.load(Ordering::Relaxed) {
        bail!("interrupted; what was found until then is complete");
    }
    Ok(say_what_is_missing(&summary, &topic.name))
}

/// Refuses to write over what is read.
fn refuse_lost_input(args: &ReplayArgs, recording: &Recording, truth: Option<&PathBuf>) -> Result<(), WrongUsage> {
    let reports = args.report.iter().flat_map(|folder| report::FILES.map(|name| folder.join(name)));
    let written: Vec<PathBuf> = args.out.iter().cloned().chain(reports).collect();
    let others = [truth, args.compare.as_ref(), args.detector.config.as_ref(), args.detector.weights.as_ref()];
    let metadata = args.bag.join("metadata.yaml");
    let read = recording.files().chain([&metadata]).chain(others.into_iter().flatten());
    let read: Vec<PathBuf> = read.filter_map(|path| path.canonicalize().ok()).collect();
    // What is not there yet is nobody's input.
    match written.iter().find(|path| path.canonicalize().is_ok_and(|path| read.contains(&path))) {
        Some(path) => Err(WrongUsage(format!("{} is read, and would be written over", path.display()))),
        None => Ok(()),
    }
}

fn wrong_topic(error: TopicError) -> anyhow::Error {
    if error.is_choice() { WrongUsage(error.to_string()).into() } else { error.into() }
}

/// Seconds from the recording's first message on, as log times.
fn range(args: &ReplayArgs, recording: &Recording) -> TimeRange {
    if args.start == 0.0 && args.duration.is_none() {
        return TimeRange::ALL;
    }
    let first = recording.span().map_or(0, |(first, _)| first);
    let nanoseconds = |seconds: f64| (seconds * 1e9).round() as u64;
    let from = first.saturating_add(nanoseconds(args.start));
    let until = args.duration.map_or(u64::MAX, |duration| from.saturating_add(nanoseconds(duration)));
    TimeRange { from, until }
}

/// Set by the first interrupt, so that the output is closed; the second one ends the program at once.
fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("cannot listen to signals")?;
    }
    Ok(stop)
}

/// The bar's length: parts of the recording.
const BAR_STEPS: u64 = 100_000;

/// One line for people.
fn line(summary: &Summary, topic: &str) -> String {
    let &Summary { images, keypoints, elapsed, .. } = summary;
    let seconds = elapsed.as_secs_f64();
    if images == 0 && summary.read > 0 {
        return format!("no image of {topic} could be used");
    }
    if images == 0 {
        return format!("no image of {topic} was found in that part of the recording");
    }
    let (each, rate) = (keypoints as f64 / images as f64, images as f64 / seconds);
    format!("{images} images of {topic}, {each:.1} keypoints in each; {seconds:.1} s, {rate:.2} images a second")
}

/// Names on standard error what could not be read.
fn say_what_is_missing(summary: &Summary, topic: &str) -> Outcome {
    for damage in &summary.damage {
        say(format_args!("superpoint: {damage}"));
    }
    if let Some(lost) = summary.lost {
        say(format_args!("superpoint: {} images of {topic} were read, {lost} are lost", summary.read));
    }
    for (kind, (count, _)) in &summary.rejected {
        say(format_args!("superpoint: {count} images cannot be used ({kind})"));
    }
    if summary.damage.is_empty() && summary.rejected.is_empty() && summary.lost.is_none() {
        Outcome::Done
    } else {
        Outcome::SomeUnreadable
    }
}
