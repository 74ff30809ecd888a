//! `superpoint replay`: a recording's images through the detector.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, bail};
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::{DetectorArgs, Outcome, ParamsArgs, WrongUsage, open, print, progress};
use crate::file_identity::FileIdentity;
use crate::log::say;
use crate::replay::analysis::truth::file_beside;
use crate::replay::bag::Recording;
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
    let recording = Recording::open(&args.bag, &stop)?;
    let truth = args.truth.clone().or_else(|| Some(file_beside(&args.bag)).filter(|file| file.is_file()));
    refuse_lost_files(args, &recording, truth.as_ref())?;
    let (topic, kind) = match topic::choose(&recording, args.topic.as_deref()) {
        Ok(chosen) => chosen,
        Err(error) if !recording.damage().is_empty() => {
            recording.damage().iter().for_each(|damage| say(format_args!("superpoint: {damage}")));
            // What is read may have images all the same, in several topics.
            let lead = if matches!(error, TopicError::Ambiguous(_)) { "" } else { "no image can be read: " };
            say(format_args!("superpoint: {lead}{error}"));
            return Ok(Outcome::SomeUnreadable);
        }
        Err(error) => return Err(wrong_topic(error)),
    };
    let replay = Replay {
        path: &args.bag,
        recording: &recording,
        topic: &topic,
        kind,
        start_s: args.start,
        duration_s: args.duration,
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
    print(&format!("{}\n", line(&summary, &replay)))?;
    if summary.interrupted {
        bail!("interrupted; what was found until then is complete");
    }
    Ok(say_what_is_missing(&summary, &topic.name))
}

/// Refuses to write over what is read, and one result over another.
fn refuse_lost_files(args: &ReplayArgs, recording: &Recording, truth: Option<&PathBuf>) -> Result<(), WrongUsage> {
    let reports: Vec<PathBuf> =
        args.report.iter().flat_map(|folder| report::FILES.map(|name| folder.join(name))).collect();
    let unfinished = reports.iter().map(|report| report::unfinished(report));
    if let Some(out) = &args.out
        && reports.iter().cloned().chain(unfinished).any(|report| FileIdentity::of(out) == FileIdentity::of(&report))
    {
        let out = out.display();
        return Err(WrongUsage(format!("{out} would be written twice, the report over the keypoints")));
    }
    let others = [truth, args.compare.as_ref(), args.detector.config.as_ref(), args.detector.weights.as_ref()];
    let metadata = args.bag.join("metadata.yaml");
    let read = recording.files().chain([&metadata]).chain(others.into_iter().flatten());
    let read: Vec<FileIdentity> = read.map(|path| FileIdentity::of(path)).filter(FileIdentity::is_there).collect();
    match args.out.iter().chain(&reports).find(|path| read.contains(&FileIdentity::of(path))) {
        Some(path) => Err(WrongUsage(format!("{} is read, and would be written over", path.display()))),
        None => Ok(()),
    }
}

fn wrong_topic(error: TopicError) -> anyhow::Error {
    if error.is_choice() { WrongUsage(error.to_string()).into() } else { error.into() }
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
fn line(summary: &Summary, replay: &Replay<'_>) -> String {
    let &Summary { images, keypoints, elapsed, network, .. } = summary;
    let topic = &replay.topic.name;
    if images == 0 && summary.read > 0 {
        return format!("no image of {topic} could be used");
    }
    if images == 0 {
        let where_looked = if replay.start_s == 0.0 && replay.duration_s.is_none() { "" } else { "that part of " };
        return format!("no image of {topic} is in {where_looked}the recording");
    }
    let each = keypoints as f64 / images as f64;
    let [seconds, alone] = [elapsed, network].map(|time| time.as_secs_f64());
    let rate = images as f64 / seconds;
    format!(
        "{images} images of {topic}, {each:.1} keypoints in each; {seconds:.1} s, {rate:.2} images a second; \
         {alone:.1} s of it in the network"
    )
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
