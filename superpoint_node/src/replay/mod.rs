//! A recording's images through the detector: keypoints out, and a report on them.
//!
//! | module | what it is |
//! |---|---|
//! | [`bag`] | recordings in, as one stream of messages |
//! | [`topic`] | which topic is replayed |
//! | `picture` | from a message to the channel that the detector takes |
//! | `pipeline` | the threads: reading, decoding, detection, results |
//! | `output` | recordings out |
//! | [`analysis`] | figures of the keypoints |
//! | [`report`] | JSON, and a page with plots |
//! | `geometry` | homographies, epipolar geometry, RANSAC |

pub mod analysis;
pub mod bag;
pub(crate) mod geometry;
pub(crate) mod output;
mod picture;
mod pipeline;
pub mod report;
pub mod topic;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tt_backend::Detector;

use self::analysis::agreement::Agreement;
use self::analysis::truth::Truth;
use self::analysis::{AgreementFigures, Analysis};
use self::bag::{Damage, Recording, TimeRange, Topic};
use self::output::{Definition, Output};
use self::pipeline::Outcome;
use self::report::Report;
use self::topic::ImageKind;
use crate::file_identity::FileIdentity;
use crate::message::keypoints;
use crate::settings::Settings;

/// Topic of the keypoints in the output, as the node publishes them outside any namespace.
const OUTPUT_TOPIC: &str = "/keypoints";

/// Which images of a recording are replayed, and what for.
#[derive(Debug)]
pub struct Replay<'a> {
    /// Where the recording lies.
    pub path: &'a Path,
    /// The recording.
    pub recording: &'a Recording,
    /// The topic with the images.
    pub topic: &'a Topic,
    /// How they are stored.
    pub kind: ImageKind,
    /// So many seconds of the recording, from its first message on, are left out.
    pub start_s: f64,
    /// So many seconds are taken; `None` takes all that follow.
    pub duration_s: Option<f64>,
    /// 1 takes every image, 2 every second one.
    pub every: usize,
    /// Where the keypoints are written.
    pub out: Option<PathBuf>,
    /// What is reported on them.
    pub report: Option<ReportOptions>,
}

/// What a report is made with.
#[derive(Debug)]
pub struct ReportOptions {
    /// Where it is written; made if it is not there.
    pub folder: PathBuf,
    /// The true motion, see [`analysis::truth::TruthFile`].
    pub truth: Option<PathBuf>,
    /// The report of another run, to put beside this one.
    pub compare: Option<PathBuf>,
}

/// A report that is being measured.
struct Reporting {
    folder: PathBuf,
    other: Option<Report>,
    analysis: Analysis,
}

impl Reporting {
    /// `out` is where this run's keypoints will be written.
    fn begin(options: &ReportOptions, out: Option<&Path>) -> anyhow::Result<Self> {
        let ReportOptions { folder, truth, compare } = options;
        let other = compare.as_deref().map(Report::read).transpose()?;
        let keypoints = other.as_ref().zip(compare.as_deref()).and_then(|(other, path)| other.keypoints_of(path));
        if other.is_some() && keypoints.is_none() {
            tracing::warn!("the other run was made without --out, so its keypoints cannot be compared one by one");
        }
        if let Some((theirs, ours)) = keypoints.as_deref().zip(out)
            && FileIdentity::of(theirs) == FileIdentity::of(ours)
        {
            bail!("{} holds the other run's keypoints and would be written over; choose another --out", ours.display());
        }
        if let Some(out) = out
            && report::portable(out, folder).to_str().is_none()
        {
            bail!("the report cannot name {}, which is not UTF-8; choose another --out", out.display());
        }
        let agreement = keypoints.as_deref().map(Agreement::with).transpose()?;
        let truth = truth.as_deref().map(Truth::read).transpose()?;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
        Ok(Self { folder: folder.clone(), other, analysis: Analysis::new(truth, agreement) })
    }

    /// Removes a report of an earlier run: where this one fails, none shall be taken for its own.
    fn remove_earlier(&self) -> anyhow::Result<()> {
        for name in report::FILES {
            match std::fs::remove_file(self.folder.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error)
                        .with_context(|| format!("cannot replace the report in {}", self.folder.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// What a replay came to.
#[derive(Debug, Default)]
pub struct Summary {
    /// Messages read from the recording, in range, whether or not they were skipped over.
    pub read: u64,
    /// Images in which keypoints were looked for.
    pub images: u64,
    /// Keypoints in all images.
    pub keypoints: u64,
    /// Images that could not be used, by kind, with the reason for the first.
    pub rejected: BTreeMap<String, (u64, String)>,
    /// What could not be read.
    pub damage: Vec<Damage>,
    /// Images that are missing, where the recording says how many it had.
    pub lost: Option<u64>,
    /// Whether it was stopped before the end.
    pub interrupted: bool,
    /// How long it took.
    pub elapsed: Duration,
    /// How long the network alone took, while the other steps ran beside it.
    pub network: Duration,
}

impl Replay<'_> {
    /// When the images were recorded that are replayed, as log times.
    fn range(&self) -> TimeRange {
        if self.start_s == 0.0 && self.duration_s.is_none() {
            return TimeRange::ALL;
        }
        let first = self.recording.span().map_or(0, |(first, _)| first);
        let nanoseconds = |seconds: f64| (seconds * 1e9).round() as u64;
        let from = first.saturating_add(nanoseconds(self.start_s));
        let until = self.duration_s.map_or(u64::MAX, |duration| from.saturating_add(nanoseconds(duration)));
        TimeRange { from, until }
    }

    /// Runs the images through the detector. `tell` hears how much of the recording is done, 0 to 1, how many images
    /// that were, and for the first image of each kind that cannot be used, why. Ends early, in good order, when `stop`
    /// is set.
    ///
    /// # Errors
    ///
    /// When the detector fails, or the output cannot be written. What is written until then is in good order.
    pub fn run(
        &self,
        settings: &Settings,
        detector: &mut Detector,
        stop: &AtomicBool,
        tell: impl Fn(f32, u64, Option<&str>) + Send + Sync,
    ) -> anyhow::Result<Summary> {
        let start = Instant::now();
        // The report's folder may be where the output goes.
        let mut reporting =
            self.report.as_ref().map(|options| Reporting::begin(options, self.out.as_deref())).transpose()?;
        let mut output =
            self.out.as_deref().map(|out| Output::create(out, OUTPUT_TOPIC, &Definition::KEYPOINTS)).transpose()?;
        if let Some(reporting) = &reporting {
            reporting.remove_earlier()?;
        }
        let mut summary = Summary::default();
        let sink = |outcome: Outcome, progress: f32| {
            let mut reason = None;
            match outcome {
                Outcome::Detected(found) => {
                    summary.images += 1;
                    summary.keypoints += found.detections.len() as u64;
                    summary.network += found.detections.timings.network;
                    if let Some(output) = &mut output {
                        let header = &found.header;
                        let message = keypoints::serialize(&header.view(), &found.detections, settings.descriptor_type);
                        output.write(header.log_time, header.publish_time, &message)?;
                    }
                    if let Some(Reporting { analysis, .. }) = &mut reporting {
                        analysis.add(found);
                    }
                }
                Outcome::Rejected(rejected) => {
                    let count = summary.rejected.entry(rejected.kind).or_insert((0, rejected.reason.clone()));
                    count.0 += 1;
                    reason = (count.0 == 1).then_some(rejected.reason);
                }
            }
            tell(progress, summary.images, reason.as_deref());
            Ok(())
        };
        let range = self.range();
        let messages = self.recording.messages(self.topic, range);
        let end = pipeline::run(messages, self.every, self.kind, settings, detector, stop, sink);
        // Also of a replay that failed, what it wrote shall be readable.
        let closed = output.map_or(Ok(()), Output::finish);
        let end = end?;
        closed?;
        summary.read = end.read;
        summary.damage = end.damage;
        summary.elapsed = start.elapsed();
        summary.interrupted = stop.load(Ordering::Relaxed);
        // Of a part of the recording, or of one that was not read to its end, nobody knows how many there should be.
        if range == TimeRange::ALL && !summary.interrupted {
            let promised = self.recording.promised(self.topic).unwrap_or(0).max(self.topic.count);
            summary.lost = promised.checked_sub(summary.read).filter(|&lost| lost > 0);
        }
        if let Some(Reporting { folder, other, analysis }) = reporting {
            let measured = analysis.finish(summary.elapsed);
            if summary.images > 0 && measured.figures.truth_unknown == Some(summary.images) {
                tracing::warn!("the truth knows none of the images: their headers' stamps are not in it");
            }
            for damage in measured.agreement.iter().flat_map(|figures| &figures.damage) {
                tracing::warn!("of the other run's keypoints not all can be read: {damage}");
            }
            let is_of_another = |figures: &AgreementFigures| figures.images == 0 && figures.damage.is_empty();
            if summary.images > 0 && measured.agreement.as_ref().is_some_and(is_of_another) {
                tracing::warn!("the other run has no image of the same log time; is it of this recording?");
            }
            Report::new(self, settings, detector.model(), &summary, measured, &folder)
                .write(&folder, other.as_ref())?;
        }
        Ok(summary)
    }
}
