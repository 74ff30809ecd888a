//! From an image of any supported encoding to the one channel that the network reads.

use std::borrow::Cow;
use std::fmt;

use tt_backend::{Endian, Plane, Size};

use super::image::ImageView;
use crate::channel::{Channel, luma};

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
            Self::Encoding(encoding) => write!(
                f,
                "encoding `{}` is not supported (supported: mono8, mono16, rgb8, bgr8, rgba8, bgra8, 8UC1, 8UC3, 8UC4, \
                 16UC1)",
                encoding.escape_default()
            ),
            Self::Layout(reason) => write!(f, "inconsistent image: {reason}"),
        }
    }
}

impl std::error::Error for Unusable {}

/// How the encodings store a pixel. A further kind (Bayer, YUV) is a further variant here and an arm in
/// [`Samples::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Gray8,
    Gray16,
    /// `channels` bytes a pixel; R, G and B at these offsets.
    Color8 {
        channels: usize,
        rgb: [usize; 3],
    },
}

impl Layout {
    fn of(encoding: &str) -> Option<Self> {
        let color = |channels, rgb| Some(Self::Color8 { channels, rgb });
        match encoding {
            "mono8" | "8UC1" => Some(Self::Gray8),
            "mono16" | "16UC1" => Some(Self::Gray16),
            "rgb8" | "8UC3" => color(3, [0, 1, 2]),
            "bgr8" => color(3, [2, 1, 0]),
            "rgba8" | "8UC4" => color(4, [0, 1, 2]),
            "bgra8" => color(4, [2, 1, 0]),
            _ => None,
        }
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
}

impl<'a> Samples<'a> {
    /// Finds the channel in an image. Only luma is computed; every other channel stays in the message.
    ///
    /// # Errors
    ///
    /// If the encoding is not supported, or the image's sizes contradict each other.
    pub fn read(image: &ImageView<'a>, channel: Channel) -> Result<Self, Unusable> {
        let layout = Layout::of(image.encoding).ok_or_else(|| Unusable::Encoding(image.encoding.into()))?;
        let (first_byte, pixel_stride, wide) = match layout {
            Layout::Gray8 => (0, 1, None),
            Layout::Gray16 => (0, 2, Some(if image.is_bigendian { Endian::Big } else { Endian::Little })),
            Layout::Color8 { channels, rgb } => (rgb[0], channels, None),
        };
        let size = Size::new(image.height as usize, image.width as usize);
        if size.height == 0 || size.width == 0 {
            return Err(Unusable::Layout(format!("an image needs at least one pixel, this one is {size}")));
        }
        let row_stride = image.step as usize;

        // The whole pixels must fit, not only the channel that is read: half a pixel is a sender's mistake.
        let row_bytes = size.width.saturating_mul(pixel_stride);
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

        let samples = match (layout, channel) {
            (Layout::Color8 { channels, rgb }, Channel::Luma) => Self {
                data: Cow::Owned(luma(image.data, size, row_stride, channels, rgb)),
                size,
                row_stride: size.width,
                pixel_stride: 1,
                wide,
            },
            _ => Self {
                data: Cow::Borrowed(image.data.get(first_byte..).unwrap_or_default()),
                size,
                row_stride,
                pixel_stride,
                wide,
            },
        };
        samples.try_plane()?; // an absurd size
        Ok(samples)
    }

    /// The plane that the detector takes.
    ///
    /// # Errors
    ///
    /// None for samples that [`Samples::read`] gave.
    pub fn plane(&self) -> Result<Plane<'_>, Unusable> {
        self.try_plane()
    }

    fn try_plane(&self) -> Result<Plane<'_>, Unusable> {
        match self.wide {
            None => Plane::from_u8(&self.data, self.size, self.row_stride, self.pixel_stride),
            Some(endian) => Plane::from_u16(&self.data, self.size, self.row_stride, self.pixel_stride, endian),
        }
        .map_err(|error| Unusable::Layout(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::ros::image::Stamp;

    fn image<'a>(encoding: &'a str, height: u32, width: u32, step: u32, data: &'a [u8]) -> ImageView<'a> {
        let stamp = Stamp { sec: 0, nanosec: 0 };
        ImageView { stamp, frame_id: "cam", height, width, encoding, is_bigendian: false, step, data }
    }

    /// Where the first samples of the rows lie, read the slow way.
    fn values(samples: &Samples<'_>) -> Vec<Vec<u32>> {
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
            let samples = Samples::read(&image(encoding, 2, 1, step, data), Channel::First).unwrap();
            assert_eq!(values(&samples), [[expected[0]], [expected[1]]], "{encoding}");
            assert!(matches!(samples.data, Cow::Borrowed(_)), "{encoding}: no copy");
        }
    }

    #[test]
    fn luma_weighs_the_colours_where_they_are() {
        // Pillow: Image.new("RGB", (1, 1), c).convert("L") gives 76, 150, 29 for pure R, G, B and 124 for the last.
        let data = [255, 0, 0, 0, 255, 0, 0, 0, 255, 200, 100, 50, 0xee];
        let rgb = Samples::read(&image("rgb8", 1, 4, 13, &data), Channel::Luma).unwrap();
        assert_eq!(values(&rgb), [[76, 150, 29, 124]]);
        let bgr = Samples::read(&image("bgr8", 1, 3, 9, &data), Channel::Luma).unwrap();
        assert_eq!(values(&bgr), [[29, 150, 76]]);
        let gray = Samples::read(&image("mono8", 1, 2, 2, &[7, 8]), Channel::Luma).unwrap();
        assert_eq!(values(&gray), [[7, 8]]);
    }

    #[test]
    fn sixteen_bits_follow_is_bigendian_and_eight_bits_ignore_it() {
        let data = [1, 2, 3, 4];
        let mut wide = image("mono16", 1, 2, 4, &data);
        assert_eq!(values(&Samples::read(&wide, Channel::First).unwrap()), [[0x0201, 0x0403]]);
        wide.is_bigendian = true;
        assert_eq!(values(&Samples::read(&wide, Channel::First).unwrap()), [[0x0102, 0x0304]]);
        let narrow = ImageView { encoding: "8UC1", width: 4, ..wide };
        assert_eq!(values(&Samples::read(&narrow, Channel::First).unwrap()), [[1, 2, 3, 4]]);
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
            for channel in [Channel::First, Channel::Luma] {
                let error = Samples::read(&view, channel).unwrap_err().to_string();
                assert!(error.contains(text), "{error}");
            }
        }
        assert!(Samples::read(&image("mono8", 2, 3, 5, &[0; 8]), Channel::First).is_ok(), "last row unpadded");
    }

    #[test]
    fn an_unknown_encoding_is_named() {
        for encoding in ["bayer_rggb8", "", "32FC1", "mono8 ", "\u{1b}[2J"] {
            let error = Samples::read(&image(encoding, 1, 1, 1, &[0]), Channel::First).unwrap_err();
            assert_eq!(error, Unusable::Encoding(encoding.into()));
            assert!(!error.to_string().contains('\u{1b}'), "control characters stay out of the log");
        }
    }
}
