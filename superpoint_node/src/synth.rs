//! A recording with known truth: a camera that moves over a photo, and the homography of every image.
//!
//! Every pixel of an image is the mean of a grid of samples of the photo, fine enough that each pixel of the photo below
//! it counts, so nothing flickers that does not flicker in a camera. The truth is exact: samples are taken where the
//! homography says, not on a grid of the photo.

use std::path::Path;

use anyhow::{Context as _, bail};
use tt_backend::{Plane, Size};

use crate::message::image::{HeaderView, ImageView, Stamp};
use crate::replay::analysis::truth::{TruthFile, TruthFrame, file_beside};
use crate::replay::geometry::Homography;
use crate::replay::output::{Definition, Output};

/// Topic of the images.
pub const TOPIC: &str = "/camera/image_raw";

/// When the first image is taken, in seconds: any time but 0, which ROS takes for none.
const START_SECS: i32 = 1_000_000_000;

/// How the camera moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Motion {
    /// Not at all.
    Still,
    /// By so many pixels of the image from each image to the next, right and down; the scene moves the other way.
    Shift(f64, f64),
    /// Along a closed path, nearer and farther, turning and tilting.
    Tour,
}

impl std::str::FromStr for Motion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shift = || {
            let (x, y) = text.split_once(',')?;
            let number = |text: &str| text.trim().parse::<f64>().ok().filter(|value| value.abs() <= 1e4);
            Some(Self::Shift(number(x)?, number(y)?))
        };
        match text {
            "still" => Ok(Self::Still),
            "tour" => Ok(Self::Tour),
            _ => shift().ok_or_else(|| format!("motion is `{text}`, but must be `still`, `tour` or two numbers `X,Y`")),
        }
    }
}

/// What is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Synth {
    /// Number of images.
    pub frames: u32,
    /// Images a second.
    pub rate_hz: f64,
    /// Size of the images.
    pub size: Size,
    /// How the camera moves.
    pub motion: Motion,
    /// By how much the light goes up and down, 0 (not at all) to 1 (down to darkness).
    pub illumination: f64,
    /// Standard deviation of a Gaussian blur, in pixels of the image.
    pub blur_px: f64,
    /// Standard deviation of the sensor's noise, in levels of 255.
    pub noise: f64,
}

impl Synth {
    /// Writes the recording to `out` and the truth beside it; calls `tell` after each image.
    ///
    /// # Errors
    ///
    /// If the photo is too small for the motion, or the files cannot be written.
    pub fn write(&self, photo: &Photo, out: &Path, tell: impl Fn()) -> anyhow::Result<()> {
        let views = self.views(photo.size)?;
        let beside = file_beside(out);
        let written = || format!("cannot write {}", beside.display());
        let mut output = Output::create(out, TOPIC, &Definition::IMAGE)?;
        // The truth of an earlier recording shall not be taken for that of one that is not finished.
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).with_context(written),
            _ => {}
        }
        let mut truth = TruthFile { frames: Vec::new() };
        for (index, view) in views.iter().enumerate() {
            let seconds = index as f64 / self.rate_hz;
            let nanoseconds = (seconds.fract() * 1e9).round() as u32;
            let stamp = Stamp {
                sec: START_SECS + seconds as i32 + (nanoseconds / 1_000_000_000) as i32,
                nanosec: nanoseconds % 1_000_000_000,
            };
            let pixels = self.image(photo, view, index);
            let image = ImageView {
                header: HeaderView { stamp, frame_id: "camera" },
                height: self.size.height as u32,
                width: self.size.width as u32,
                encoding: "mono8",
                is_bigendian: false,
                step: self.size.width as u32,
                data: &pixels,
            };
            let time = u64::from(stamp.sec.cast_unsigned()) * 1_000_000_000 + u64::from(stamp.nanosec);
            output.write(time, time, &image.serialize())?;
            truth.frames.push(TruthFrame { stamp: (stamp.sec, stamp.nanosec), reference_from_image: view.rows() });
            tell();
        }
        output.finish()?;
        std::fs::write(&beside, serde_json::to_string(&truth)?).with_context(written)
    }

    /// From pixels of each image to pixels of the photo, as large as fits into the photo.
    fn views(&self, photo: Size) -> anyhow::Result<Vec<Homography>> {
        let fits = |zoom: f64| {
            let views: Vec<Homography> = (0..self.frames).map(|index| self.view(index, zoom, photo)).collect();
            views.iter().all(|view| self.is_inside(view, photo)).then_some(views)
        };
        // At a zoom of 1 a pixel of the image is one of the photo, in the middle of the motion. Halving finds the largest
        // up to that which keeps all images on the photo.
        if let Some(views) = fits(1.0) {
            return Ok(views);
        }
        let (mut low, mut high) = (0.0, 1.0);
        let mut best = None;
        for _ in 0..30 {
            let middle = (low + high) / 2.0;
            match fits(middle) {
                Some(views) => {
                    low = middle;
                    best = Some(views);
                }
                None => high = middle,
            }
        }
        match best {
            Some(views) if low >= MIN_ZOOM => Ok(views),
            _ => bail!(
                "the photo, {photo}, is too small for {} images of {} with this motion; take fewer images or a larger photo",
                self.frames,
                self.size
            ),
        }
    }

    /// Where the camera is for one image.
    fn view(&self, index: u32, zoom: f64, photo: Size) -> Homography {
        let (width, height) = (self.size.width as f64, self.size.height as f64);
        let middle = [(width - 1.0) / 2.0, (height - 1.0) / 2.0];
        let target = [(photo.width as f64 - 1.0) / 2.0, (photo.height as f64 - 1.0) / 2.0];
        let from_middle = Homography::scaling([1.0, 1.0], middle.map(|value| -value));
        let (motion, shift) = match self.motion {
            Motion::Still => (Homography::identity(), [0.0; 2]),
            Motion::Shift(x, y) => {
                let steps = f64::from(index) - f64::from(self.frames - 1) / 2.0;
                (Homography::identity(), [x * steps, y * steps])
            }
            Motion::Tour => {
                let turn = std::f64::consts::TAU * f64::from(index) / f64::from(self.frames);
                let (angle, nearness) = (0.35 * turn.sin(), 0.85 + 0.15 * (2.0 * turn).cos());
                let (sin, cos) = (angle.sin() * nearness, angle.cos() * nearness);
                // Tilting takes a quarter of a size at most from one side of the image to the other.
                let tilt = [0.12 * (turn + 1.0).sin() / width, 0.12 * (2.0 * turn).sin() / height];
                let turned = Homography::from_rows([[cos, -sin, 0.0], [sin, cos, 0.0], [tilt[0], tilt[1], 1.0]]);
                (turned, [0.2 * width * turn.cos(), 0.2 * height * turn.sin()])
            }
        };
        let onto_photo = Homography::scaling([zoom; 2], [target[0] + zoom * shift[0], target[1] + zoom * shift[1]]);
        from_middle.then(&motion).then(&onto_photo)
    }

    /// Whether an image shows nothing beside the photo, the blur's reach included.
    fn is_inside(&self, view: &Homography, photo: Size) -> bool {
        let reach = 0.5 + 3.0 * self.blur_px;
        let (right, bottom) = (self.size.width as f64 - 1.0 + reach, self.size.height as f64 - 1.0 + reach);
        let inside = |[x, y]: [f64; 2]| {
            (0.0..=photo.width as f64 - 1.0).contains(&x) && (0.0..=photo.height as f64 - 1.0).contains(&y)
        };
        [[-reach, -reach], [right, -reach], [-reach, bottom], [right, bottom]]
            .iter()
            .all(|&corner| inside(view.map(corner)))
    }

    fn image(&self, photo: &Photo, view: &Homography, index: usize) -> Vec<u8> {
        let Size { height, width } = self.size;
        let margin = (3.0 * self.blur_px).ceil() as usize;
        let mut light = photo.rendered(view, self.size, margin);
        if margin > 0 {
            light = blurred(&light, Size::new(height + 2 * margin, width + 2 * margin), margin, self.blur_px);
        }
        let gain = 1.0 - self.illumination * 0.5 * (1.0 - (0.37 * index as f64).cos());
        let mut noise = Noise::new(index as u64);
        light
            .iter()
            .map(|value| (f64::from(*value) * gain + self.noise * noise.next()).round().clamp(0.0, 255.0) as u8)
            .collect()
    }
}

/// A photo would have to be blown up so much for its images to show only blur.
const MIN_ZOOM: f64 = 0.05;

/// The photo that the camera looks at: one channel.
#[derive(Debug)]
pub struct Photo {
    size: Size,
    levels: Vec<f32>,
}

impl Photo {
    /// Of 8-bit samples, row by row.
    ///
    /// # Errors
    ///
    /// If there are not as many as `size` says.
    pub fn new(samples: &[u8], size: Size) -> Result<Self, tt_backend::Error> {
        Plane::contiguous(samples, size)?;
        Ok(Self { size, levels: samples[..size.height * size.width].iter().map(|&level| f32::from(level)).collect() })
    }

    /// The image that a view shows, with `margin` more pixels on each side.
    fn rendered(&self, view: &Homography, size: Size, margin: usize) -> Vec<f32> {
        let (height, width) = (size.height + 2 * margin, size.width + 2 * margin);
        let grid = self.samples_per_side(view, size);
        let offsets: Vec<f64> = (0..grid).map(|step| (step as f64 + 0.5) / grid as f64 - 0.5).collect();
        let mut image = Vec::with_capacity(height * width);
        for row in 0..height {
            for column in 0..width {
                let mut sum = 0.0;
                for down in &offsets {
                    for right in &offsets {
                        let at = [column as f64 - margin as f64 + right, row as f64 - margin as f64 + down];
                        sum += self.at(view.map(at));
                    }
                }
                image.push(sum / (grid * grid) as f32);
            }
        }
        image
    }

    /// Samples along a pixel's side, so that they are at most half a pixel of the photo apart.
    fn samples_per_side(&self, view: &Homography, size: Size) -> usize {
        let (right, bottom) = (size.width as f64 - 1.0, size.height as f64 - 1.0);
        let span = |at: [f64; 2], step: [f64; 2]| {
            let ([x, y], [u, v]) = (view.map(at), view.map([at[0] + step[0], at[1] + step[1]]));
            (x - u).hypot(y - v)
        };
        let corners = [[0.0, 0.0], [right, 0.0], [0.0, bottom], [right, bottom]];
        let widest = corners.iter().map(|&at| span(at, [1.0, 0.0]).max(span(at, [0.0, 1.0]))).fold(0.0, f64::max);
        ((2.0 * widest).ceil() as usize).clamp(1, 16)
    }

    /// Between four pixels, bilinearly; beyond the border its nearest pixel.
    fn at(&self, [x, y]: [f64; 2]) -> f32 {
        let place = |value: f64, count: usize| {
            let value = value.clamp(0.0, (count - 1) as f64);
            let first = (value as usize).min(count.saturating_sub(2));
            (first, (first + 1).min(count - 1), (value - first as f64) as f32)
        };
        let (left, right, across) = place(x, self.size.width);
        let (above, below, down) = place(y, self.size.height);
        let level = |row: usize, column: usize| self.levels[row * self.size.width + column];
        let upper = level(above, left) + (level(above, right) - level(above, left)) * across;
        let lower = level(below, left) + (level(below, right) - level(below, left)) * across;
        upper + (lower - upper) * down
    }
}

/// The inner part of an image after a Gaussian blur; the margin is what the blur reaches.
fn blurred(image: &[f32], size: Size, margin: usize, sigma: f64) -> Vec<f32> {
    let weights: Vec<f64> =
        (0..=2 * margin).map(|at| (-0.5 * ((at as f64 - margin as f64) / sigma).powi(2)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let weights: Vec<f32> = weights.iter().map(|weight| (weight / sum) as f32).collect();
    let (inner_height, inner_width) = (size.height - 2 * margin, size.width - 2 * margin);
    let rows: Vec<f32> = image
        .chunks_exact(size.width)
        .flat_map(|row| row.windows(weights.len()).map(|window| window.iter().zip(&weights).map(|(a, b)| a * b).sum()))
        .collect();
    let mut inner = vec![0.0; inner_height * inner_width];
    for (y, out) in inner.chunks_exact_mut(inner_width).enumerate() {
        for (step, weight) in weights.iter().enumerate() {
            let row = &rows[(y + step) * inner_width..][..inner_width];
            out.iter_mut().zip(row).for_each(|(out, value)| *out += weight * value);
        }
    }
    inner
}

/// Normally distributed numbers, the same for the same image: xorshift64 (Marsaglia 2003), Box and Muller (1958).
struct Noise(u64);

impl Noise {
    fn new(image: u64) -> Self {
        Self((image + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> f64 {
        let mut uniform = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), std::f64::consts::TAU * uniform());
        radius * angle.cos()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn synth(motion: Motion) -> Synth {
        Synth { frames: 7, rate_hz: 10.0, size: Size::new(48, 64), motion, illumination: 0.0, blur_px: 0.0, noise: 0.0 }
    }

    fn photo(height: usize, width: usize) -> Photo {
        let samples: Vec<u8> = (0..height * width).map(|at| ((at / width * 7) ^ (at % width * 13)) as u8).collect();
        Photo::new(&samples, Size::new(height, width)).unwrap()
    }

    #[test]
    fn a_shift_moves_every_pixel_by_as_much() {
        let photo = photo(200, 200);
        let synth = synth(Motion::Shift(3.0, -2.0));
        let views = synth.views(photo.size).unwrap();
        let [first, second] = [0, 1].map(|index| synth.image(&photo, &views[index], index));
        for y in 2..40 {
            for x in 0..60 {
                assert_eq!(second[y * 64 + x], first[(y - 2) * 64 + x + 3], "{x} {y}");
            }
        }
        let motion = views[0].then(&views[1].inverse().unwrap());
        let [x, y] = motion.map([10.0, 20.0]);
        assert!((x - 7.0).abs() < 1e-9 && (y - 22.0).abs() < 1e-9);
    }

    #[test]
    fn the_truth_says_where_a_spot_is() {
        // One bright spot on the photo: its centre of mass in each image is where the truth maps it.
        let size = Size::new(300, 400);
        let mut samples = vec![0; 300 * 400];
        for (y, x) in (148..153).flat_map(|y| (198..203).map(move |x| (y, x))) {
            samples[y * 400 + x] = 200;
        }
        let photo = Photo::new(&samples, size).unwrap();
        let synth = Synth { size: Size::new(120, 160), ..synth(Motion::Tour) };
        for (index, view) in synth.views(size).unwrap().iter().enumerate() {
            let image = synth.image(&photo, view, index);
            let (mut mass, mut x, mut y) = (0.0, 0.0, 0.0);
            for (at, &level) in image.iter().enumerate() {
                let level = f64::from(level);
                (mass, x, y) = (mass + level, x + level * (at % 160) as f64, y + level * (at / 160) as f64);
            }
            let [expected_x, expected_y] = view.inverse().unwrap().map([200.0, 150.0]);
            assert!(mass > 0.0, "image {index} does not show it");
            assert!((x / mass - expected_x).abs() < 0.05 && (y / mass - expected_y).abs() < 0.05, "image {index}");
        }
    }

    #[test]
    fn fine_patterns_become_gray_instead_of_flickering() {
        // A checkerboard of single pixels, seen from four times as far: every pixel is the mean.
        let samples: Vec<u8> = (0..400 * 400).map(|at| if (at / 400 + at % 400) % 2 == 0 { 255 } else { 0 }).collect();
        let photo = Photo::new(&samples, Size::new(400, 400)).unwrap();
        for shift in [0.0, 0.3, 0.5] {
            let view = Homography::scaling([4.0, 4.0], [shift, shift]);
            let image = photo.rendered(&view, Size::new(60, 60), 0);
            assert!(image[61..].iter().all(|level| (level - 127.5).abs() < 6.0), "shifted by {shift}");
        }
    }

    #[test]
    fn light_blur_and_noise_do_what_they_say() {
        let flat = Photo::new(&[100; 200 * 200], Size::new(200, 200)).unwrap();
        let base = synth(Motion::Still);
        let view = base.views(flat.size).unwrap()[0];
        let levels = |synth: Synth, index| synth.image(&flat, &view, index);
        assert!(levels(Synth { blur_px: 1.5, ..base }, 0).iter().all(|&level| level == 100));
        let dark = levels(Synth { illumination: 0.5, ..base }, 8); // cos(8 * 0.37) = -0.98
        assert!(dark.iter().all(|&level| level == 50), "{}", dark[0]);
        let noisy = levels(Synth { noise: 5.0, ..base }, 3);
        let mean = noisy.iter().map(|&level| f64::from(level)).sum::<f64>() / noisy.len() as f64;
        let variance = noisy.iter().map(|&level| (f64::from(level) - mean).powi(2)).sum::<f64>() / noisy.len() as f64;
        assert!((mean - 100.0).abs() < 0.5 && (variance.sqrt() - 5.0).abs() < 0.3, "{mean} {variance}");
    }

    #[test]
    fn a_photo_that_is_too_small_is_refused() {
        let synth = Synth { frames: 1000, ..synth(Motion::Shift(500.0, 0.0)) };
        let error = synth.views(Size::new(200, 200)).unwrap_err().to_string();
        assert!(error.contains("too small") && error.contains("1000 images"), "{error}");
        assert!(Synth { frames: 1, ..synth }.views(Size::new(200, 200)).is_ok());
    }
}
