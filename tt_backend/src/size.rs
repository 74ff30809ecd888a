//! Height and width of an image, a frame or a map.

use std::fmt;
use std::str::FromStr;

/// Height and width in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl Size {
    /// The network frame of SuperPoint as it is published and served: 480 rows of 640 pixels.
    pub const NETWORK: Self = Self::new(480, 640);

    /// A size of `height` rows and `width` columns.
    pub const fn new(height: usize, width: usize) -> Self {
        Self { height, width }
    }

    /// Number of pixels, or `None` when it does not fit into `usize`.
    pub const fn checked_area(self) -> Option<usize> {
        self.height.checked_mul(self.width)
    }

    /// Number of pixels of a size that is known to be sane.
    pub(crate) const fn area(self) -> usize {
        self.height * self.width
    }

    /// The size in cells of 8x8 pixels: that of the network's output maps.
    pub const fn cells(self) -> Self {
        Self::new(self.height / 8, self.width / 8)
    }
}

/// Height first, as array shapes are written: `480x640`.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.height, self.width)
    }
}

/// The published network frame.
impl Default for Size {
    fn default() -> Self {
        Self::NETWORK
    }
}

/// Reads what [`Display`](fmt::Display) writes: `480x640`, height first.
impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (height, width) = text.split_once('x')?;
            Some(Self::new(height.parse().ok()?, width.parse().ok()?))
        };
        parse().ok_or_else(|| format!("`{text}` is not a size: write height x width, for example 480x640"))
    }
}
