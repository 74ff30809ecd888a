//! Which channel of a colour image the network reads.

use std::str::FromStr;

use tt_backend::Size;

/// Which channel of a colour image the network reads. Gray images have only one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channel {
    /// R, wherever the byte order puts it. What the published package reads.
    #[default]
    First,
    /// 0.299 R + 0.587 G + 0.114 B, rounded to 8 bits.
    Luma,
}

impl Channel {
    /// As it is written in options and parameters.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Luma => "luma",
        }
    }
}

impl FromStr for Channel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "first" => Ok(Self::First),
            "luma" => Ok(Self::Luma),
            other => Err(format!("channel is `{other}`, but must be `first` or `luma`")),
        }
    }
}

/// ITU-R BT.601 luma in 16-bit fixed point, as Pillow's `convert("L")` computes it, without gaps.
///
/// `data` holds `size.height` rows that are `row_stride` bytes apart, of pixels of `channels` bytes; R, G and B lie
/// at the offsets `rgb`. Rows that `data` does not hold are left out.
pub(crate) fn luma(data: &[u8], size: Size, row_stride: usize, channels: usize, [r, g, b]: [usize; 3]) -> Vec<u8> {
    let mut luma = Vec::with_capacity(size.width * size.height);
    for row in data.chunks(row_stride.max(1)).take(size.height) {
        luma.extend(row.chunks_exact(channels).take(size.width).map(|pixel| {
            luma_of([pixel[r], pixel[g], pixel[b]].map(u16::from)) as u8 // luma of bytes is a byte
        }));
    }
    luma
}

/// Luma of one pixel of up to 16 bits a value; the weights add up to one.
#[inline]
pub(crate) fn luma_of([r, g, b]: [u16; 3]) -> u16 {
    let weighted = u32::from(r) * 19_595 + u32::from(g) * 38_470 + u32::from(b) * 7_471;
    ((weighted + 0x8000) >> 16) as u16
}
