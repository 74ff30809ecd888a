//! Entropy-coded data to coefficients.

use super::huffman::{Bits, Table};
use super::samples::{self, Plane, compiled_for_the_machine};
use super::{Component, Frame, Refusal};

/// What a scan's header says.
pub(super) struct Scan {
    /// Component, DC table, AC table.
    pub(super) components: Vec<(usize, usize, usize)>,
    /// First and last coefficient.
    band: (u32, u32),
    /// Whether the coefficients were there before, with one bit less.
    refining: bool,
    /// The lowest bit that this scan gives.
    low: u32,
}

/// The tables as they stand before the scan.
pub(super) struct Tables<'a> {
    pub(super) dc: &'a [Option<Table>; 4],
    pub(super) ac: &'a [Option<Table>; 4],
}

/// Length of the entropy-coded data at the beginning of `data`: up to the next marker that does not belong to it.
pub(super) fn end(data: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = memchr::memchr(0xff, &data[at..]) {
        at += found;
        match data.get(at + 1) {
            None => break,
            Some(0x00 | 0xd0..=0xd7) => at += 2,
            Some(0xff) => at += 1,
            Some(_) => return at,
        }
    }
    data.len()
}

/// The data of a scan without stuffing, restart interval by restart interval.
pub(super) struct Intervals {
    bytes: Vec<u8>,
    /// Where each interval ends.
    ends: Vec<usize>,
    /// Units an interval; the last may have fewer.
    units: usize,
}

impl Intervals {
    pub(super) fn new(data: &[u8], restart_interval: usize, memory: Vec<u8>) -> Result<Self, Refusal> {
        let mut bytes = memory;
        bytes.clear();
        bytes.reserve(data.len());
        let mut ends = Vec::new();
        let mut rest = data;
        while let Some(found) = memchr::memchr(0xff, rest) {
            match rest.get(found + 1) {
                Some(0x00) => {
                    bytes.extend_from_slice(&rest[..=found]);
                    rest = &rest[found + 2..];
                }
                Some(0xd0..=0xd7) => {
                    bytes.extend_from_slice(&rest[..found]);
                    ends.push(bytes.len());
                    rest = &rest[found + 2..];
                }
                // A fill byte; or the end of the file in the middle of a marker.
                _ => {
                    bytes.extend_from_slice(&rest[..found]);
                    rest = &rest[found + 1..];
                }
            }
        }
        bytes.extend_from_slice(rest);
        ends.push(bytes.len());
        if restart_interval == 0 && ends.len() > 1 {
            return Err(Refusal::Unsupported);
        }
        Ok(Self { bytes, ends, units: if restart_interval == 0 { usize::MAX } else { restart_interval } })
    }
}

impl Intervals {
    pub(super) fn into_memory(self) -> Vec<u8> {
        self.bytes
    }
}

/// What a kind of scan does with each of its blocks.
trait Blocks {
    /// Forgets what came before: a restart interval begins.
    fn restart(&mut self);

    /// Reads the block at a column and row of the scan's `place`-th component.
    fn block(&mut self, bits: &mut Bits<'_>, place: usize, at: (usize, usize)) -> Result<(), Refusal>;
}

impl Scan {
    pub(super) fn read(header: &[u8], frame: &Frame) -> Result<Self, Refusal> {
        let (&count, rest) = header.split_first().ok_or(Refusal::Unsupported)?;
        let (selectors, rest) = rest.split_at_checked(2 * usize::from(count)).ok_or(Refusal::Unsupported)?;
        let [first, last, bits] = *rest else { return Err(Refusal::Unsupported) };
        let mut components = Vec::new();
        for selector in selectors.chunks_exact(2) {
            let component = frame.components.iter().position(|c| c.id == selector[0]).ok_or(Refusal::Unsupported)?;
            components.push((component, usize::from(selector[1] >> 4), usize::from(selector[1] & 15)));
        }
        let ascending = components.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let (high, low) = (u32::from(bits >> 4), u32::from(bits & 15));
        let in_range = match (frame.progressive, first) {
            (false, _) => (first, last, bits) == (0, 63, 0),
            (true, 0) => last == 0,
            (true, _) => first <= last && last < 64 && components.len() == 1,
        };
        let bits_in_range = low <= 13 && (high == 0 || high == low + 1);
        if components.is_empty() || !ascending || !in_range || !bits_in_range {
            return Err(Refusal::Unsupported);
        }
        Ok(Self { components, band: (u32::from(first), u32::from(last)), refining: high != 0, low })
    }

    /// Visits every block of the scan in the order of the code.
    #[inline(always)]
    fn visit(&self, frame: &Frame, intervals: &Intervals, blocks: &mut impl Blocks) -> Result<(), Refusal> {
        /// How often the end of the data is looked for.
        const PATIENCE: usize = 64;
        // Alone, a component comes block by block, without those that fill up units.
        let (across, down) = match self.components[..] {
            [(component, _, _)] => frame.components[component].blocks,
            _ => frame.units,
        };
        // The blocks of a unit: place, how many across and down, which of them.
        let mut unit = Vec::new();
        for (place, &(component, _, _)) in self.components.iter().enumerate() {
            let Component { across, down, .. } = frame.components[component];
            let (across, down) = if self.components.len() == 1 { (1, 1) } else { (across, down) };
            unit.extend((0..down * across).map(|index| (place, across, down, index % across, index / across)));
        }
        let count = across * down;
        let (mut start, mut next) = (0, 0_usize);
        for &end in &intervals.ends {
            let mut bits = Bits::new(&intervals.bytes[start..end]);
            blocks.restart();
            let last = next.saturating_add(intervals.units).min(count);
            while next < last {
                let (column, row) = (next % across, next / across);
                for &(place, across, down, x, y) in &unit {
                    blocks.block(&mut bits, place, (column * across + x, row * down + y))?;
                }
                next += 1;
                if next % PATIENCE == 0 && bits.overrun() {
                    return Err(Refusal::Unsupported);
                }
            }
            if bits.overrun() {
                return Err(Refusal::Unsupported);
            }
            start = end;
        }
        if next < count { Err(Refusal::Unsupported) } else { Ok(()) }
    }

    fn table<'a>(tables: &'a [Option<Table>; 4], index: usize) -> Result<&'a Table, Refusal> {
        tables.get(index).and_then(Option::as_ref).ok_or(Refusal::Unsupported)
    }

    /// A baseline scan: each block is complete, and transformed at once.
    pub(super) fn baseline(
        &self,
        frame: &Frame,
        tables: &Tables<'_>,
        intervals: &Intervals,
        quantization: &[[u16; 64]],
        planes: &mut [Option<Plane>],
    ) -> Result<(), Refusal> {
        let mut coders = Vec::new();
        for &(component, dc, ac) in &self.components {
            coders.push(Coder {
                component,
                dc: Some(Self::table(tables.dc, dc)?),
                ac: Some(Self::table(tables.ac, ac)?),
                predictor: 0,
            });
        }
        visit_baseline(self, frame, intervals, &mut Baseline { coders, quantization, planes })
    }

    /// A progressive scan: some coefficients, or one more bit of them.
    pub(super) fn progressive(
        &self,
        frame: &Frame,
        tables: &Tables<'_>,
        intervals: &Intervals,
        coefficients: &mut [Coefficients],
    ) -> Result<(), Refusal> {
        let Self { low, refining, .. } = *self;
        if self.band.0 == 0 {
            let mut coders = Vec::new();
            for &(component, dc, _) in &self.components {
                // Refinement has no codes, and may come without a table.
                let dc = if refining { None } else { Some(Self::table(tables.dc, dc)?) };
                coders.push(Coder { component, dc, ac: None, predictor: 0 });
            }
            return visit_dc(self, frame, intervals, &mut Dc { coders, low, coefficients });
        }
        let (component, _, ac) = self.components[0];
        let table = Self::table(tables.ac, ac)?;
        let coefficients = &mut coefficients[component];
        let mut band = Band { table, band: self.band, low, refining, coefficients, empty_blocks: 0 };
        visit_band(self, frame, intervals, &mut band)
    }
}

compiled_for_the_machine! {
    fn visit_baseline(scan: &Scan, frame: &Frame, intervals: &Intervals, blocks: &mut Baseline<'_>) -> Result<(), Refusal>
        = Scan::visit
}
compiled_for_the_machine! {
    fn visit_dc(scan: &Scan, frame: &Frame, intervals: &Intervals, blocks: &mut Dc<'_>) -> Result<(), Refusal> = Scan::visit
}
compiled_for_the_machine! {
    fn visit_band(scan: &Scan, frame: &Frame, intervals: &Intervals, blocks: &mut Band<'_>) -> Result<(), Refusal>
        = Scan::visit
}

/// One component of a scan.
struct Coder<'a> {
    component: usize,
    dc: Option<&'a Table>,
    ac: Option<&'a Table>,
    /// The constant coefficient of the block before.
    predictor: i32,
}

impl Coder<'_> {
    /// The next block's constant coefficient, which comes as a difference.
    #[inline(always)]
    fn constant(&mut self, table: &Table, bits: &mut Bits<'_>) -> Result<i32, Refusal> {
        let size = bits.symbol(table)?;
        self.predictor = self.predictor.wrapping_add(bits.number(u32::from(size & 15)));
        Ok(self.predictor)
    }
}

/// Blocks that come whole.
struct Baseline<'a> {
    coders: Vec<Coder<'a>>,
    quantization: &'a [[u16; 64]],
    planes: &'a mut [Option<Plane>],
}

impl Blocks for Baseline<'_> {
    fn restart(&mut self) {
        self.coders.iter_mut().for_each(|coder| coder.predictor = 0);
    }

    #[inline(always)]
    fn block(&mut self, bits: &mut Bits<'_>, place: usize, at: (usize, usize)) -> Result<(), Refusal> {
        let coder = &mut self.coders[place];
        let (Some(dc), Some(ac)) = (coder.dc, coder.ac) else { return Err(Refusal::Unsupported) };
        let mut block = [0_i16; 64];
        block[0] = coder.constant(dc, bits)? as i16;
        let mut present = 1_u64;
        let mut index = 1_usize;
        while index < 64 {
            let symbol = bits.symbol(ac)?;
            let (run, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            if size == 0 {
                if run < 15 {
                    break;
                }
                index += 16;
                continue;
            }
            index += run;
            let value = bits.number(size);
            let slot = block.get_mut(index).ok_or(Refusal::Unsupported)?;
            *slot = value as i16;
            present |= 1 << index;
            index += 1;
        }
        if let Some(plane) = &mut self.planes[coder.component] {
            samples::transform(&block, present, &self.quantization[coder.component], plane.block(at));
        }
        Ok(())
    }
}

/// The constant coefficients of a progressive file.
struct Dc<'a> {
    coders: Vec<Coder<'a>>,
    low: u32,
    coefficients: &'a mut [Coefficients],
}

impl Blocks for Dc<'_> {
    fn restart(&mut self) {
        self.coders.iter_mut().for_each(|coder| coder.predictor = 0);
    }

    #[inline(always)]
    fn block(&mut self, bits: &mut Bits<'_>, place: usize, at: (usize, usize)) -> Result<(), Refusal> {
        let coder = &mut self.coders[place];
        let (block, _) = self.coefficients[coder.component].block(at);
        match coder.dc {
            Some(table) => block[0] = (coder.constant(table, bits)? << self.low) as i16,
            None => block[0] |= (bits.take(1) << self.low) as i16,
        }
        Ok(())
    }
}

/// The other coefficients of one component of a progressive file.
struct Band<'a> {
    table: &'a Table,
    /// First and last coefficient.
    band: (u32, u32),
    low: u32,
    refining: bool,
    coefficients: &'a mut Coefficients,
    /// Number of blocks, this one included, in whose band nothing new comes.
    empty_blocks: u32,
}

impl Blocks for Band<'_> {
    fn restart(&mut self) {
        self.empty_blocks = 0;
    }

    #[inline(always)]
    fn block(&mut self, bits: &mut Bits<'_>, _: usize, at: (usize, usize)) -> Result<(), Refusal> {
        let (block, present) = self.coefficients.block(at);
        let (table, band, low, empty_blocks) = (self.table, self.band, self.low, &mut self.empty_blocks);
        if self.refining {
            refine(bits, table, band, low, block, present, empty_blocks)
        } else {
            first_bits(bits, table, band, low, block, present, empty_blocks)
        }
    }
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
        block[index as usize & 63] = (bits.number(size) << low) as i16;
        *present |= 1 << index;
        index += 1;
    }
    Ok(())
}

/// One more bit for the band of a block (T.81, G.1.2.3). `present` has a bit for each coefficient that is not zero, so
/// that the next of either kind is found without looking at all of them.
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
    let band_end = u64::MAX >> (63 - last);
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
            let from_here = u64::MAX << index;
            let mut zeros = !*present & band_end & from_here;
            for _ in 0..run {
                zeros &= zeros.wrapping_sub(1);
            }
            let target = zeros.trailing_zeros().min(last + 1);
            let up_to_target = if target == 64 { u64::MAX } else { !(u64::MAX << target) };
            correct(bits, *present & from_here & up_to_target, low, block);
            if new != 0 {
                if target > last {
                    return Err(Refusal::Unsupported);
                }
                block[target as usize & 63] = new;
                *present |= 1 << target;
            }
            index = target + 1;
        }
    }
    if *empty_blocks > 0 {
        if index <= last {
            correct(bits, *present & band_end & (u64::MAX << index), low, block);
        }
        *empty_blocks -= 1;
    }
    Ok(())
}

/// One bit for each of these coefficients: whether it moves away from zero.
#[inline(always)]
fn correct(bits: &mut Bits<'_>, mut which: u64, low: u32, block: &mut [i16; 64]) {
    while which != 0 {
        let count = which.count_ones().min(32);
        let mut corrections = bits.take(count) << (32 - count);
        for _ in 0..count {
            let coefficient = &mut block[which.trailing_zeros() as usize];
            let away = (*coefficient >> 15) | 1;
            let bit = (corrections >> 31) as i16;
            *coefficient = coefficient.wrapping_add((away * bit) << low);
            corrections <<= 1;
            which &= which - 1;
        }
    }
}

/// The coefficients of a component, collected over the scans of a progressive file.
pub(super) struct Coefficients {
    /// In the code's order.
    blocks: Vec<[i16; 64]>,
    /// For each block, a bit for each coefficient that is not zero.
    present: Vec<u64>,
    across: usize,
}

impl Coefficients {
    /// All zero, in memory that was used before.
    pub(super) fn new(component: &Component, (mut blocks, mut present): (Vec<[i16; 64]>, Vec<u64>)) -> Self {
        let (across, down) = component.padded;
        blocks.clear();
        blocks.resize(across * down, [0; 64]);
        present.clear();
        present.resize(across * down, 1);
        Self { blocks, present, across }
    }

    pub(super) fn into_memory(self) -> (Vec<[i16; 64]>, Vec<u64>) {
        (self.blocks, self.present)
    }

    #[inline(always)]
    fn block(&mut self, (column, row): (usize, usize)) -> (&mut [i16; 64], &mut u64) {
        let index = row * self.across + column;
        (&mut self.blocks[index], &mut self.present[index])
    }

    /// Their samples.
    pub(super) fn transform(&self, component: &Component, quantization: &[u16; 64], memory: Vec<u8>) -> Plane {
        let mut plane = Plane::new(component, memory);
        transform_all(self, quantization, &mut plane);
        plane
    }

    #[inline(always)]
    fn transform_into(&self, quantization: &[u16; 64], plane: &mut Plane) {
        for (index, (block, &present)) in self.blocks.iter().zip(&self.present).enumerate() {
            let at = (index % self.across, index / self.across);
            samples::transform(block, present, quantization, plane.block(at));
        }
    }
}

compiled_for_the_machine! {
    fn transform_all(coefficients: &Coefficients, quantization: &[u16; 64], plane: &mut Plane) = Coefficients::transform_into
}
