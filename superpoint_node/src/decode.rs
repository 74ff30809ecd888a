//! From the bytes of a PNG or JPEG file to the samples that the detector takes.

use std::io::Cursor;

use image::{DynamicImage, ImageReader, Limits, Rgb, RgbImage};
use tt_backend::{Endian, Plane, Size, gather};

use crate::channel::{self, Channel};
use crate::jpeg::{self, Refusal};
use crate::message::encoding::Range16;

/// The most pixels that a picture may have: 8192 x 8192, twice what an 8K camera gives.
pub const MAX_PIXELS: u64 = 8192 * 8192;

/// Why bytes are no picture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Neither PNG nor JPEG, or damaged.
    #[error("not a readable PNG or JPEG: {0}")]
    Undecodable(image::ImageError),
    /// A JPEG that ends in the middle.
    #[error("not a readable PNG or JPEG: {0}")]
    CutOff(Refusal),
    /// No data at all.
    #[error("not a readable PNG or JPEG: it is empty")]
    Empty,
    /// Too many pixels, found out before any of them is decoded.
    #[error("the image declares {width} x {height} pixels; at most {MAX_PIXELS} pixels are accepted")]
    TooLarge {
        /// Declared width.
        width: u32,
        /// Declared height.
        height: u32,
    },
    /// A size that the detector does not take.
    #[error(transparent)]
    Plane(#[from] tt_backend::Error),
}

impl From<image::ImageError> for DecodeError {
    /// Said whole by the variant's text, so it is no source beside it.
    fn from(error: image::ImageError) -> Self {
        Self::Undecodable(error)
    }
}

/// One channel of a picture, without gaps. The picture's EXIF orientation is ignored.
#[derive(Clone)]
pub struct Samples {
    data: Vec<u8>,
    size: Size,
    /// Two bytes a sample, in the machine's byte order.
    wide: bool,
}

impl Samples {
    /// Decodes a PNG or JPEG file; its content decides which.
    ///
    /// # Errors
    ///
    /// If it is neither, is damaged, or declares more than [`MAX_PIXELS`].
    pub fn decode(file: &[u8], channel: Channel) -> Result<Self, DecodeError> {
        let samples = Self::decode_any(file, channel)?;
        samples.plane()?; // a side that no plane may have
        Ok(samples)
    }

    fn decode_any(file: &[u8], channel: Channel) -> Result<Self, DecodeError> {
        if channel == Channel::First && file.starts_with(&[0xff, 0xd8]) {
            match jpeg::first_channel(file, MAX_PIXELS) {
                Ok((data, size)) => return Ok(Self { data, size, wide: false }),
                Err(cut @ Refusal::CutOff) => return Err(DecodeError::CutOff(cut)),
                // The general decoder has the last word, also on the size.
                Err(Refusal::Unsupported | Refusal::TooLarge { .. }) => {}
            }
        }
        let image = picture(file)?;
        let size = Size::new(image.height() as usize, image.width() as usize);
        let gray = !image.color().has_color();
        if channel == Channel::Luma && !gray {
            let rgb = image.to_rgb8();
            return Ok(Self::gray(channel::luma(&rgb, size, 3 * size.width, 3, [0, 1, 2]), size));
        }
        let color = image.color();
        let pixel = usize::from(color.bytes_per_pixel());
        let sample = pixel / usize::from(color.channel_count());
        let data = if pixel == sample {
            image.into_bytes()
        } else if sample == 1 {
            let mut first = vec![0; size.height * size.width];
            gather(image.as_bytes(), pixel, &mut first);
            first
        } else {
            image.as_bytes().chunks_exact(pixel).flat_map(|pixel| [pixel[0], pixel[1]]).collect()
        };
        Ok(Self { data, size, wide: sample == 2 })
    }

    /// 8-bit samples, row by row.
    pub fn gray(data: Vec<u8>, size: Size) -> Self {
        Self { data, size, wide: false }
    }

    /// The plane that the detector takes.
    ///
    /// # Errors
    ///
    /// If the picture has a side that no plane may have, or too few samples.
    pub fn plane(&self) -> Result<Plane<'_>, tt_backend::Error> {
        let Self { data, size, wide } = self;
        if *wide {
            let endian = if cfg!(target_endian = "big") { Endian::Big } else { Endian::Little };
            return Plane::from_u16(data, *size, 2 * size.width, 2, endian);
        }
        Plane::contiguous(data, *size)
    }

    /// The samples, row by row.
    pub fn into_bytes(self) -> Vec<u8> {
        self.data
    }

    /// Height and width.
    pub fn size(&self) -> Size {
        self.size
    }
}

impl std::fmt::Debug for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Samples").field("size", &self.size).field("wide", &self.wide).finish_non_exhaustive()
    }
}

/// The picture in colour, to draw on, values of 16 bits as `range` shows them.
///
/// # Errors
///
/// As [`Samples::decode`].
pub fn colors(file: &[u8], range: Range16) -> Result<RgbImage, DecodeError> {
    let picture = picture(file)?;
    let color = picture.color();
    if color.bytes_per_pixel() / color.channel_count() == 1 {
        return Ok(picture.into_rgb8());
    }
    let wide = picture.into_rgb16();
    Ok(RgbImage::from_fn(wide.width(), wide.height(), |x, y| Rgb(wide.get_pixel(x, y).0.map(|v| range.to_8_bits(v)))))
}

/// Width and height in a PNG's first chunk. Read here, because the decoder refuses wide ones with less to say.
fn declared_by_png(file: &[u8]) -> Option<(u32, u32)> {
    let header = file.strip_prefix(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR")?;
    let number = |at: usize| header.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    Some((number(0)?, number(4)?))
}

/// Whether a JPEG's last scan has no end-of-image marker behind it. Neither marker occurs inside coded data, and a
/// thumbnail with markers of its own lies before the first scan.
fn is_jpeg_without_end(file: &[u8]) -> bool {
    let last = |marker: [u8; 2]| file.windows(2).rposition(|pair| pair == marker);
    let (scan, end) = (last([0xff, 0xda]), last([0xff, 0xd9]));
    file.starts_with(&[0xff, 0xd8]) && scan.is_some() && end < scan
}

/// The picture as it is stored, whatever its kind of pixels, within [`MAX_PIXELS`].
pub(crate) fn picture(file: &[u8]) -> Result<DynamicImage, DecodeError> {
    if file.is_empty() {
        return Err(DecodeError::Empty);
    }
    // The decoder would fill the rest of the picture with gray, and nobody would notice.
    if is_jpeg_without_end(file) {
        return Err(DecodeError::CutOff(Refusal::CutOff));
    }
    let reader = || ImageReader::new(Cursor::new(file)).with_guessed_format();
    let (width, height) = match declared_by_png(file) {
        Some(size) => size,
        None => reader().map_err(image::ImageError::IoError)?.into_dimensions()?,
    };
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(DecodeError::TooLarge { width, height });
    }
    let mut reader = reader().map_err(image::ImageError::IoError)?;
    let mut limits = Limits::default();
    // Sixteen bits of four channels, and as much again for the decoder.
    limits.max_alloc = Some(16 * MAX_PIXELS);
    reader.limits(limits);
    Ok(reader.decode()?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use image::{GrayImage, ImageBuffer, ImageFormat, Luma, Rgb, RgbImage};

    fn png(image: impl Into<DynamicImage>) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        image.into().write_to(&mut bytes, ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn color_gray_and_deep_pictures_give_planes_of_their_size() {
        let rgb = png(RgbImage::from_pixel(5, 3, Rgb([10, 20, 30])));
        let gray = png(GrayImage::from_pixel(5, 3, Luma([10])));
        let deep = png(ImageBuffer::<Luma<u16>, Vec<u16>>::from_pixel(5, 3, Luma([2570])));
        for bytes in [rgb, gray, deep] {
            for channel in [Channel::First, Channel::Luma] {
                let samples = Samples::decode(&bytes, channel).unwrap();
                assert_eq!(samples.plane().unwrap().size(), Size::new(3, 5));
            }
        }
    }

    #[test]
    fn a_declared_size_is_refused_before_it_is_decoded() {
        // A PNG header that declares 100000 x 100000, and nothing behind it.
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        bytes.extend(100_000u32.to_be_bytes());
        bytes.extend(100_000u32.to_be_bytes());
        bytes.extend([8, 2, 0, 0, 0]);
        let crc = crc32fast::hash(&bytes[12..]);
        bytes.extend(crc.to_be_bytes());
        bytes.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e");
        let error = Samples::decode(&bytes, Channel::First).unwrap_err();
        assert!(matches!(error, DecodeError::TooLarge { width: 100_000, height: 100_000 }), "{error}");
    }

    #[test]
    fn rubbish_and_cut_files_are_errors() {
        let whole = png(RgbImage::from_pixel(64, 64, Rgb([10, 20, 30])));
        for length in 0..whole.len() - 12 {
            assert!(Samples::decode(&whole[..length], Channel::First).is_err(), "{length} bytes");
        }
        let mut jpeg = Cursor::new(Vec::new());
        RgbImage::from_fn(64, 64, |x, y| Rgb([x as u8, y as u8, 9])).write_to(&mut jpeg, ImageFormat::Jpeg).unwrap();
        let jpeg = jpeg.into_inner();
        for channel in [Channel::First, Channel::Luma] {
            assert!(Samples::decode(&jpeg, channel).is_ok());
            for length in 0..jpeg.len() - 1 {
                assert!(Samples::decode(&jpeg[..length], channel).is_err(), "{length} bytes");
            }
        }
        assert!(Samples::decode(b"GIF89a, or so it says", Channel::First).is_err());
    }
}
