//! `superpoint synth`: a recording with known truth.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use tt_backend::Size;

use super::detect::{read, refuse_lost_files};
use super::{Outcome, WrongUsage, progress};
use crate::channel::luma;
use crate::decode;
use crate::message::encoding::Range16;
use crate::synth::{Motion, Photo, Synth};

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  \
    superpoint synth photo.jpg --out tour.mcap\n  \
    superpoint synth photo.jpg --out shift.mcap --motion 3,-2 --frames 30\n  \
    superpoint synth photo.jpg --out night.mcap --motion still --illumination 0.8 --noise 4 --blur 1\n  \
    superpoint replay tour.mcap --report tour"
)]
pub(super) struct SynthArgs {
    /// A PNG or JPEG file; `-` reads it from standard input
    photo: PathBuf,
    /// The recording; the truth is written beside it, to OUT.truth.json
    #[arg(long, value_name = "OUT.mcap")]
    out: PathBuf,
    /// tour (nearer, farther, turning, tilting), still, or X,Y: pixels from each image to the next, right and down
    #[arg(long, default_value = "tour", allow_hyphen_values = true)]
    motion: Motion,
    /// Number of images
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    frames: u32,
    /// Images a second
    #[arg(long, value_name = "HZ", default_value_t = 10.0, value_parser = within(0.001, 1000.0))]
    rate: f64,
    /// Size of the images, height x width
    #[arg(long, value_name = "HxW", default_value_t = Size::NETWORK)]
    size: Size,
    /// How far the light goes down and up again, 0 (not at all) to 1 (to darkness)
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = within(0.0, 1.0))]
    illumination: f64,
    /// Standard deviation of a Gaussian blur in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 0.0, value_parser = within(0.0, 20.0))]
    blur: f64,
    /// Standard deviation of the noise in levels of 255
    #[arg(long, value_name = "LEVELS", default_value_t = 0.0, value_parser = within(0.0, 100.0))]
    noise: f64,
}

/// A number in a range.
fn within(lowest: f64, highest: f64) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text| {
        let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
        if (lowest..=highest).contains(&number) { Ok(number) } else { Err(format!("must be {lowest} to {highest}")) }
    }
}

pub(super) fn run(args: &SynthArgs) -> anyhow::Result<Outcome> {
    // A larger one would take minutes an image.
    if args.size.height.max(args.size.width) > MAX_SIDE || args.size.height.min(args.size.width) < MIN_SIDE {
        return Err(WrongUsage(format!("size is {}, but sides must be {MIN_SIDE} to {MAX_SIDE}", args.size)).into());
    }
    refuse_lost_files(std::slice::from_ref(&args.photo), [&args.out])?;
    let name = args.photo.display().to_string();
    let picture = read(&args.photo).and_then(|file| Ok(decode::colors(&file, Range16::default())?)).context(name)?;
    let size = Size::new(picture.height() as usize, picture.width() as usize);
    let photo = Photo::new(&luma(&picture, size, 3 * size.width, 3, [0, 1, 2]), size)?;
    let synth = Synth {
        frames: args.frames,
        rate_hz: args.rate,
        size: args.size,
        motion: args.motion,
        illumination: args.illumination,
        blur_px: args.blur,
        noise: args.noise,
    };
    let bar = progress(args.frames.into(), "{pos}/{len} images");
    synth.write(&photo, &args.out, || bar.inc(1))?;
    bar.finish_and_clear();
    Ok(Outcome::Done)
}

const MIN_SIDE: usize = 16;
const MAX_SIDE: usize = 4096;
