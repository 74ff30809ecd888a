//! `superpoint detect`: keypoints of picture files.

use std::collections::HashSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use tt_backend::Detections;

use super::{DetectorArgs, Outcome, ParamsArgs, WrongUsage, open, print, progress};
use crate::decode::{self, Samples};
use crate::file_identity::FileIdentity;
use crate::log::say;
use crate::message::encoding::Range16;
use crate::npz::Npz;
use crate::overlay;
use crate::response::{Response, halves};

/// The most bytes that a picture file may have.
const MAX_FILE_BYTES: u64 = 512 << 20;

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  \
    superpoint detect photo.jpg\n  \
    superpoint detect photo.jpg --overlay keypoints.png\n  \
    superpoint detect *.png --json --no-descriptors | jq .num_keypoints\n  \
    cat photo.jpg | superpoint detect - --npz photo.npz"
)]
pub(super) struct DetectArgs {
    /// PNG or JPEG files; `-` reads one from standard input
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// Print one JSON object a picture: the fields of the server's /predict, and `file`
    #[arg(long)]
    json: bool,
    /// Write keypoints, scores and descriptors as NumPy's npz; for several pictures, a folder
    #[arg(long, value_name = "FILE")]
    npz: Option<PathBuf>,
    /// Write the picture with its keypoints as PNG; for several pictures, a folder
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
    #[command(flatten)]
    params: ParamsArgs,
    #[command(flatten)]
    detector: DetectorArgs,
}

#[derive(Serialize)]
struct Line<'a> {
    file: &'a str,
    #[serde(flatten)]
    response: Response,
}

pub(super) fn run(args: &DetectArgs) -> anyhow::Result<Outcome> {
    let mut settings = args.detector.settings()?;
    args.params.apply(&mut settings)?;
    let targets = args.images.iter().map(|path| Targets::of(args, path)).collect::<Vec<_>>();
    refuse_lost_files(&args.images, targets.iter().flat_map(Targets::iter))?;
    let mut detector = open(&settings)?;
    if args.images.len() > 1 {
        for folder in [&args.npz, &args.overlay].into_iter().flatten() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("for several pictures {folder:?} must be a folder, which cannot be made"))?;
        }
    }

    let progress = match args.images.len() {
        1 => ProgressBar::hidden(),
        count => progress(count as u64, "{pos}/{len} pictures"),
    };
    let mut unreadable = 0;
    for (path, targets) in args.images.iter().zip(&targets) {
        let start = Instant::now();
        match read(path).and_then(|bytes| Ok((Samples::decode(&bytes, settings.channel)?, bytes))) {
            Err(error) => {
                unreadable += 1;
                progress.suspend(|| say(format_args!("superpoint: {}: {error:#}", path.display())));
            }
            Ok((samples, bytes)) => {
                let decoded = start.elapsed();
                let detections = detector.detect(&samples.plane()?, &settings.params)?;
                let response = |detections| Response::new(detections, &settings.params, decoded);
                let file = path.display().to_string();
                progress.suspend(|| {
                    if args.json {
                        let line = Line { file: &file, response: response(&detections)? };
                        print(&format!("{}\n", serde_json::to_string(&line)?))
                    } else {
                        print(&format!("{file}: {}\n", summary(&detections)))
                    }
                })?;
                write_files(targets, &bytes, &detections)?;
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    if unreadable == args.images.len() {
        bail!("no picture could be read");
    }
    Ok(if unreadable > 0 { Outcome::SomeUnreadable } else { Outcome::Done })
}

pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    } else {
        std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    }
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bail!("it has more than {MAX_FILE_BYTES} bytes");
    }
    Ok(bytes)
}

/// One line for people.
fn summary(detections: &Detections) -> String {
    let timings = detections.timings;
    let milliseconds = (timings.resize + timings.network + timings.keypoints).as_secs_f64() * 1e3;
    match (detections.scores.first(), detections.scores.last()) {
        (Some(highest), Some(lowest)) => {
            format!("{} keypoints, scores {highest:.3} to {lowest:.3}, {milliseconds:.0} ms", detections.len())
        }
        _ => format!("no keypoints, {milliseconds:.0} ms"),
    }
}

/// Files that are written for one picture.
struct Targets {
    npz: Option<PathBuf>,
    overlay: Option<PathBuf>,
}

impl Targets {
    /// For several pictures the options name folders, and the picture's name is kept but for its last ending.
    fn of(args: &DetectArgs, picture: &Path) -> Self {
        let target = |option: &Option<PathBuf>, ending: &str| {
            let option = option.as_ref()?;
            if args.images.len() == 1 {
                return Some(option.clone());
            }
            let mut name = if picture == Path::new("-") { "stdin".into() } else { picture.file_stem()?.to_owned() };
            name.push(ending);
            Some(option.join(name))
        };
        Self { npz: target(&args.npz, ".npz"), overlay: target(&args.overlay, ".png") }
    }

    fn iter(&self) -> impl Iterator<Item = &PathBuf> {
        self.npz.iter().chain(&self.overlay)
    }
}

/// Refuses arguments with which one file would be written over another, or over a picture that is read.
pub(super) fn refuse_lost_files<'a>(
    pictures: &[PathBuf],
    targets: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), WrongUsage> {
    let pictures: HashSet<FileIdentity> = pictures.iter().map(|picture| FileIdentity::of(picture)).collect();
    let mut written = HashSet::new();
    for target in targets {
        let identity = FileIdentity::of(target);
        if pictures.contains(&identity) {
            return Err(WrongUsage(format!("{} would be written over a picture that is read", target.display())));
        }
        // Devices such as /dev/stdout may be named twice.
        if !written.insert(identity) && !target.starts_with("/dev") {
            return Err(WrongUsage(format!("{} would be written twice, one over the other", target.display())));
        }
    }
    Ok(())
}

fn write_files(targets: &Targets, bytes: &[u8], detections: &Detections) -> anyhow::Result<()> {
    if let Some(file) = &targets.npz {
        std::fs::write(file, npz(detections)?).with_context(|| format!("cannot write {file:?}"))?;
    }
    if let Some(file) = &targets.overlay {
        let mut drawing = decode::colors(bytes, Range16::default())?;
        overlay::draw(&mut drawing, detections);
        drawing.save_with_format(file, image::ImageFormat::Png).with_context(|| format!("cannot write {file:?}"))?;
    }
    Ok(())
}

/// `keypoints` (N x 2, `[x, y]` as in the JSON), `scores` (N) and, if computed, `descriptors` (N x 256, float16).
fn npz(detections: &Detections) -> anyhow::Result<Vec<u8>> {
    let (scale_x, scale_y) = detections.scale();
    let count = detections.len();
    let mut npz = Npz::default();
    let points = detections.points.iter().flat_map(|&[x, y]| [f64::from(x) * scale_x, f64::from(y) * scale_y]);
    npz.add("keypoints", &[count, 2], &points.map(|value| value as f32).collect::<Vec<_>>());
    npz.add("scores", &[count], &detections.scores);
    if let Some(descriptors) = detections.descriptors() {
        let (rows, columns) = descriptors.dim();
        npz.add("descriptors", &[rows, columns], &halves(descriptors.as_slice().unwrap_or_default()));
    }
    Ok(npz.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: DetectArgs,
    }

    fn check(line: &str) -> Result<Vec<PathBuf>, String> {
        let args = Program::parse_from(std::iter::once("detect").chain(line.split(' '))).args;
        let targets: Vec<_> = args.images.iter().map(|path| Targets::of(&args, path)).collect();
        refuse_lost_files(&args.images, targets.iter().flat_map(Targets::iter)).map_err(|error| error.to_string())?;
        Ok(targets.iter().flat_map(Targets::iter).cloned().collect())
    }

    #[test]
    fn dotted_names_keep_their_numbers() {
        let files = check("frame.0001.png frame.0002.png --npz out").unwrap();
        assert_eq!(files, [Path::new("out/frame.0001.npz"), Path::new("out/frame.0002.npz")]);
        assert_eq!(check("a.png --overlay o.x").unwrap(), [Path::new("o.x")]);
    }

    #[test]
    fn nothing_is_written_over_anything() {
        for line in [
            "a/x.png b/x.png --npz out",
            "x.png x.jpg --overlay out",
            "a.png --npz o --overlay o",
            "a.png --overlay a.png",
        ] {
            assert!(check(line).is_err(), "{line}");
        }
        // An existing file is known under any of its names.
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.png"), "").unwrap();
        let folder = folder.path().display();
        assert!(check(&format!("{folder}/a.png b.png --overlay {folder}/.")).is_err());
        assert!(check("- --npz /dev/stdout --overlay /dev/stdout").is_ok());
    }
}
