//! Colour planes out of a Bayer mosaic, bilinearly: each missing value is the mean of its nearest neighbours of that
//! colour, rounded half up.
//!
//! Inside, this is what OpenCV's `COLOR_Bayer*2RGB` computes. At the image's border the mosaic is mirrored about its
//! outermost rows and columns, which keeps every site's colour.

use tt_backend::Size;

/// A mosaic: one value a pixel, in repeating squares of 2x2, two of them green.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mosaic<'a> {
    /// `size.height` rows that are `row_stride` bytes apart.
    pub(super) data: &'a [u8],
    pub(super) size: Size,
    pub(super) row_stride: usize,
    /// How a value is read from its bytes.
    pub(super) depth: Depth,
    /// Row and column, 0 or 1, of red in the square; blue lies diagonally opposite.
    pub(super) red: [usize; 2],
}

/// How the values of a mosaic are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    Bits8,
    Bits16Little,
    Bits16Big,
}

impl Mosaic<'_> {
    /// Red at every pixel, row by row.
    pub(super) fn red(&self) -> Vec<u16> {
        self.red_or_blue(self.red)
    }

    /// Blue at every pixel, row by row.
    pub(super) fn blue(&self) -> Vec<u16> {
        self.red_or_blue(self.red.map(|site| 1 - site))
    }

    /// A colour that has one site in the square, at `site`.
    fn red_or_blue(&self, site: [usize; 2]) -> Vec<u16> {
        self.interpolate(|y, x, [above, here, below], [left, right]| match (y % 2 == site[0], x % 2 == site[1]) {
            (true, true) => here[x],
            (true, false) => mean(&[here[left], here[right]]),
            (false, true) => mean(&[above[x], below[x]]),
            (false, false) => mean(&[above[left], above[right], below[left], below[right]]),
        })
    }

    /// Green at every pixel, row by row.
    pub(super) fn green(&self) -> Vec<u16> {
        let [red_y, red_x] = self.red;
        self.interpolate(|y, x, [above, here, below], [left, right]| {
            if (y + x) % 2 == (red_y + red_x) % 2 {
                mean(&[above[x], here[left], here[right], below[x]]) // red and blue have the same parity
            } else {
                here[x]
            }
        })
    }

    /// Calls `value` for every pixel with its row, its column, the rows around it and the columns beside it.
    fn interpolate(&self, value: impl Fn(usize, usize, [&[u16]; 3], [usize; 2]) -> u16) -> Vec<u16> {
        let Size { height, width } = self.size;
        let mut plane = Vec::with_capacity(height * width);
        let mut rows = [Vec::new(), Vec::new(), Vec::new()];
        for y in 0..height {
            // Each source row is read once, unless mirroring asks for it again.
            if y == 0 {
                self.read(mirrored_below(0, height), &mut rows[0]);
                self.read(0, &mut rows[1]);
            } else {
                rows.rotate_left(1);
            }
            self.read(mirrored_above(y, height), &mut rows[2]);
            let around = [rows[0].as_slice(), rows[1].as_slice(), rows[2].as_slice()];
            plane.extend((0..width).map(|x| value(y, x, around, [mirrored_below(x, width), mirrored_above(x, width)])));
        }
        plane
    }

    fn read(&self, y: usize, row: &mut Vec<u16>) {
        let bytes = &self.data[y * self.row_stride..];
        let width = self.size.width;
        let pairs = || bytes.chunks_exact(2).take(width);
        row.clear();
        match self.depth {
            Depth::Bits8 => row.extend(bytes[..width].iter().map(|&byte| u16::from(byte))),
            Depth::Bits16Little => row.extend(pairs().map(|pair| u16::from_le_bytes([pair[0], pair[1]]))),
            Depth::Bits16Big => row.extend(pairs().map(|pair| u16::from_be_bytes([pair[0], pair[1]]))),
        }
    }
}

fn mean<const N: usize>(values: &[u16; N]) -> u16 {
    let sum: u32 = values.iter().map(|&value| u32::from(value)).sum();
    let count = N as u32;
    ((sum + count / 2) / count) as u16 // a mean of u16 is one
}

/// The index before `at`, mirrored at 0; a side of one pixel is its own neighbour.
fn mirrored_below(at: usize, count: usize) -> usize {
    if at > 0 { at - 1 } else { 1.min(count - 1) }
}

/// The index behind `at`, mirrored at the last.
fn mirrored_above(at: usize, count: usize) -> usize {
    if at + 1 < count { at + 1 } else { at.saturating_sub(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mosaic(data: &[u8], height: usize, width: usize, red: [usize; 2]) -> Mosaic<'_> {
        Mosaic { data, size: Size::new(height, width), row_stride: width, depth: Depth::Bits8, red }
    }

    #[test]
    fn missing_values_are_means_of_their_neighbours() {
        #[rustfmt::skip]
        let data = [
            10, 1, 20, 2,
             3, 90, 4, 91,
            30, 5, 41, 6,
             7, 92, 8, 93,
        ];
        let rggb = mosaic(&data, 4, 4, [0, 0]);
        #[rustfmt::skip]
        assert_eq!(rggb.red(), [
            10, 15, 20, 20,
            20, 25, 31, 31,
            30, 36, 41, 41,
            30, 36, 41, 41,
        ]);
        // Inside: (1 + 3 + 4 + 5 + 2) / 4 at the blue site; mirrored at the corner: (1 + 1 + 3 + 3 + 2) / 4.
        let green = rggb.green();
        assert_eq!((green[0], green[1], green[5]), (2, 1, 3));
        assert_eq!(rggb.blue()[..4], [90, 90, 91, 91]);
    }

    #[test]
    fn a_flat_colour_comes_back_whole_from_every_pattern_and_size() {
        for red in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            for (height, width) in [(2, 2), (2, 5), (3, 3), (7, 4)] {
                let at = |y: usize, x: usize| match (y % 2 == red[0], x % 2 == red[1]) {
                    (true, true) => 200,
                    (false, false) => 50,
                    _ => 100,
                };
                let data: Vec<u8> = (0..height * width).map(|i| at(i / width, i % width)).collect();
                let mosaic = mosaic(&data, height, width, red);
                for (plane, value) in [(mosaic.red(), 200), (mosaic.green(), 100), (mosaic.blue(), 50)] {
                    assert_eq!(plane, vec![value; height * width], "{red:?} {height}x{width}");
                }
            }
        }
    }

    #[test]
    fn one_pixel_and_one_line_are_answered() {
        for (height, width) in [(1, 1), (1, 6), (6, 1)] {
            let data = [7; 6];
            let mosaic = mosaic(&data, height, width, [1, 1]);
            assert_eq!(mosaic.red(), vec![7; height * width]);
            assert_eq!(mosaic.green(), vec![7; height * width]);
        }
    }

    #[test]
    fn padding_and_both_byte_orders_are_read() {
        let little = [0x02, 0x01, 0x04, 0x03, 0xee, 0x06, 0x05, 0x08, 0x07];
        let mosaic =
            Mosaic { data: &little, size: Size::new(2, 2), row_stride: 5, depth: Depth::Bits16Little, red: [0, 0] };
        assert_eq!(mosaic.red(), [0x0102; 4]);
        assert_eq!(Mosaic { depth: Depth::Bits16Big, ..mosaic }.blue(), [0x0807; 4]);
    }
}
