//! The report on a replay: JSON for programs, one page for people.
//!
//! | module | what it is |
//! |---|---|
//! | [`Report`] | what both are made of |
//! | `html` | the page, which needs nothing from outside |
//! | `plots` | its pictures, SVG |

mod html;
mod plots;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tt_backend::Model;

use super::analysis::{AgreementFigures, Figures, Frames, Measured, Spread};
use super::{Replay, Summary};
use crate::response::Defaults;
use crate::settings::Settings;

/// Name of the file for programs.
const JSON: &str = "report.json";
/// Name of the page.
const HTML: &str = "report.html";
/// All that a report writes into its folder.
pub const FILES: [&str; 2] = [JSON, HTML];

/// What a file of the report is called while it is written.
pub(crate) fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

/// What the JSON begins with; changes when a field changes its meaning.
const FORMAT: &str = "superpoint replay report 1";

/// All of a report.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Report {
    /// `superpoint replay report 1`.
    pub format: String,
    /// What made the keypoints.
    pub made_by: MadeBy,
    /// What they were made from.
    pub recording: RecordingInfo,
    /// The file with the keypoints, if they were written; relative to the report where it lies in or below its folder.
    pub keypoints_file: Option<PathBuf>,
    /// Images that could not be used, by kind.
    pub rejected: BTreeMap<String, u64>,
    /// The summary.
    pub figures: Figures,
    /// How far the keypoints agree with the other run's.
    pub agreement: Option<AgreementFigures>,
    /// Number of tracks of each length, from 1 image on.
    pub track_lengths: Vec<u64>,
    /// Scores, and places in the frame.
    pub spread: Spread,
    /// Each image.
    pub frames: Frames,
}

/// Program, backend, weights and parameters.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct MadeBy {
    /// `superpoint` and its version.
    pub program: String,
    /// As `cpu, 2 threads`.
    pub backend: String,
    /// Name of the weights.
    pub weights: String,
    /// Of the weights file.
    pub weights_sha256: String,
    /// As users write them.
    pub params: serde_json::Value,
    /// Height and width of the network frame.
    pub network: [usize; 2],
}

/// The recording, and what of it was read.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RecordingInfo {
    /// Its folder or file.
    pub path: String,
    /// The topic with the images.
    pub topic: String,
    /// What the topic carries.
    pub message_type: String,
    /// So many seconds at its beginning were left out.
    #[serde(default)]
    pub start_s: f64,
    /// So many seconds were taken; none: all that follow.
    #[serde(default)]
    pub duration_s: Option<f64>,
    /// Every so many images.
    pub every: usize,
    /// Messages that were read, those that were skipped over included.
    pub messages: u64,
    /// What could not be read, and why.
    pub damage: Vec<String>,
    /// Messages that are missing, where that is known.
    pub lost: Option<u64>,
    /// Whether the replay was stopped before the end.
    #[serde(default)]
    pub interrupted: bool,
}

impl Report {
    /// Puts together what a replay measured. `folder` is where the report will lie.
    pub(super) fn new(
        replay: &Replay<'_>,
        settings: &Settings,
        model: &Model,
        summary: &Summary,
        measured: Measured,
        folder: &Path,
    ) -> Self {
        let Measured { frames, spread, track_lengths, figures, agreement } = measured;
        Self {
            format: FORMAT.to_owned(),
            made_by: MadeBy::of(settings, model),
            recording: RecordingInfo {
                path: replay.path.display().to_string(),
                topic: replay.topic.name.clone(),
                message_type: replay.topic.message_type.clone(),
                start_s: replay.start_s,
                duration_s: replay.duration_s,
                every: replay.every,
                messages: summary.read,
                damage: summary.damage.iter().map(ToString::to_string).collect(),
                lost: summary.lost,
                interrupted: summary.interrupted,
            },
            keypoints_file: replay.out.as_deref().map(|out| portable(out, folder)),
            rejected: summary.rejected.iter().map(|(kind, (count, _))| (kind.clone(), *count)).collect(),
            figures,
            agreement,
            track_lengths,
            spread,
            frames,
        }
    }

    /// Reads another run's report.
    ///
    /// # Errors
    ///
    /// If it is none, of another version, or contradicts itself.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let context = || format!("cannot read report {}", path.display());
        let bytes = std::fs::read(path).with_context(context)?;
        let value: serde_json::Value = serde_json::from_slice(&bytes).with_context(context)?;
        match value.get("format").and_then(|format| format.as_str()) {
            Some(FORMAT) => {
                let report: Self = serde_json::from_value(value).with_context(context)?;
                if !(report.frames.is_sound() && report.spread.is_complete()) {
                    bail!("{} is damaged: its columns contradict each other", path.display());
                }
                Ok(report)
            }
            Some(other) => bail!("{} is no `{FORMAT}`, but `{other:.40}`", path.display()),
            None => bail!("{} is no `{FORMAT}`: it has no format", path.display()),
        }
    }

    /// Where the keypoints of a report lie, seen from here.
    pub fn keypoints_of(&self, report: &Path) -> Option<PathBuf> {
        let file = self.keypoints_file.as_ref()?;
        Some(report.parent().unwrap_or(Path::new("")).join(file))
    }

    /// Writes both files into a folder; the JSON last, so that where it is, the report is complete. `other` is another
    /// run, beside which this one is put.
    ///
    /// # Errors
    ///
    /// If the files cannot be written.
    pub fn write(&self, folder: &Path, other: Option<&Self>) -> anyhow::Result<()> {
        let put = |name: &str, content: &str| {
            let path = folder.join(name);
            let unfinished = unfinished(&path);
            std::fs::write(&unfinished, content)
                .and_then(|()| std::fs::rename(&unfinished, &path))
                .inspect_err(|_| drop(std::fs::remove_file(&unfinished)))
                .with_context(|| format!("cannot write {}", path.display()))
        };
        put(HTML, &html::page(self, other)?)?;
        put(JSON, &serde_json::to_string(self)?)
    }
}

impl MadeBy {
    fn of(settings: &Settings, model: &Model) -> Self {
        Self {
            program: concat!("superpoint ", env!("CARGO_PKG_VERSION")).to_owned(),
            backend: model.description.clone(),
            weights: model.weights.name.clone(),
            weights_sha256: model.weights.sha256.clone(),
            params: serde_json::to_value(Defaults::new(&settings.params, settings.channel)).unwrap_or_default(),
            network: [model.network.height, model.network.width],
        }
    }
}

/// A path that still leads to the file when the report's folder is moved together with it.
pub(super) fn portable(file: &Path, folder: &Path) -> PathBuf {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (file, folder) = (absolute(file), absolute(folder));
    file.strip_prefix(&folder).map(Path::to_owned).unwrap_or(file)
}
