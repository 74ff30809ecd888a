//! Nearest neighbours among descriptors: which of the second set each of the first is nearest to, and the other way round.
//!
//! All products of the two sets are computed, by the same matrix product as the network's layers, but only a small tile of
//! them is there at a time: the whole table of 65,000 keypoints with as many others would take 17 GB.

use super::InstructionSet;
use super::buffer::Buffer;
use super::gemm::{self, Rows};
use super::simd::{Kernel, Simd};
use crate::keypoints::DESCRIPTOR_DIM;

/// One descriptor.
pub type Descriptor = [f32; DESCRIPTOR_DIM];

/// The nearest descriptor of the other set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nearest {
    /// Its index; of equally near ones the first.
    pub index: usize,
    /// The product with it: the cosine of the angle between the two, when both have unit length.
    pub product: f32,
}

impl Nearest {
    /// Before anything was looked at.
    const NONE: Self = Self { index: 0, product: f32::NEG_INFINITY };
}

/// For each of `first` the one of `second` with the highest product, and for each of `second` the one of `first`.
/// Both are empty if one of the sets is.
///
/// Products are rounded as `f32` sums over the values in their order. Takes 0.5 billion operations for 1024 descriptors and
/// as many others, on the calling thread.
///
/// ```
/// use tt_backend::cpu::{InstructionSet, nearest};
/// let unit = |axis: usize| std::array::from_fn(|value| if value == axis { 1.0 } else { 0.0 });
/// let (first, second) = ([unit(3), unit(7)], [unit(7), unit(5), unit(3)]);
/// let (there, back) = nearest(&first, &second, InstructionSet::detect());
/// assert_eq!([there[0].index, there[1].index], [2, 0]);
/// assert_eq!([back[0].index, back[2].index], [1, 0]);
/// ```
pub fn nearest(
    first: &[Descriptor],
    second: &[Descriptor],
    instructions: InstructionSet,
) -> (Vec<Nearest>, Vec<Nearest>) {
    if first.is_empty() || second.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let (mut there, mut back) = (vec![Nearest::NONE; first.len()], vec![Nearest::NONE; second.len()]);
    instructions.run(Products { first, second, there: &mut there, back: &mut back });
    (there, back)
}

/// Rows and columns of a tile in the largest instruction set.
const MAX_ROWS: usize = 12;
const MAX_COLUMNS: usize = 32;

/// All products of two sets, a panel of `second` after the other.
struct Products<'a> {
    first: &'a [Descriptor],
    second: &'a [Descriptor],
    there: &'a mut [Nearest],
    back: &'a mut [Nearest],
}

impl Kernel for Products<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = gemm::panel_width(S::LANES);
        assert!(S::ROWS <= MAX_ROWS && width <= MAX_COLUMNS, "a tile larger than its memory");
        let mut panel = Buffer::new(DESCRIPTOR_DIM * width);
        let mut tile = Buffer::new(MAX_ROWS * MAX_COLUMNS);
        for (number, (second, back)) in self.second.chunks(width).zip(self.back.chunks_mut(width)).enumerate() {
            gemm::pack(panel.as_mut_slice(), DESCRIPTOR_DIM, second.len(), width, |k, column| second[column][k]);
            let mut highest = Columns { products: [f32::NEG_INFINITY; MAX_COLUMNS], rows: [0; MAX_COLUMNS] };
            for (block, (first, there)) in self.first.chunks(S::ROWS).zip(self.there.chunks_mut(S::ROWS)).enumerate() {
                let a = Rows { start: first.as_flattened().as_ptr(), stride: DESCRIPTOR_DIM };
                let c = Rows { start: tile.as_mut_slice().as_mut_ptr(), stride: width };
                // SAFETY: `first` are `first.len()` rows of `DESCRIPTOR_DIM` values, the panel has a row of `width` for
                // each of these; the tile has room for `S::ROWS` rows of `width`, as asserted, and `first.len()` is no more.
                unsafe {
                    gemm::multiply(s, first.len(), DESCRIPTOR_DIM, a, panel.as_slice().as_ptr(), std::ptr::null(), c);
                }
                let rows = tile.as_slice().chunks_exact(width).zip(there);
                for (row, (products, there)) in (block * S::ROWS..).zip(rows) {
                    highest.look_at(row as u32, products);
                    // The columns that fill up the last panel are nobody's.
                    there.look_at(number * width, &products[..second.len()]);
                }
            }
            for (back, (&row, &product)) in back.iter_mut().zip(highest.rows.iter().zip(&highest.products)) {
                *back = Nearest { index: row as usize, product };
            }
        }
    }
}

/// The highest product of each column of a panel, and in which row it is.
struct Columns {
    products: [f32; MAX_COLUMNS],
    rows: [u32; MAX_COLUMNS],
}

impl Columns {
    /// Column by column, but in vectors.
    #[inline(always)]
    fn look_at(&mut self, row: u32, products: &[f32]) {
        for ((highest, highest_row), &product) in self.products.iter_mut().zip(&mut self.rows).zip(products) {
            let higher = product > *highest;
            *highest = if higher { product } else { *highest };
            *highest_row = if higher { row } else { *highest_row };
        }
    }
}

impl Nearest {
    /// `first` is the index of the first product.
    #[inline(always)]
    fn look_at(&mut self, first: usize, products: &[f32]) {
        // Rarely true, and quickly found out for all of them together, in vectors.
        if products.iter().fold(false, |any, &product| any | (product > self.product)) {
            for (index, &product) in (first..).zip(products) {
                if product > self.product {
                    *self = Self { index, product };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole numbers, so that every order of summation gives the same, and many products are equal.
    fn descriptors(count: usize, seed: usize) -> Vec<Descriptor> {
        let value = |index: usize| ((index.wrapping_mul(2_654_435_761) >> 7) % 3) as f32 - 1.0;
        (0..count).map(|row| std::array::from_fn(|k| value((row * DESCRIPTOR_DIM + k) * 31 + seed))).collect()
    }

    /// The definition, one product after the other.
    fn by_definition(first: &[Descriptor], second: &[Descriptor]) -> Vec<Nearest> {
        let product = |a: &Descriptor, b: &Descriptor| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let nearest = |a| {
            second.iter().enumerate().fold(Nearest::NONE, |best, (index, b)| {
                let product = product(a, b);
                if product > best.product { Nearest { index, product } } else { best }
            })
        };
        first.iter().map(nearest).collect()
    }

    #[test]
    fn every_instruction_set_finds_the_nearest_and_of_equal_ones_the_first() {
        // Less than a tile, whole tiles, and some left over in each direction.
        for (rows, columns) in [(1, 1), (5, 3), (12, 32), (24, 64), (13, 33), (100, 70), (70, 131)] {
            let (first, second) = (descriptors(rows, 1), descriptors(columns, 2));
            let expected = (by_definition(&first, &second), by_definition(&second, &first));
            for instructions in InstructionSet::available().chain([InstructionSet::WIDE]) {
                let found = nearest(&first, &second, instructions);
                assert_eq!(found, expected, "{rows} and {columns}, {}", instructions.name());
            }
        }
    }

    #[test]
    fn negative_products_are_not_outdone_by_the_columns_that_fill_up() {
        let (one, minus) = ([1.0; DESCRIPTOR_DIM], [-1.0; DESCRIPTOR_DIM]);
        for instructions in InstructionSet::available() {
            let (there, back) = nearest(&[one], &[minus; 3], instructions);
            let expected = Nearest { index: 0, product: -(DESCRIPTOR_DIM as f32) };
            assert_eq!((there, back), (vec![expected], vec![expected; 3]), "{}", instructions.name());
        }
    }

    #[test]
    fn nothing_is_near_to_nothing() {
        let some = descriptors(3, 1);
        for (first, second) in [(&some[..], &[][..]), (&[], &some), (&[], &[])] {
            assert_eq!(nearest(first, second, InstructionSet::detect()), (Vec::new(), Vec::new()));
        }
    }
}
