//! `superpoint match`: the same points in two pictures.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use image::RgbImage;
use serde::Serialize;
use tt_backend::{Detections, Detector};

use super::detect::{read, refuse_lost_files};
use super::{DetectorArgs, Outcome, ParamsArgs, WrongUsage, open, print};
use crate::decode::{self, Samples};
use crate::matching::{Match, mutual_nearest};
use crate::message::encoding::Range16;
use crate::overlay;
use crate::response::ImageSize;
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  \
    superpoint match left.jpg right.jpg --overlay matches.png\n  \
    superpoint match left.jpg right.jpg --json --min-similarity 0.8 | jq '.matches | length'"
)]
pub(super) struct MatchArgs {
    /// A PNG or JPEG file; `-` reads it from standard input
    #[arg(value_name = "A")]
    first: PathBuf,
    /// Another
    #[arg(value_name = "B")]
    second: PathBuf,
    /// Draw both pictures side by side with their matches, as PNG
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
    /// Print one JSON object with all matches
    #[arg(long)]
    json: bool,
    /// Leave out matches whose descriptors are less alike than this, -1 to 1 (the cosine of their angle)
    #[arg(long, value_name = "COSINE", default_value_t = 0.0, value_parser = cosine)]
    min_similarity: f32,
    #[command(flatten)]
    params: ParamsArgs,
    #[command(flatten)]
    detector: DetectorArgs,
}

fn cosine(text: &str) -> Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (-1.0..=1.0).contains(&number) { Ok(number) } else { Err("must be -1 to 1".to_owned()) }
}

/// One of the two pictures.
#[derive(Serialize)]
struct Side {
    file: String,
    num_keypoints: usize,
    original_size: ImageSize,
    #[serde(skip)]
    bytes: Vec<u8>,
    #[serde(skip)]
    detections: Detections,
}

#[derive(Serialize)]
struct Report<'a> {
    first: &'a Side,
    second: &'a Side,
    num_matches: usize,
    matches: Vec<MatchLine>,
}

#[derive(Serialize)]
struct MatchLine {
    /// Indices of the keypoints, in the order of their scores.
    keypoints: [usize; 2],
    /// `[x, y]` in each picture's pixels, as in the server's answers.
    points: [[f64; 2]; 2],
    similarity: f32,
}

impl Side {
    fn detect(path: &Path, settings: &Settings, detector: &mut Detector) -> anyhow::Result<Self> {
        let file = path.display().to_string();
        let bytes = read(path).with_context(|| file.clone())?;
        let samples = Samples::decode(&bytes, settings.channel).with_context(|| file.clone())?;
        let detections = detector.detect(&samples.plane()?, &settings.params)?;
        Ok(Self { file, num_keypoints: detections.len(), original_size: samples.size().into(), bytes, detections })
    }

    fn point(&self, index: usize) -> [f64; 2] {
        let (scale_x, scale_y) = self.detections.scale();
        let [x, y] = self.detections.points[index];
        [f64::from(x) * scale_x, f64::from(y) * scale_y]
    }
}

pub(super) fn run(args: &MatchArgs) -> anyhow::Result<Outcome> {
    let stdin = Path::new("-");
    if args.first == stdin && args.second == stdin {
        return Err(WrongUsage("only one of the pictures can come from standard input".to_owned()).into());
    }
    refuse_lost_files(&[args.first.clone(), args.second.clone()], &args.overlay)?;
    let mut settings = args.detector.settings()?;
    args.params.apply(&mut settings)?;
    if args.params.no_descriptors {
        return Err(WrongUsage("matches need descriptors; leave out `--no-descriptors`".to_owned()).into());
    }
    // A configuration without descriptors is for the node's topic; here they are what it is about.
    settings.params.return_descriptors = true;
    let mut detector = open(&settings)?;
    let first = Side::detect(&args.first, &settings, &mut detector)?;
    let second = Side::detect(&args.second, &settings, &mut detector)?;
    let mut matches = mutual_nearest(&first.detections, &second.detections);
    matches.retain(|found| found.similarity >= args.min_similarity);

    if let Some(file) = &args.overlay {
        draw(&first, &second, &matches)?
            .save_with_format(file, image::ImageFormat::Png)
            .with_context(|| format!("cannot write {file:?}"))?;
    }
    if args.json {
        let lines = matches.iter().map(|found| MatchLine {
            keypoints: [found.first, found.second],
            points: [first.point(found.first), second.point(found.second)],
            similarity: found.similarity,
        });
        let matches = lines.collect::<Vec<_>>();
        let report = Report { first: &first, second: &second, num_matches: matches.len(), matches };
        print(&format!("{}\n", serde_json::to_string(&report)?))?;
    } else {
        let (a, b) = (first.num_keypoints, second.num_keypoints);
        print(&format!("{} matches; {a} keypoints in {}, {b} in {}\n", matches.len(), first.file, second.file))?;
    }
    Ok(Outcome::Done)
}

/// Both pictures side by side, keypoints as rings, matches as lines.
fn draw(first: &Side, second: &Side, matches: &[Match]) -> anyhow::Result<RgbImage> {
    let range = Range16::default();
    let (mut left, mut right) = (decode::colors(&first.bytes, range)?, decode::colors(&second.bytes, range)?);
    overlay::draw(&mut left, &first.detections);
    overlay::draw(&mut right, &second.detections);
    let mut both = RgbImage::new(left.width() + right.width(), left.height().max(right.height()));
    image::imageops::replace(&mut both, &left, 0, 0);
    image::imageops::replace(&mut both, &right, i64::from(left.width()), 0);
    let offset = f64::from(left.width());
    for found in matches {
        let start = overlay::center(&first.detections, found.first);
        let (x, y) = overlay::center(&second.detections, found.second);
        overlay::line(&mut both, start, (x + offset, y), overlay::hue(found.first));
    }
    Ok(both)
}
