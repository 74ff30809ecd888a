//! The coefficients of a progressive file, but for the constant ones: all scans of a component in step.
//!
//! One scan after the other, each would go through the whole picture's coefficients, which are larger than the caches:
//! waiting for memory was most of the time. Here each block is decoded from all of its scans, and transformed, before
//! the next; its coefficients never leave the first cache, and are kept nowhere.

use multiversion::multiversion;

use super::huffman::{Bits, Table};
use super::samples::{self, Plane};
use super::scan::Intervals;
use super::{Component, Refusal, ZIGZAG};

/// One scan of one component, not decoded yet.
pub(super) struct Band {
    pub(super) table: Table,
    /// First and last coefficient, in the code's order.
    pub(super) range: (u32, u32),
    /// The lowest bit that this scan gives.
    pub(super) low: u32,
    /// Whether the coefficients were there before, with one bit less.
    pub(super) refining: bool,
    pub(super) intervals: Intervals,
}

/// How far a scan has come.
struct Progress<'a> {
    band: &'a Band,
    bits: Bits<'a>,
    interval: usize,
    /// Blocks up to the next restart.
    left: usize,
    /// Number of blocks in whose band nothing new comes.
    empty_blocks: u32,
}

impl<'a> Progress<'a> {
    fn new(band: &'a Band) -> Self {
        Self { band, bits: Bits::new(&[]), interval: 0, left: 0, empty_blocks: 0 }
    }

    /// The next block's part of the scan.
    #[inline(always)]
    fn block(&mut self, block: &mut [i16; 64], present: &mut u64) -> Result<(), Refusal> {
        if self.left == 0 {
            self.restart()?;
        }
        self.left -= 1;
        let Self { band: Band { table, range, low, refining, .. }, bits, empty_blocks, .. } = self;
        if *refining {
            refine(bits, table, *range, *low, block, present, empty_blocks)
        } else {
            first_bits(bits, table, *range, *low, block, present, empty_blocks)
        }
    }

    #[cold]
    fn restart(&mut self) -> Result<(), Refusal> {
        self.check()?;
        (self.bits, self.left) = self.band.intervals.bits(self.interval).ok_or(Refusal::Unsupported)?;
        self.interval += 1;
        self.empty_blocks = 0;
        Ok(())
    }

    fn check(&self) -> Result<(), Refusal> {
        if self.bits.overrun() { Err(Refusal::Unsupported) } else { Ok(()) }
    }
}

/// Decodes and transforms a component, whose constant coefficients are there already.
pub(super) fn transform(
    component: &Component,
    constants: &[i16],
    bands: &[Band],
    quantization: &[u16; 64],
    memory: Vec<u8>,
) -> Result<Plane, Refusal> {
    let mut plane = Plane::new(component, memory);
    transform_blocks(component, constants, bands, quantization, &mut plane)?;
    Ok(plane)
}

#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt+popcnt"))]
fn transform_blocks(
    component: &Component,
    constants: &[i16],
    bands: &[Band],
    quantization: &[u16; 64],
    plane: &mut Plane,
) -> Result<(), Refusal> {
    let mut scans: Vec<Progress<'_>> = bands.iter().map(Progress::new).collect();
    let (across, down) = component.blocks;
    for row in 0..down {
        for column in 0..across {
            let mut block = [0; 64];
            block[0] = constants[row * component.padded.0 + column];
            let mut present = 1;
            for scan in &mut scans {
                scan.block(&mut block, &mut present)?;
            }
            samples::transform(&block, present, quantization, plane.block((column, row)));
        }
        // Not at the end alone: behind the end of the data there are zeros without end.
        scans.iter().try_for_each(Progress::check)?;
    }
    Ok(())
}

/// Where a coefficient lies in the block.
#[inline(always)]
fn place(index: u32) -> usize {
    usize::from(ZIGZAG[index as usize & 63])
}

/// The band of a block for the first time (T.81, G.1.2.2).
#[inline(always)]
fn first_bits(
    bits: &mut Bits<'_>,
    table: &Table,
    (first, last): (u32, u32),
    low: u32,
    block: &mut [i16; 64],
    present: &mut u64,
    empty_blocks: &mut u32,
) -> Result<(), Refusal> {
    if *empty_blocks > 0 {
        *empty_blocks -= 1;
        return Ok(());
    }
    let mut index = first;
    while index <= last {
        let symbol = bits.symbol(table)?;
        let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        if size == 0 {
            if run < 15 {
                *empty_blocks = (1 << run) + bits.behind_symbol(run) - 1;
                return Ok(());
            }
            index += 16;
            continue;
        }
        index += run;
        if index > last {
            return Err(Refusal::Unsupported);
        }
        block[place(index)] = (bits.number(size) << low) as i16;
        *present |= 1 << index;
        index += 1;
    }
    Ok(())
}

/// One more bit for the band of a block (T.81, G.1.2.3).
///
/// `present` has a bit for each coefficient that is not zero, so the next of either kind is found without looking at
/// all of them. Those that were there before get one bit each, in their order, between the codes for new ones: these
/// bits are collected, and applied at the end in one go, because short loops of unforeseeable length are what costs.
#[inline(always)]
fn refine(
    bits: &mut Bits<'_>,
    table: &Table,
    (first, last): (u32, u32),
    low: u32,
    block: &mut [i16; 64],
    present: &mut u64,
    empty_blocks: &mut u32,
) -> Result<(), Refusal> {
    let band = (u64::MAX >> (63 - last)) & (u64::MAX << first);
    let old = *present & band;
    let mut zeros = !*present & band;
    let mut corrections = Corrections::default();
    let mut index = first;
    if *empty_blocks == 0 {
        while index <= last {
            let symbol = bits.symbol(table)?;
            let (run, size) = (u32::from(symbol >> 4), symbol & 15);
            let mut new = 0_i16;
            if size == 0 {
                if run < 15 {
                    *empty_blocks = (1 << run) + bits.behind_symbol(run);
                    break;
                }
            } else if size == 1 {
                new = if bits.behind_symbol(1) == 1 { 1 << low } else { -1 << low };
            } else {
                return Err(Refusal::Unsupported);
            }
            // The zero behind `run` other zeros; all that is not zero on the way gets its bit.
            zeros = without_lowest(zeros, run);
            let target = zeros.trailing_zeros().min(last + 1);
            let on_the_way = old & (u64::MAX << index) & !u64::MAX.checked_shl(target).unwrap_or(0);
            corrections.collect(bits, on_the_way.count_ones());
            if new != 0 {
                if target > last {
                    return Err(Refusal::Unsupported);
                }
                block[place(target)] = new;
                *present |= 1 << target;
            }
            zeros &= zeros.wrapping_sub(1);
            index = target + 1;
        }
    }
    if *empty_blocks > 0 {
        if index <= last {
            corrections.collect(bits, (old & (u64::MAX << index)).count_ones());
        }
        *empty_blocks -= 1;
    }
    corrections.apply(old, low, block);
    Ok(())
}

/// Clears the lowest bits that are set, up to 15 of them. Without a loop, whose length nobody could foresee.
#[inline(always)]
fn without_lowest(mut bits: u64, count: u32) -> u64 {
    let less = |bits: u64| bits & bits.wrapping_sub(1);
    if count & 8 != 0 {
        bits = less(less(less(less(less(less(less(less(bits))))))));
    }
    let four = less(less(less(less(bits))));
    bits = if count & 4 != 0 { four } else { bits };
    let two = less(less(bits));
    bits = if count & 2 != 0 { two } else { bits };
    let one = less(bits);
    if count & 1 != 0 { one } else { bits }
}

/// One bit for each coefficient that was there before: whether it moves away from zero.
#[derive(Default)]
struct Corrections {
    /// The first one highest, among the lowest `count`.
    bits: u64,
    count: u32,
}

impl Corrections {
    /// Reads the next `count` bits, directly behind a symbol and its sign.
    #[inline(always)]
    fn collect(&mut self, bits: &mut Bits<'_>, mut count: u32) {
        while count > 32 {
            self.push(bits.take(32), 32);
            count -= 32;
        }
        self.push(bits.take(count), count);
    }

    #[inline(always)]
    fn push(&mut self, next: u32, count: u32) {
        self.bits = self.bits << count | u64::from(next);
        self.count += count;
    }

    #[inline(always)]
    fn apply(&self, mut which: u64, low: u32, block: &mut [i16; 64]) {
        if self.bits == 0 {
            return;
        }
        // There are 63 at most.
        let mut rest = self.bits << (64 - self.count);
        while which != 0 {
            let coefficient = &mut block[place(which.trailing_zeros())];
            let away = (*coefficient >> 15) | 1;
            *coefficient = coefficient.wrapping_add((away * (rest >> 63) as i16) << low);
            rest <<= 1;
            which &= which - 1;
        }
    }
}
