//! A scan: what its header says, its data, and the kinds of scan that are decoded as they come.

use multiversion::multiversion;

use super::band::Band;
use super::huffman::{Bits, Table};
use super::samples::{self, Plane};
use super::{Component, Frame, Refusal, ZIGZAG};

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
    pub(super) fn new(data: &[u8], restart_interval: usize) -> Result<Self, Refusal> {
        let mut bytes = Vec::with_capacity(data.len());
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
    /// The bits of an interval, and how many units they are at most.
    pub(super) fn bits(&self, interval: usize) -> Option<(Bits<'_>, usize)> {
        let end = *self.ends.get(interval)?;
        let start = if interval == 0 { 0 } else { self.ends[interval - 1] };
        Some((Bits::new(&self.bytes[start..end]), self.units))
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
        // Counted along, because a division for each block is a tenth of the time.
        let (mut column, mut row) = (0, 0);
        for &end in &intervals.ends {
            let mut bits = Bits::new(&intervals.bytes[start..end]);
            blocks.restart();
            let last = next.saturating_add(intervals.units).min(count);
            while next < last {
                for &(place, across, down, x, y) in &unit {
                    blocks.block(&mut bits, place, (column * across + x, row * down + y))?;
                }
                next += 1;
                column += 1;
                if column == across {
                    (column, row) = (0, row + 1);
                    if bits.overrun() {
                        return Err(Refusal::Unsupported);
                    }
                }
            }
            if bits.overrun() {
                return Err(Refusal::Unsupported);
            }
            start = end;
        }
        if next < count { Err(Refusal::Unsupported) } else { Ok(()) }
    }

    fn table(tables: &[Option<Table>; 4], index: usize) -> Result<&Table, Refusal> {
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

    /// A progressive scan of the constant coefficients: their first bits, or one more.
    pub(super) fn constants(
        &self,
        frame: &Frame,
        tables: &Tables<'_>,
        intervals: &Intervals,
        constants: &mut [Vec<i16>],
    ) -> Result<(), Refusal> {
        let mut coders = Vec::new();
        for &(component, dc, _) in &self.components {
            // Refinement has no codes, and may come without a table.
            let dc = if self.refining { None } else { Some(Self::table(tables.dc, dc)?) };
            let across = frame.components[component].padded.0;
            coders.push((Coder { component, dc, ac: None, predictor: 0 }, across));
        }
        visit_constants(self, frame, intervals, &mut Constants { coders, low: self.low, constants })
    }

    /// A progressive scan of other coefficients, of one component. It is decoded later, with the others of its kind.
    pub(super) fn band(&self, tables: &Tables<'_>, intervals: Intervals) -> Result<Band, Refusal> {
        let table = Self::table(tables.ac, self.components[0].2)?.clone();
        Ok(Band { table, range: self.band, low: self.low, refining: self.refining, intervals })
    }

    /// Whether it is of constant coefficients.
    pub(super) fn is_of_constants(&self) -> bool {
        self.band.0 == 0
    }
}

#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt+popcnt"))]
fn visit_baseline(scan: &Scan, frame: &Frame, intervals: &Intervals, blocks: &mut Baseline<'_>) -> Result<(), Refusal> {
    scan.visit(frame, intervals, blocks)
}

#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt+popcnt"))]
fn visit_constants(
    scan: &Scan,
    frame: &Frame,
    intervals: &Intervals,
    blocks: &mut Constants<'_>,
) -> Result<(), Refusal> {
    scan.visit(frame, intervals, blocks)
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
            let place = *ZIGZAG.get(index).ok_or(Refusal::Unsupported)?;
            block[usize::from(place)] = value as i16;
            present |= 1 << index;
            index += 1;
        }
        if let Some(plane) = &mut self.planes[coder.component] {
            samples::transform(&block, present, &self.quantization[coder.component], plane.block(at));
        }
        Ok(())
    }
}

/// The constant coefficients of a progressive file, each component's without gaps.
struct Constants<'a> {
    /// With the number of blocks across.
    coders: Vec<(Coder<'a>, usize)>,
    low: u32,
    constants: &'a mut [Vec<i16>],
}

impl Blocks for Constants<'_> {
    fn restart(&mut self) {
        self.coders.iter_mut().for_each(|(coder, _)| coder.predictor = 0);
    }

    #[inline(always)]
    fn block(&mut self, bits: &mut Bits<'_>, place: usize, (column, row): (usize, usize)) -> Result<(), Refusal> {
        let (coder, across) = &mut self.coders[place];
        let constant = &mut self.constants[coder.component][row * *across + column];
        match coder.dc {
            Some(table) => *constant = (coder.constant(table, bits)? << self.low) as i16,
            None => *constant |= (bits.take(1) << self.low) as i16,
        }
        Ok(())
    }
}
