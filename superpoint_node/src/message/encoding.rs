//! From an image of any supported encoding to the one channel that the network reads.

use std::borrow::Cow;
use std::fmt;

use image::{Rgb, RgbImage};
use tt_backend::{Endian, Plane, Size, gather};

use super::bayer::{Depth, Mosaic};
use super::image::ImageView;
use crate::channel::{Channel, luma, luma_of};

/// Why an image gives no plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// An encoding that is not read.
    Encoding(String),
    /// Height, width, step and data do not fit together.
    Layout(String),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encoding(encoding) => {
                write!(f, "encoding `{}` is not supported (supported: {SUPPORTED})", encoding.escape_default())
            }
            Self::Layout(reason) => write!(f, "inconsistent image: {reason}"),
        }
    }
}

impl std::error::Error for Unusable {}

/// For people; [`Layout::of`] decides.
const SUPPORTED: &str = "mono8, mono16, rgb8, bgr8, rgba8, bgra8, 8UC1, 8UC3, 8UC4, 16UC1, bayer_*8, bayer_*16, \
                         yuv422 and uyvy, yuv422_yuy2 and yuyv, nv12, nv21, nv24";

/// Which 16-bit values are black and white.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range16 {
    /// This value and everything below is 0 to the network.
    pub black: u16,
    /// This value and everything above is 1 to the network.
    pub white: u16,
}

impl Default for Range16 {
    fn default() -> Self {
        Self { black: 0, white: u16::MAX }
    }
}

impl Range16 {
    /// The 8-bit value that looks like `value`.
    pub fn to_8_bits(self, value: u16) -> u8 {
        let (black, white) = (u32::from(self.black), u32::from(self.white));
        let above = u32::from(value).clamp(black, white) - black;
        ((above * 255 + (white - black) / 2) / (white - black).max(1)) as u8
    }
}

/// A text from outside, short enough to be logged and kept.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 40; // the longest name in `image_encodings.hpp` has 12
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

/// How the encodings store a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// One byte in `pixel_stride` is the brightness.
    Gray8 {
        first_byte: usize,
        pixel_stride: usize,
    },
    Gray16,
    /// `channels` bytes a pixel; R, G and B at these offsets.
    Color8 {
        channels: usize,
        rgb: [usize; 3],
    },
    /// A mosaic of values of this many bytes.
    Bayer {
        red: [usize; 2],
        bytes: usize,
    },
}

impl Layout {
    fn of(encoding: &str) -> Option<Self> {
        let color = |channels, rgb| Some(Self::Color8 { channels, rgb });
        match encoding {
            "mono8" | "8UC1" => Some(Self::Gray8 { first_byte: 0, pixel_stride: 1 }),
            "mono16" | "16UC1" => Some(Self::Gray16),
            "rgb8" | "8UC3" => color(3, [0, 1, 2]),
            "bgr8" => color(3, [2, 1, 0]),
            "rgba8" | "8UC4" => color(4, [0, 1, 2]),
            "bgra8" => color(4, [2, 1, 0]),
            // U Y V Y and Y U Y V: of both, Y is a gray image whose pixels are two bytes apart.
            "yuv422" | "uyvy" => Some(Self::Gray8 { first_byte: 1, pixel_stride: 2 }),
            "yuv422_yuy2" | "yuyv" => Some(Self::Gray8 { first_byte: 0, pixel_stride: 2 }),
            // All of Y comes first, then the colours.
            "nv12" | "nv21" | "nv24" => Some(Self::Gray8 { first_byte: 0, pixel_stride: 1 }),
            _ => Self::of_bayer(encoding),
        }
    }

    /// `bayer_rggb8`: the colours of the first row's first two sites, then the second's; then the bits.
    fn of_bayer(encoding: &str) -> Option<Self> {
        let (pattern, bits) = encoding.strip_prefix("bayer_")?.split_at_checked(4)?;
        let red = match pattern {
            "rggb" => [0, 0],
            "grbg" => [0, 1],
            "gbrg" => [1, 0],
            "bggr" => [1, 1],
            _ => return None,
        };
        match bits {
            "8" => Some(Self::Bayer { red, bytes: 1 }),
            "16" => Some(Self::Bayer { red, bytes: 2 }),
            _ => None,
        }
    }

    /// Bytes from one pixel to the next.
    fn pixel_bytes(self) -> usize {
        match self {
            Self::Gray8 { pixel_stride, .. } => pixel_stride,
            Self::Gray16 => 2,
            Self::Color8 { channels, .. } => channels,
            Self::Bayer { bytes, .. } => bytes,
        }
    }
}

/// The pixels of an image message, all of them there.
#[derive(Clone, Copy, Debug)]
pub struct Pixels<'a> {
    layout: Layout,
    data: &'a [u8],
    size: Size,
    row_stride: usize,
    endian: Endian,
}

impl<'a> Pixels<'a> {
    /// Checks encoding and sizes; computes nothing.
    ///
    /// # Errors
    ///
    /// If the encoding is not supported, or the image's sizes contradict each other.
    pub fn of(image: &ImageView<'a>) -> Result<Self, Unusable> {
        let layout = Layout::of(image.encoding).ok_or_else(|| Unusable::Encoding(shortened(image.encoding)))?;
        let size = Size::new(image.height as usize, image.width as usize);
        if size.height == 0 || size.width == 0 {
            return Err(Unusable::Layout(format!("an image needs at least one pixel, this one is {size}")));
        }
        let row_stride = image.step as usize;

        // The whole pixels must fit, not only the channel that is read: half a pixel is a sender's mistake.
        let row_bytes = size.width.saturating_mul(layout.pixel_bytes());
        if row_stride < row_bytes {
            return Err(Unusable::Layout(format!(
                "step is {row_stride} bytes, but a row of {} {} pixels takes {row_bytes}",
                size.width, image.encoding
            )));
        }
        // The last row may come without its padding, as OpenCV's sub-images do.
        let needed = (size.height - 1).saturating_mul(row_stride).saturating_add(row_bytes);
        if image.data.len() < needed {
            return Err(Unusable::Layout(format!(
                "data has {} bytes, but {} rows of step {row_stride} take {needed}",
                image.data.len(),
                size.height
            )));
        }
        if size.height > Plane::MAX_SIDE || size.width > Plane::MAX_SIDE {
            return Err(Unusable::Layout(format!(
                "no side may be longer than {} pixels, this image is {size}",
                Plane::MAX_SIDE
            )));
        }
        let endian = if image.is_bigendian { Endian::Big } else { Endian::Little };
        Ok(Self { layout, data: image.data, size, row_stride, endian })
    }

    /// The channel that the network reads. Only luma and what a mosaic lacks is computed; every other channel stays
    /// in the message.
    pub fn samples(&self, channel: Channel, range: Range16) -> Samples<'a> {
        let borrowed = |first_byte: usize, pixel_stride, wide| Samples {
            data: Cow::Borrowed(self.data.get(first_byte..).unwrap_or_default()),
            size: self.size,
            row_stride: self.row_stride,
            pixel_stride,
            wide,
            range,
        };
        match (self.layout, channel) {
            (Layout::Gray8 { first_byte, pixel_stride }, _) => borrowed(first_byte, pixel_stride, None),
            (Layout::Gray16, _) => borrowed(0, 2, Some(self.endian)),
            (Layout::Color8 { channels, rgb }, Channel::First) => borrowed(rgb[0], channels, None),
            (Layout::Color8 { channels, rgb }, Channel::Luma) => Samples {
                data: Cow::Owned(luma(self.data, self.size, self.row_stride, channels, rgb)),
                size: self.size,
                row_stride: self.size.width,
                pixel_stride: 1,
                wide: None,
                range,
            },
            (Layout::Bayer { red, bytes }, channel) => {
                let mosaic = self.mosaic(red, bytes);
                let values = match channel {
                    Channel::First => mosaic.red(),
                    Channel::Luma => {
                        let (green, blue) = (mosaic.green(), mosaic.blue());
                        let rgb = mosaic.red().into_iter().zip(green).zip(blue);
                        rgb.map(|((r, g), b)| luma_of([r, g, b])).collect()
                    }
                };
                let (data, wide) = match bytes {
                    1 => (values.into_iter().map(|value| value as u8).collect(), None),
                    _ => (values.into_iter().flat_map(u16::to_le_bytes).collect(), Some(Endian::Little)),
                };
                Samples {
                    data: Cow::Owned(data),
                    size: self.size,
                    row_stride: self.size.width * bytes,
                    pixel_stride: bytes,
                    wide,
                    range,
                }
            }
        }
    }

    /// The image in colour, to draw on. Of YUV encodings only the brightness is taken.
    pub fn to_rgb8(&self, range: Range16) -> RgbImage {
        // Sides are at most `Plane::MAX_SIDE`.
        let (width, height) = (self.size.width as u32, self.size.height as u32);
        let row = |y: u32| &self.data[y as usize * self.row_stride..];
        match self.layout {
            Layout::Gray8 { first_byte, pixel_stride } => {
                RgbImage::from_fn(width, height, |x, y| Rgb([row(y)[first_byte + x as usize * pixel_stride]; 3]))
            }
            Layout::Gray16 => RgbImage::from_fn(width, height, |x, y| {
                let pair = &row(y)[2 * x as usize..];
                let bytes = [pair[0], pair[1]];
                let value =
                    if self.endian == Endian::Big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) };
                Rgb([range.to_8_bits(value); 3])
            }),
            Layout::Color8 { channels, rgb } => RgbImage::from_fn(width, height, |x, y| {
                let pixel = &row(y)[channels * x as usize..];
                Rgb(rgb.map(|offset| pixel[offset]))
            }),
            Layout::Bayer { red, bytes } => {
                let mosaic = self.mosaic(red, bytes);
                let planes = [mosaic.red(), mosaic.green(), mosaic.blue()];
                RgbImage::from_fn(width, height, |x, y| {
                    let at = y as usize * self.size.width + x as usize;
                    let value = |plane: &Vec<u16>| match bytes {
                        1 => plane[at] as u8,
                        _ => range.to_8_bits(plane[at]),
                    };
                    Rgb([value(&planes[0]), value(&planes[1]), value(&planes[2])])
                })
            }
        }
    }

    fn mosaic(&self, red: [usize; 2], bytes: usize) -> Mosaic<'a> {
        let depth = match (bytes, self.endian) {
            (1, _) => Depth::Bits8,
            (_, Endian::Little) => Depth::Bits16Little,
            (_, Endian::Big) => Depth::Bits16Big,
        };
        Mosaic { data: self.data, size: self.size, row_stride: self.row_stride, depth, red }
    }
}

/// The samples of one channel: in the message where they lie, or computed.
#[derive(Debug)]
pub struct Samples<'a> {
    data: Cow<'a, [u8]>,
    size: Size,
    row_stride: usize,
    pixel_stride: usize,
    /// The byte order of 16-bit samples; `None` when they are bytes.
    wide: Option<Endian>,
    range: Range16,
}

impl Samples<'_> {
    /// The same samples without the message, row by row without gaps: only what was read of it is kept.
    pub fn into_owned(self) -> Samples<'static> {
        let bytes = if self.wide.is_some() { 2 } else { 1 };
        let Size { height, width } = self.size;
        let data = match self.data {
            Cow::Owned(data) => data, // computed, so without gaps
            Cow::Borrowed(data) => {
                let mut gathered = vec![0; height * width * bytes];
                for (row, out) in data.chunks(self.row_stride).zip(gathered.chunks_exact_mut(width * bytes)) {
                    // Samples of two bytes lie side by side in every encoding.
                    gather(row, self.pixel_stride / bytes, out);
                }
                gathered
            }
        };
        Samples { data: Cow::Owned(data), row_stride: width * bytes, pixel_stride: bytes, ..self }
    }

    /// The plane that the detector takes.
    ///
    /// # Errors
    ///
    /// Of [`tt_backend`], when the range is empty; [`Pixels::of`] has checked all else.
    pub fn plane(&self) -> Result<Plane<'_>, tt_backend::Error> {
        match self.wide {
            None => Plane::from_u8(&self.data, self.size, self.row_stride, self.pixel_stride),
            Some(endian) => Plane::from_u16(&self.data, self.size, self.row_stride, self.pixel_stride, endian)?
                .with_range_16bit(self.range.black, self.range.white),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::message::image::{HeaderView, Stamp};

    fn image<'a>(encoding: &'a str, height: u32, width: u32, step: u32, data: &'a [u8]) -> ImageView<'a> {
        let header = HeaderView { stamp: Stamp { sec: 0, nanosec: 0 }, frame_id: "cam" };
        ImageView { header, height, width, encoding, is_bigendian: false, step, data }
    }

    fn read<'a>(image: &ImageView<'a>, channel: Channel) -> Result<Samples<'a>, Unusable> {
        Pixels::of(image).map(|pixels| pixels.samples(channel, Range16::default()))
    }

    /// The samples, read the slow way; the same without the message.
    fn values(samples: &Samples<'_>) -> Vec<Vec<u32>> {
        let values = values_where_they_lie(samples);
        let Samples { data, size, row_stride, pixel_stride, wide, range } = samples;
        let copy = Samples {
            data: data.clone(),
            size: *size,
            row_stride: *row_stride,
            pixel_stride: *pixel_stride,
            wide: *wide,
            range: *range,
        };
        assert_eq!(values_where_they_lie(&copy.into_owned()), values);
        values
    }

    fn values_where_they_lie(samples: &Samples<'_>) -> Vec<Vec<u32>> {
        let at = |y: usize, x: usize| {
            let start = y * samples.row_stride + x * samples.pixel_stride;
            match samples.wide {
                None => u32::from(samples.data[start]),
                Some(Endian::Little) => u32::from(samples.data[start]) | u32::from(samples.data[start + 1]) << 8,
                Some(Endian::Big) => u32::from(samples.data[start + 1]) | u32::from(samples.data[start]) << 8,
            }
        };
        (0..samples.size.height).map(|y| (0..samples.size.width).map(|x| at(y, x)).collect()).collect()
    }

    #[test]
    fn first_means_red_in_every_byte_order() {
        // Two rows of one pixel, a byte of padding after each.
        let three = [1, 2, 3, 0, 4, 5, 6, 0];
        let four = [1, 2, 3, 9, 0, 4, 5, 6, 9, 0];
        for (encoding, step, data, expected) in [
            ("rgb8", 4, &three[..], [1, 4]),
            ("8UC3", 4, &three, [1, 4]),
            ("bgr8", 4, &three, [3, 6]),
            ("rgba8", 5, &four, [1, 4]),
            ("8UC4", 5, &four, [1, 4]),
            ("bgra8", 5, &four, [3, 6]),
        ] {
            let samples = read(&image(encoding, 2, 1, step, data), Channel::First).unwrap();
            assert_eq!(values(&samples), [[expected[0]], [expected[1]]], "{encoding}");
            assert!(matches!(samples.data, Cow::Borrowed(_)), "{encoding}: no copy");
        }
    }

    #[test]
    fn luma_weighs_the_colours_where_they_are() {
        // Pillow: Image.new("RGB", (1, 1), c).convert("L") gives 76, 150, 29 for pure R, G, B and 124 for the last.
        let data = [255, 0, 0, 0, 255, 0, 0, 0, 255, 200, 100, 50, 0xee];
        let rgb = read(&image("rgb8", 1, 4, 13, &data), Channel::Luma).unwrap();
        assert_eq!(values(&rgb), [[76, 150, 29, 124]]);
        let bgr = read(&image("bgr8", 1, 3, 9, &data), Channel::Luma).unwrap();
        assert_eq!(values(&bgr), [[29, 150, 76]]);
        let gray = read(&image("mono8", 1, 2, 2, &[7, 8]), Channel::Luma).unwrap();
        assert_eq!(values(&gray), [[7, 8]]);
    }

    #[test]
    fn sixteen_bits_follow_is_bigendian_and_eight_bits_ignore_it() {
        let data = [1, 2, 3, 4];
        let mut wide = image("mono16", 1, 2, 4, &data);
        assert_eq!(values(&read(&wide, Channel::First).unwrap()), [[0x0201, 0x0403]]);
        wide.is_bigendian = true;
        assert_eq!(values(&read(&wide, Channel::First).unwrap()), [[0x0102, 0x0304]]);
        let narrow = ImageView { encoding: "8UC1", width: 4, ..wide };
        assert_eq!(values(&read(&narrow, Channel::First).unwrap()), [[1, 2, 3, 4]]);
    }

    #[test]
    fn of_yuv_the_brightness_is_read_where_it_lies() {
        let packed = [1, 2, 3, 4, 5, 6, 7, 8];
        let planar = [1, 2, 3, 4, 0xee, 0xee];
        for (encoding, step, data, expected) in [
            ("yuv422", 8, &packed[..], [2, 4, 6, 8]),
            ("uyvy", 8, &packed, [2, 4, 6, 8]),
            ("yuv422_yuy2", 8, &packed, [1, 3, 5, 7]),
            ("yuyv", 8, &packed, [1, 3, 5, 7]),
            ("nv12", 4, &planar, [1, 2, 3, 4]),
            ("nv21", 4, &planar, [1, 2, 3, 4]),
            ("nv24", 4, &planar, [1, 2, 3, 4]),
        ] {
            for channel in [Channel::First, Channel::Luma] {
                let samples = read(&image(encoding, 1, 4, step, data), channel).unwrap();
                assert_eq!(values(&samples), [expected], "{encoding}");
                assert!(matches!(samples.data, Cow::Borrowed(_)), "{encoding}: no copy");
            }
        }
    }

    #[test]
    fn each_bayer_pattern_has_its_red_elsewhere() {
        let data = [10, 20, 30, 40];
        for (encoding, red, [r, g, b]) in [
            ("bayer_rggb8", 10, [10, 25, 40]),
            ("bayer_grbg8", 20, [20, 25, 30]),
            ("bayer_gbrg8", 30, [30, 25, 20]),
            ("bayer_bggr8", 40, [40, 25, 10]),
        ] {
            let view = image(encoding, 2, 2, 2, &data);
            assert_eq!(values(&read(&view, Channel::First).unwrap()), [[red; 2]; 2], "{encoding}");
            let rgb = Pixels::of(&view).unwrap().to_rgb8(Range16::default());
            // Green is a site's own value or the mean of its neighbours, of which mirroring shows two twice.
            let [[r0, g0, b0]] = [rgb.get_pixel(0, 0).0];
            assert_eq!((r0, b0), (r, b), "{encoding}");
            assert!(g0.abs_diff(g) <= 15, "{encoding}: {g0}");
        }
        let wide = [0x01, 0x02, 0, 0, 0, 0, 0, 0];
        let mut view = image("bayer_rggb16", 2, 2, 4, &wide);
        assert_eq!(values(&read(&view, Channel::First).unwrap()), [[0x0201; 2]; 2]);
        view.is_bigendian = true;
        assert_eq!(values(&read(&view, Channel::First).unwrap()), [[0x0102; 2]; 2]);
    }

    #[test]
    fn luma_of_a_mosaic_weighs_all_three_colours() {
        let data = [200, 100, 100, 50]; // rggb of one colour; Pillow gives 124 for it
        assert_eq!(values(&read(&image("bayer_rggb8", 2, 2, 2, &data), Channel::Luma).unwrap()), [[124; 2]; 2]);
    }

    #[test]
    fn sixteen_bits_are_shown_in_their_range() {
        let range = Range16 { black: 100, white: 355 };
        assert_eq!([0, 100, 101, 355, 65535].map(|value| range.to_8_bits(value)), [0, 0, 1, 255, 255]);
        let full = Range16::default();
        assert_eq!([0, 257, 32896, 65535].map(|value| full.to_8_bits(value)), [0, 1, 128, 255]);
    }

    #[test]
    fn contradictory_sizes_are_refused_with_their_numbers() {
        for (view, text) in [
            (image("mono8", 2, 4, 3, &[0; 100]), "step is 3 bytes, but a row of 4 mono8 pixels takes 4"),
            (image("rgb8", 2, 4, 0, &[0; 100]), "step is 0"),
            (image("mono8", 3, 4, 4, &[0; 11]), "data has 11 bytes, but 3 rows of step 4 take 12"),
            (image("rgb8", u32::MAX, u32::MAX, u32::MAX, &[0; 11]), "step is 4294967295"),
            (image("mono8", u32::MAX, u32::MAX, u32::MAX, &[0; 11]), "data has 11 bytes"),
            (image("mono8", 0, 4, 4, &[]), "at least one pixel"),
            (image("bgr8", 4, 0, 0, &[]), "at least one pixel"),
        ] {
            let error = Pixels::of(&view).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        assert!(read(&image("mono8", 2, 3, 5, &[0; 8]), Channel::First).is_ok(), "last row unpadded");
    }

    #[test]
    fn an_unknown_encoding_is_named() {
        for encoding in ["bayer_rgbg8", "bayer_rggb", "bayer_rggb32", "", "32FC1", "mono8 ", "\u{1b}[2J"] {
            let error = read(&image(encoding, 1, 1, 1, &[0]), Channel::First).unwrap_err();
            assert_eq!(error, Unusable::Encoding(encoding.into()));
            assert!(!error.to_string().contains('\u{1b}'), "control characters stay out of the log");
        }
        let long = read(&image(&"ü".repeat(100_000), 1, 1, 1, &[0]), Channel::First).unwrap_err();
        assert_eq!(long, Unusable::Encoding(format!("{}... (200000 bytes)", "ü".repeat(40))));
    }
}
