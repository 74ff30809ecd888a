//! From the bytes of a PNG or JPEG file to a picture whose planes the detector takes.

use std::io::Cursor;

use image::{DynamicImage, ImageReader, Limits};
use tt_backend::{Endian, Plane, Size};

use crate::channel::{self, Channel};

/// The most pixels a picture may have: more than any camera in a robot, and 300 MB when decoded to RGB.
pub const MAX_PIXELS: u64 = 100_000_000;

/// Why bytes are no picture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Neither PNG nor JPEG, or damaged.
    #[error("not a readable PNG or JPEG: {0}")]
    Undecodable(image::ImageError),
    /// No data at all.
    #[error("not a readable PNG or JPEG: it is empty")]
    Empty,
    /// The decoder would fill the rest of the picture with gray, and nobody would notice.
    #[error("not a readable PNG or JPEG: the JPEG is cut off, its end marker is missing")]
    Truncated,
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

/// A decoded picture. Its EXIF orientation is ignored.
#[derive(Debug)]
pub struct Picture {
    image: DynamicImage,
    /// The channel that the detector reads, where it had to be computed.
    luma: Option<Vec<u8>>,
}

impl Picture {
    /// Decodes a PNG or JPEG file; its content decides which.
    ///
    /// # Errors
    ///
    /// If it is neither, is damaged, or declares more than [`MAX_PIXELS`].
    pub fn decode(bytes: &[u8], channel: Channel) -> Result<Self, DecodeError> {
        if bytes.is_empty() {
            return Err(DecodeError::Empty);
        }
        if is_jpeg_without_end(bytes) {
            return Err(DecodeError::Truncated);
        }
        let reader = || ImageReader::new(Cursor::new(bytes)).with_guessed_format();
        let (width, height) = reader().map_err(image::ImageError::IoError)?.into_dimensions()?;
        if u64::from(width) * u64::from(height) > MAX_PIXELS {
            return Err(DecodeError::TooLarge { width, height });
        }
        let mut reader = reader().map_err(image::ImageError::IoError)?;
        let mut limits = Limits::default();
        // Sixteen bits of four channels, and as much again for the decoder.
        limits.max_alloc = Some(16 * MAX_PIXELS);
        reader.limits(limits);
        let image = reader.decode()?;

        let luma = match (channel, &image) {
            (Channel::First, _) | (_, DynamicImage::ImageLuma8(_) | DynamicImage::ImageLuma16(_)) => None,
            (_, DynamicImage::ImageLumaA8(_) | DynamicImage::ImageLumaA16(_)) => None,
            (Channel::Luma, color) => {
                let rgb = color.to_rgb8();
                let size = size_of(&image);
                Some(channel::luma(&rgb, size, 3 * size.width, 3, [0, 1, 2]))
            }
        };
        let picture = Self { image, luma };
        picture.plane()?; // a side that no plane may have
        Ok(picture)
    }

    /// The plane that the detector takes.
    ///
    /// # Errors
    ///
    /// If the picture has a side that no plane may have.
    pub fn plane(&self) -> Result<Plane<'_>, tt_backend::Error> {
        let size = size_of(&self.image);
        if let Some(luma) = &self.luma {
            return Plane::contiguous(luma, size);
        }
        let color = self.image.color();
        let pixel_stride = usize::from(color.bytes_per_pixel());
        let row_stride = size.width * pixel_stride;
        let bytes = self.image.as_bytes();
        if color.bytes_per_pixel() / color.channel_count() == 2 {
            let endian = if cfg!(target_endian = "big") { Endian::Big } else { Endian::Little };
            Plane::from_u16(bytes, size, row_stride, pixel_stride, endian)
        } else {
            Plane::from_u8(bytes, size, row_stride, pixel_stride)
        }
    }

    /// Height and width.
    pub fn size(&self) -> Size {
        size_of(&self.image)
    }

    /// The picture in colour, to draw on.
    pub fn to_rgb8(&self) -> image::RgbImage {
        self.image.to_rgb8()
    }
}

/// Whether a JPEG's last scan has no end-of-image marker behind it. Neither marker occurs inside coded data, and a
/// thumbnail with markers of its own lies before the first scan.
fn is_jpeg_without_end(bytes: &[u8]) -> bool {
    let last = |marker: [u8; 2]| bytes.windows(2).rposition(|pair| pair == marker);
    let (scan, end) = (last([0xff, 0xda]), last([0xff, 0xd9]));
    bytes.starts_with(&[0xff, 0xd8]) && scan.is_some() && end < scan
}

fn size_of(image: &DynamicImage) -> Size {
    Size::new(image.height() as usize, image.width() as usize)
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
                let picture = Picture::decode(&bytes, channel).unwrap();
                assert_eq!(picture.plane().unwrap().size(), Size::new(3, 5));
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
        let error = Picture::decode(&bytes, Channel::First).unwrap_err();
        assert!(matches!(error, DecodeError::TooLarge { width: 100_000, height: 100_000 }), "{error}");
    }

    #[test]
    fn rubbish_and_cut_files_are_errors() {
        let whole = png(RgbImage::from_pixel(64, 64, Rgb([10, 20, 30])));
        for length in 0..whole.len() - 12 {
            assert!(Picture::decode(&whole[..length], Channel::First).is_err(), "{length} bytes");
        }
        let mut jpeg = Cursor::new(Vec::new());
        RgbImage::from_fn(64, 64, |x, y| Rgb([x as u8, y as u8, 9])).write_to(&mut jpeg, ImageFormat::Jpeg).unwrap();
        let jpeg = jpeg.into_inner();
        assert!(Picture::decode(&jpeg, Channel::First).is_ok());
        for length in 0..jpeg.len() - 1 {
            assert!(Picture::decode(&jpeg[..length], Channel::First).is_err(), "{length} bytes");
        }
        assert!(Picture::decode(b"GIF89a, or so it says", Channel::First).is_err());
    }
}
