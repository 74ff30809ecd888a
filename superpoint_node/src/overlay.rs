//! Keypoints drawn on the picture: a ring each, from red (the lowest score) to yellow (the highest).

use image::{Rgb, RgbImage};
use tt_backend::Detections;

use crate::pixel_centres::PixelCentres;

/// Draws a ring around every keypoint.
pub fn draw(picture: &mut RgbImage, detections: &Detections) {
    let longest = detections.original.width.max(detections.original.height) as f64;
    // Three pixels on a picture of 640, and as large to the eye on any other.
    let radius = (longest / 640.0 * 3.0).max(2.0);
    let thickness = (radius / 3.0).max(1.0);
    let (highest, lowest) = match (detections.scores.first(), detections.scores.last()) {
        (Some(&highest), Some(&lowest)) => (highest, lowest),
        _ => return,
    };
    // The best last, so that they lie on top.
    for (index, &score) in detections.scores.iter().enumerate().rev() {
        ring(picture, center(detections, index), radius, thickness, color(score, lowest, highest));
    }
}

/// The centre of a keypoint's pixel of the network frame in the original's pixels, whose centres are integers.
pub fn center(detections: &Detections, index: usize) -> (f64, f64) {
    let [x, y] = PixelCentres::of(detections).map(detections.points[index]);
    (f64::from(x), f64::from(y))
}

/// Colours that neighbours in a list do not share: steps of the golden angle round the colour wheel.
pub fn hue(index: usize) -> Rgb<u8> {
    let turn = (index as f64 * 0.618_033_988_75).fract() * 6.0;
    let channel = |shift: f64| {
        let distance = ((turn + shift) % 6.0 - 3.0).abs() - 1.0;
        (255.0 * distance.clamp(0.0, 1.0)).round() as u8
    };
    Rgb([channel(0.0), channel(4.0), channel(2.0)])
}

/// A straight line, half covering what is below it.
pub fn line(picture: &mut RgbImage, (x0, y0): (f64, f64), (x1, y1): (f64, f64), ink: Rgb<u8>) {
    let steps = (x1 - x0).abs().max((y1 - y0).abs()).ceil().max(1.0);
    for step in 0..=steps as u32 {
        let along = f64::from(step) / steps;
        let (x, y) = ((x0 + (x1 - x0) * along).round(), (y0 + (y1 - y0) * along).round());
        if x >= 0.0 && y >= 0.0 && x < f64::from(picture.width()) && y < f64::from(picture.height()) {
            blend(picture.get_pixel_mut(x as u32, y as u32), ink, 0.6);
        }
    }
}

/// Lays ink over a pixel, of which it covers a part.
fn blend(pixel: &mut Rgb<u8>, ink: Rgb<u8>, cover: f64) {
    for (value, &ink) in pixel.0.iter_mut().zip(&ink.0) {
        *value = (f64::from(*value) * (1.0 - cover) + f64::from(ink) * cover).round() as u8;
    }
}

/// Red to yellow on a logarithmic scale: scores spread over two orders of magnitude.
fn color(score: f32, lowest: f32, highest: f32) -> Rgb<u8> {
    let position = if highest > lowest && lowest > 0.0 { (score / lowest).ln() / (highest / lowest).ln() } else { 1.0 };
    Rgb([255, (255.0 * position.clamp(0.0, 1.0)).round() as u8, 0])
}

/// A circle line with soft edges.
fn ring(picture: &mut RgbImage, (cx, cy): (f64, f64), radius: f64, thickness: f64, color: Rgb<u8>) {
    let reach = radius + thickness;
    let range = |center: f64, side: u32| {
        let first = (center - reach).ceil().max(0.0) as u32;
        let last = (center + reach).floor().max(-1.0) + 1.0;
        first..(last as u32).min(side)
    };
    for y in range(cy, picture.height()) {
        for x in range(cx, picture.width()) {
            let distance = (f64::from(x) - cx).hypot(f64::from(y) - cy);
            // How much of the pixel the line covers, seen across the line.
            let cover = (thickness / 2.0 + 0.5 - (distance - radius).abs()).clamp(0.0, 1.0);
            if cover > 0.0 {
                blend(picture.get_pixel_mut(x, y), color, cover);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_its_ink_on_the_line_and_none_in_the_middle() {
        let mut picture = RgbImage::new(21, 21);
        ring(&mut picture, (10.0, 10.0), 5.0, 1.0, Rgb([255, 0, 0]));
        for on_the_line in [(15, 10), (5, 10), (10, 15), (10, 5)] {
            assert_eq!(picture.get_pixel(on_the_line.0, on_the_line.1).0, [255, 0, 0]);
        }
        assert_eq!(picture.get_pixel(10, 10).0, [0, 0, 0]);
        assert_eq!(picture.get_pixel(18, 10).0, [0, 0, 0]);
    }

    #[test]
    fn rings_may_cross_the_border_or_lie_beyond_it() {
        let mut picture = RgbImage::new(4, 4);
        for center in [(0.0, 0.0), (3.9, -0.5), (-50.0, 2.0), (2.0, 90.0)] {
            ring(&mut picture, center, 3.0, 1.0, Rgb([255, 255, 0]));
        }
        assert!(picture.pixels().any(|pixel| pixel.0 != [0, 0, 0]));
    }

    #[test]
    fn colors_go_from_red_to_yellow() {
        assert_eq!(color(0.005, 0.005, 0.5).0, [255, 0, 0]);
        assert_eq!(color(0.05, 0.005, 0.5).0, [255, 128, 0]);
        assert_eq!(color(0.5, 0.005, 0.5).0, [255, 255, 0]);
        assert_eq!(color(0.5, 0.5, 0.5).0, [255, 255, 0]);
    }
}
