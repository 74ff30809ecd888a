//! One channel of an image, borrowed where it lies.

use multiversion::multiversion;

use crate::{Error, Size};

/// Byte order of 16-bit samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// How one sample is stored, and which values stand for black and white.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Samples {
    /// 8 bits: 0 is black, 255 is white.
    U8,
    /// 16 bits: `black` and everything below maps to 0, `white` and everything above to 1.
    U16 { endian: Endian, black: u16, white: u16 },
}

impl Samples {
    const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 { .. } => 2,
        }
    }
}

/// One channel of an image, borrowed where it lies.
///
/// Both strides are in bytes, so that the first channel of an interleaved image, or an image whose rows
/// are padded, is read without a copy: for `bgr8` the plane of R starts at byte 2 and has a pixel stride of 3.
///
/// ```
/// use tt_backend::{Plane, Size};
/// let bgr8 = [0u8; 3 * 4 * 2];
/// let red = Plane::from_u8(&bgr8[2..], Size::new(2, 4), 3 * 4, 3)?;
/// assert_eq!(red.size(), Size::new(2, 4));
/// # Ok::<(), tt_backend::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Plane<'a> {
    data: &'a [u8],
    size: Size,
    row_stride: usize,
    pixel_stride: usize,
    samples: Samples,
}

impl<'a> Plane<'a> {
    /// The longest side that is accepted, in pixels: more than any camera has, and little enough that every
    /// product of sizes fits the arithmetic.
    pub const MAX_SIDE: usize = 65_535;

    /// A plane of 8-bit samples; `data` starts at the first sample.
    ///
    /// # Errors
    ///
    /// If the size is empty or absurd, the strides overlap, or `data` is shorter than they reach.
    pub fn from_u8(data: &'a [u8], size: Size, row_stride: usize, pixel_stride: usize) -> Result<Self, Error> {
        Self::new(data, size, row_stride, pixel_stride, Samples::U8)
    }

    /// A plane of 8-bit samples without gaps: `height * width` bytes, row by row.
    ///
    /// # Errors
    ///
    /// As [`Plane::from_u8`].
    pub fn contiguous(data: &'a [u8], size: Size) -> Result<Self, Error> {
        Self::from_u8(data, size, size.width, 1)
    }

    /// A plane of 16-bit samples; `data` starts at the first byte of the first sample, in any alignment.
    /// 0 maps to 0 and 65535 to 1; see [`Plane::with_range_16bit`].
    ///
    /// # Errors
    ///
    /// As [`Plane::from_u8`].
    pub fn from_u16(
        data: &'a [u8],
        size: Size,
        row_stride: usize,
        pixel_stride: usize,
        endian: Endian,
    ) -> Result<Self, Error> {
        Self::new(data, size, row_stride, pixel_stride, Samples::U16 { endian, black: 0, white: u16::MAX })
    }

    /// The same plane with `black..=white` mapped to 0..=1 and clamped outside. 8-bit planes keep their range.
    ///
    /// # Errors
    ///
    /// If `black` is not below `white`.
    pub fn with_range_16bit(mut self, black: u16, white: u16) -> Result<Self, Error> {
        if black >= white {
            return Err(Error::Param {
                name: "range_16bit",
                value: format!("[{black}, {white}]"),
                expected: "two values of 0 to 65535, the lower one first",
            });
        }
        if let Samples::U16 { endian, .. } = self.samples {
            self.samples = Samples::U16 { endian, black, white };
        }
        Ok(self)
    }

    fn new(
        data: &'a [u8],
        size: Size,
        row_stride: usize,
        pixel_stride: usize,
        samples: Samples,
    ) -> Result<Self, Error> {
        let layout = |reason: String| Error::PlaneLayout { size, reason };
        if size.height == 0 || size.width == 0 {
            return Err(layout("an image needs at least one pixel".into()));
        }
        if size.height > Self::MAX_SIDE || size.width > Self::MAX_SIDE {
            return Err(layout(format!("no side may be longer than {} pixels", Self::MAX_SIDE)));
        }
        if pixel_stride < samples.bytes() {
            return Err(layout(format!(
                "{pixel_stride} bytes from pixel to pixel are too few for samples of {} bytes",
                samples.bytes()
            )));
        }
        // Saturation keeps absurd strides from wrapping round into small ones; they then fail the length check.
        let row_bytes = (size.width - 1).saturating_mul(pixel_stride).saturating_add(samples.bytes());
        if size.height > 1 && row_stride < row_bytes {
            return Err(layout(format!(
                "{row_stride} bytes from row to row are too few for a row of {row_bytes} bytes"
            )));
        }
        let needed = (size.height - 1).saturating_mul(row_stride).saturating_add(row_bytes);
        if data.len() < needed {
            return Err(Error::PlaneTooShort { size, pixel_stride, row_stride, needed, given: data.len() });
        }
        Ok(Self { data, size, row_stride, pixel_stride, samples })
    }

    /// Height and width.
    pub fn size(&self) -> Size {
        self.size
    }

    pub(crate) fn samples(&self) -> Samples {
        self.samples
    }

    /// The bytes of row `y`, from its first sample to its last.
    fn row(&self, y: usize) -> &'a [u8] {
        let row_bytes = (self.size.width - 1) * self.pixel_stride + self.samples.bytes();
        &self.data[y * self.row_stride..][..row_bytes]
    }

    /// The samples of row `y` of an 8-bit plane.
    pub(crate) fn row_u8(&self, y: usize) -> impl ExactSizeIterator<Item = u8> + use<'a> {
        self.row(y).iter().copied().step_by(self.pixel_stride)
    }

    /// Copies as many samples of row `y` of an 8-bit plane as `out` holds, from column `x` on.
    pub(crate) fn copy_row_u8(&self, y: usize, x: usize, out: &mut [u8]) {
        gather(&self.row(y)[x * self.pixel_stride..], self.pixel_stride, out);
    }

    /// The samples of row `y` of a 16-bit plane in the given byte order.
    pub(crate) fn row_u16(&self, y: usize, endian: Endian) -> impl ExactSizeIterator<Item = u16> + use<'a> {
        let decode = match endian {
            Endian::Little => u16::from_le_bytes,
            Endian::Big => u16::from_be_bytes,
        };
        self.row(y).windows(2).step_by(self.pixel_stride).map(move |pair| decode([pair[0], pair[1]]))
    }
}

/// Copies every `stride`-th of `bytes`, the first among them, until `out` is full: one channel of interleaved pixels.
///
/// The strides that images have take a fifth of the time of `step_by`, which is not turned into vector instructions.
///
/// # Panics
///
/// If `stride` is 0.
///
/// ```
/// let rgb8 = [1, 2, 3, 4, 5, 6];
/// let mut red = [0; 2];
/// tt_backend::gather(&rgb8, 3, &mut red);
/// assert_eq!(red, [1, 4]);
/// ```
#[multiversion(targets("x86_64+avx2"))]
pub fn gather(bytes: &[u8], stride: usize, out: &mut [u8]) {
    match stride {
        1 => gather_constant::<1>(bytes, out),
        2 => gather_constant::<2>(bytes, out),
        3 => gather_constant::<3>(bytes, out),
        4 => gather_constant::<4>(bytes, out),
        _ => out.iter_mut().zip(bytes.iter().step_by(stride)).for_each(|(out, &byte)| *out = byte),
    }
}

#[inline(always)]
fn gather_constant<const STRIDE: usize>(bytes: &[u8], out: &mut [u8]) {
    let (pixels, rest) = bytes.as_chunks::<STRIDE>();
    // The last sample may lie in a pixel whose other bytes are not there.
    out.iter_mut().zip(pixels).for_each(|(out, pixel)| *out = pixel[0]);
    if let Some((out, &byte)) = out.get_mut(pixels.len()).zip(rest.first()) {
        *out = byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_third_byte_of_padded_bgr() -> Result<(), Error> {
        // Two rows of two pixels, one byte of padding after the first row, none after the last.
        let data = [1, 2, 3, 4, 5, 6, 0, 7, 8, 9, 10, 11, 12];
        let plane = Plane::from_u8(&data[2..], Size::new(2, 2), 7, 3)?;
        assert_eq!(plane.row_u8(0).collect::<Vec<_>>(), [3, 6]);
        assert_eq!(plane.row_u8(1).collect::<Vec<_>>(), [9, 12]);
        Ok(())
    }

    #[test]
    fn gathers_what_is_there_and_no_more() {
        let bytes: Vec<u8> = (0..=255).collect();
        for stride in 1..7 {
            for (length, room) in (0..100).flat_map(|length| [(length, 120), (length, 10)]) {
                let bytes = &bytes[..length];
                let mut expected: Vec<u8> = bytes.iter().step_by(stride).copied().take(room).collect();
                expected.resize(room, 255);
                let mut gathered = vec![255; room];
                gather(bytes, stride, &mut gathered);
                assert_eq!(gathered, expected, "{length} bytes, stride {stride}");
            }
        }
    }

    #[test]
    fn reads_both_byte_orders_at_odd_addresses() -> Result<(), Error> {
        let data = [0xff, 0x01, 0x02, 0x03, 0x04];
        for (endian, expected) in [(Endian::Little, [0x0201, 0x0403]), (Endian::Big, [0x0102, 0x0304])] {
            let plane = Plane::from_u16(&data[1..], Size::new(1, 2), 4, 2, endian)?;
            assert_eq!(plane.row_u16(0, endian).collect::<Vec<_>>(), expected);
        }
        Ok(())
    }

    #[test]
    fn refuses_what_the_data_cannot_hold() {
        let size = Size::new(3, 4);
        assert!(Plane::contiguous(&[0; 12], size).is_ok());
        let short = Plane::contiguous(&[0; 11], size).expect_err("one byte is missing").to_string();
        assert!(short.contains("12 bytes") && short.contains("11 were given"), "{short}");
        assert!(Plane::from_u8(&[0; 100], size, 3, 1).is_err(), "rows overlap");
        assert!(Plane::from_u8(&[0; 100], size, 4, 0).is_err(), "pixels overlap");
        assert!(Plane::from_u8(&[0; 100], size, usize::MAX, 1).is_err(), "stride beyond memory");
        assert!(Plane::from_u8(&[0; 100], size, usize::MAX, usize::MAX).is_err(), "strides beyond memory");
        assert!(Plane::contiguous(&[], Size::new(0, 4)).is_err(), "no rows");
        assert!(Plane::contiguous(&[0; 70_000], Size::new(1, 70_000)).is_err(), "absurd width");
    }
}
