//! The first channel of a JPEG, and nothing else of it.
//!
//! Red is `Y + 1.402 (Cr - 128)`: blue-difference needs no inverse transform, no upsampling, and in progressive files
//! most of its data need not even be read. A general decoder cannot leave that out, and decoding is the largest part
//! of a request outside the network. The arithmetic is libjpeg's (`jidctint.c`, `jdsample.c`, `jdcolor.c` of
//! libjpeg-turbo, with its defaults), so the samples equal Pillow's and OpenCV's bit by bit.
//!
//! | module | what it is |
//! |---|---|
//! | this | markers: what the file declares |
//! | `huffman` | bits and codes |
//! | `scan`, `band` | entropy-coded data to coefficients, baseline and progressive |
//! | `idct`, `samples` | coefficients to samples |
//!
//! It decodes what cameras and libraries write: 8 bits, Huffman-coded, gray or YCbCr with any of the usual
//! subsamplings. For everything else it says [`Refusal::Unsupported`], and a general decoder takes over.
//! Source: ITU-T T.81.

mod band;
mod huffman;
mod idct;
mod samples;
mod scan;

use std::cell::RefCell;
use std::mem::take;

use band::Band;
use huffman::Table;
use samples::Plane;
use tt_backend::Size;

/// Why a file is not decoded here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A kind of JPEG, or of damage, that a general decoder may know better.
    #[error("not a kind of JPEG that is decoded here")]
    Unsupported,
    /// The data end too early.
    #[error("the JPEG is cut off")]
    CutOff,
    /// More pixels than the caller wants.
    #[error("the JPEG declares {width} x {height} pixels")]
    TooLarge {
        /// Declared width.
        width: usize,
        /// Declared height.
        height: usize,
    },
}

/// Order in which coefficients are coded: index in the code to index in the block, row by row.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
];

/// One of the file's components: Y, Cb or Cr.
#[derive(Clone, Copy, Debug)]
struct Component {
    id: u8,
    /// Sampling factors across and down, 1 or 2.
    across: usize,
    down: usize,
    /// Which quantization table.
    table: usize,
    /// Blocks that hold samples of the picture.
    blocks: (usize, usize),
    /// Blocks with those that fill up the last units.
    padded: (usize, usize),
    /// Samples of the picture, across and down.
    samples: (usize, usize),
}

/// What the frame header declares.
#[derive(Clone, Debug)]
struct Frame {
    size: Size,
    progressive: bool,
    components: Vec<Component>,
    /// Units (MCUs) across and down.
    units: (usize, usize),
}

impl Frame {
    /// Reads the segment of a SOF0, SOF1 or SOF2 marker.
    fn read(segment: &[u8], progressive: bool) -> Result<Self, Refusal> {
        let [8, h1, h0, w1, w0, count, rest @ ..] = segment else { return Err(Refusal::Unsupported) };
        let size = Size::new(usize::from(u16::from_be_bytes([*h1, *h0])), usize::from(u16::from_be_bytes([*w1, *w0])));
        if size.height == 0 || size.width == 0 || !matches!(count, 1 | 3) || rest.len() < 3 * usize::from(*count) {
            return Err(Refusal::Unsupported);
        }
        let mut factors: Vec<(u8, usize, usize, usize)> = rest
            .chunks_exact(3)
            .take(usize::from(*count))
            .map(|part| (part[0], usize::from(part[1] >> 4), usize::from(part[1] & 15), usize::from(part[2])))
            .collect();
        if let [gray] = factors.as_mut_slice() {
            // Alone, its factors mean nothing: a unit is a block.
            (gray.1, gray.2) = (1, 1);
        }
        // The first component is the finest, the others have half or all of its samples on an axis.
        let (most_across, most_down) = (factors[0].1, factors[0].2);
        let usual = factors.iter().enumerate().all(|(index, &(_, across, down, table))| {
            table < 4
                && matches!(most_across, 1 | 2)
                && matches!(most_down, 1 | 2)
                && (index == 0 || (across, down) == (1, 1))
        });
        if !usual {
            return Err(Refusal::Unsupported);
        }
        let units = (size.width.div_ceil(8 * most_across), size.height.div_ceil(8 * most_down));
        let components = factors
            .iter()
            .map(|&(id, across, down, table)| {
                let samples = ((size.width * across).div_ceil(most_across), (size.height * down).div_ceil(most_down));
                Component {
                    id,
                    across,
                    down,
                    table,
                    samples,
                    blocks: (samples.0.div_ceil(8), samples.1.div_ceil(8)),
                    padded: (units.0 * across, units.1 * down),
                }
            })
            .collect();
        Ok(Self { size, progressive, components, units })
    }

    /// Whether the samples of a component are needed for the first channel: those of Cb are not.
    fn needs(&self, component: usize) -> bool {
        component != 1
    }
}

/// Memory for the next picture of this thread: fresh pages from the system cost more than what is done with them.
#[derive(Default)]
struct Spare {
    planes: [Vec<u8>; 3],
}

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

impl Spare {
    /// Memory of larger pictures is given back.
    const MOST_BYTES: usize = 16 << 20;

    fn is_small(&self) -> bool {
        self.planes.iter().map(Vec::capacity).sum::<usize>() <= Self::MOST_BYTES
    }
}

/// Scans beyond this are refused: each costs time, however short it is. libjpeg's own script has ten.
const MAX_SCANS: usize = 100;

/// Everything that was declared so far.
#[derive(Default)]
struct Decoder {
    frame: Option<Frame>,
    /// Row by row.
    quantization: [Option<[u16; 64]>; 4],
    dc: [Option<Table>; 4],
    ac: [Option<Table>; 4],
    restart_interval: usize,
    jfif: bool,
    adobe_transform: Option<u8>,
    /// Progressive: the constant coefficients of each component's blocks.
    constants: Vec<Vec<i16>>,
    /// Progressive: each component's other scans.
    bands: Vec<Vec<Band>>,
    /// The components whose samples came in a baseline scan.
    planes: Vec<Option<Plane>>,
    scanned: [bool; 3],
    scans: usize,
    spare: Spare,
}

/// The samples of the first channel: R of a colour picture, Y of a gray one.
///
/// # Errors
///
/// [`Refusal`]; too large is found out before memory is taken.
pub fn first_channel(file: &[u8], max_pixels: u64) -> Result<(Vec<u8>, Size), Refusal> {
    let mut decoder = Decoder { spare: SPARE.take(), ..Decoder::default() };
    let result = decoder.decode(file, max_pixels);
    let spare = decoder.into_spare();
    if spare.is_small() {
        SPARE.replace(spare);
    }
    result
}

impl Decoder {
    fn decode(&mut self, file: &[u8], max_pixels: u64) -> Result<(Vec<u8>, Size), Refusal> {
        let mut at = match file {
            [0xff, 0xd8, ..] => 2,
            _ => return Err(Refusal::Unsupported),
        };
        loop {
            // Any number of fill bytes may stand before a marker.
            let marker = loop {
                match file.get(at..) {
                    Some([0xff, 0xff, ..]) => at += 1,
                    Some([0xff, marker, ..]) => break *marker,
                    Some([_, _, ..]) => return Err(Refusal::Unsupported),
                    _ => return Err(Refusal::CutOff),
                }
            };
            at += 2;
            if marker == 0xd9 {
                return self.finish();
            }
            if matches!(marker, 0x01 | 0xd0..=0xd7) {
                continue;
            }
            let length = match file.get(at..) {
                Some([high, low, ..]) => usize::from(u16::from_be_bytes([*high, *low])),
                _ => return Err(Refusal::CutOff),
            };
            let segment = file.get(at + 2..at + length.max(2)).ok_or(Refusal::CutOff)?;
            at += length.max(2);
            self.segment(marker, segment, max_pixels)?;
            if marker == 0xda {
                let data = &file[at..];
                let end = scan::end(data);
                if let Err(refusal) = self.scan(segment, &data[..end]) {
                    // Damage and a missing end look alike from inside.
                    return Err(if end == data.len() { Refusal::CutOff } else { refusal });
                }
                at += end;
            }
        }
    }

    /// All memory, to be used again.
    fn into_spare(mut self) -> Spare {
        for (index, plane) in self.planes.into_iter().enumerate() {
            if let Some(plane) = plane {
                self.spare.planes[index] = plane.into_memory();
            }
        }
        self.spare
    }

    fn segment(&mut self, marker: u8, segment: &[u8], max_pixels: u64) -> Result<(), Refusal> {
        match marker {
            0xc0..=0xc2 if self.frame.is_none() => {
                let frame = Frame::read(segment, marker == 0xc2)?;
                let Size { height, width } = frame.size;
                if height as u64 * width as u64 > max_pixels {
                    return Err(Refusal::TooLarge { width, height });
                }
                if frame.progressive {
                    let blocks = |component: &Component| component.padded.0 * component.padded.1;
                    self.constants = frame.components.iter().map(|component| vec![0; blocks(component)]).collect();
                    self.bands = frame.components.iter().map(|_| Vec::new()).collect();
                }
                self.planes = frame.components.iter().map(|_| None).collect();
                self.frame = Some(frame);
            }
            // Other kinds of coding, and a second picture.
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcf => return Err(Refusal::Unsupported),
            0xc4 => self.huffman_tables(segment)?,
            0xdb => self.quantization_tables(segment)?,
            0xdc => return Err(Refusal::Unsupported), // the number of lines comes later
            0xdd => match segment {
                [high, low] => self.restart_interval = usize::from(u16::from_be_bytes([*high, *low])),
                _ => return Err(Refusal::Unsupported),
            },
            0xe0 => self.jfif |= segment.starts_with(b"JFIF\0"),
            0xee => {
                if let [b'A', b'd', b'o', b'b', b'e', _, _, _, _, _, _, transform, ..] = segment {
                    self.adobe_transform = Some(*transform);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn quantization_tables(&mut self, mut segment: &[u8]) -> Result<(), Refusal> {
        while let [head, rest @ ..] = segment {
            let bytes = if head >> 4 == 0 { 1 } else { 2 };
            let (values, rest) = rest.split_at_checked(64 * bytes).ok_or(Refusal::Unsupported)?;
            let slot = self.quantization.get_mut(usize::from(head & 15)).ok_or(Refusal::Unsupported)?;
            let mut table = [0; 64];
            for (&place, value) in ZIGZAG.iter().zip(values.chunks_exact(bytes)) {
                table[usize::from(place)] = value.iter().fold(0, |number, &byte| number << 8 | u16::from(byte));
            }
            *slot = Some(table);
            segment = rest;
        }
        Ok(())
    }

    fn huffman_tables(&mut self, mut segment: &[u8]) -> Result<(), Refusal> {
        while let [head, rest @ ..] = segment {
            let (counts, rest) = rest.split_at_checked(16).ok_or(Refusal::Unsupported)?;
            let total = counts.iter().map(|&count| usize::from(count)).sum();
            let (symbols, rest) = rest.split_at_checked(total).ok_or(Refusal::Unsupported)?;
            let tables = if head >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            let slot = tables.get_mut(usize::from(head & 15)).ok_or(Refusal::Unsupported)?;
            *slot = Some(Table::new(counts, symbols)?);
            segment = rest;
        }
        Ok(())
    }

    /// One scan: `header` is the SOS segment, `data` what follows it up to the next marker.
    fn scan(&mut self, header: &[u8], data: &[u8]) -> Result<(), Refusal> {
        self.scans += 1;
        if self.scans > MAX_SCANS {
            return Err(Refusal::Unsupported);
        }
        let frame = self.frame.as_ref().ok_or(Refusal::Unsupported)?;
        let scan = scan::Scan::read(header, frame)?;
        if scan.components.iter().all(|&(component, _, _)| !frame.needs(component)) {
            return Ok(());
        }
        let tables = scan::Tables { dc: &self.dc, ac: &self.ac };
        let intervals = scan::Intervals::new(data, self.restart_interval)?;
        if frame.progressive && scan.is_of_constants() {
            scan.constants(frame, &tables, &intervals, &mut self.constants)?;
        } else if frame.progressive {
            self.bands[scan.components[0].0].push(scan.band(&tables, intervals)?);
            return Ok(()); // alone, it does not make the component complete
        } else {
            for &(component, _, _) in &scan.components {
                if frame.needs(component) {
                    let memory = match self.planes[component].take() {
                        Some(plane) => plane.into_memory(),
                        None => take(&mut self.spare.planes[component]),
                    };
                    self.planes[component] = Some(Plane::new(&frame.components[component], memory));
                }
            }
            // A table may change between scans, so it is looked up here.
            let quantization = quantization(frame, &self.quantization)?;
            scan.baseline(frame, &tables, &intervals, &quantization, &mut self.planes)?;
        }
        for &(component, _, _) in &scan.components {
            self.scanned[component] = true;
        }
        Ok(())
    }

    fn complete(&self) -> bool {
        let needed = |frame: &Frame| (0..frame.components.len()).all(|c| !frame.needs(c) || self.scanned[c]);
        self.frame.as_ref().is_some_and(needed)
    }

    fn finish(&mut self) -> Result<(Vec<u8>, Size), Refusal> {
        let complete = self.complete();
        let frame = self.frame.take().ok_or(Refusal::Unsupported)?;
        if !complete {
            return Err(Refusal::Unsupported);
        }
        let ids: Vec<u8> = frame.components.iter().map(|component| component.id).collect();
        // libjpeg's rules (`default_decompress_parms`) for what three components mean.
        let rgb = !self.jfif && (self.adobe_transform == Some(0) || self.adobe_transform.is_none() && ids == *b"RGB");
        if ids.len() == 3 && rgb {
            return Err(Refusal::Unsupported);
        }
        if frame.progressive {
            self.transform(&frame)?;
        }
        let plane = |index: usize| self.planes.get(index).and_then(Option::as_ref);
        let luma = plane(0).ok_or(Refusal::Unsupported)?;
        match plane(2) {
            None => Ok((luma.cropped(), frame.size)),
            Some(chroma) => Ok((samples::red(luma, chroma)?, frame.size)),
        }
    }
}

impl Decoder {
    /// Progressive: coefficients to samples. The two components that are needed know nothing of each other, so a
    /// second thread takes the red-difference.
    fn transform(&mut self, frame: &Frame) -> Result<(), Refusal> {
        let quantization = quantization(frame, &self.quantization)?;
        let (constants, bands) = (&self.constants, &self.bands);
        let run = |index: usize, memory: Vec<u8>| {
            let component = &frame.components[index];
            band::transform(component, &constants[index], &bands[index], &quantization[index], memory)
        };
        let [luma, _, chroma] = &mut self.spare.planes;
        let (luma, chroma) = (take(luma), take(chroma));
        if frame.components.len() == 1 {
            self.planes[0] = Some(run(0, luma)?);
            return Ok(());
        }
        let (luma, chroma) = std::thread::scope(|scope| {
            let other = std::thread::Builder::new().spawn_scoped(scope, || run(2, chroma));
            let luma = run(0, luma);
            // Without a second thread, or when it panicked, in its place.
            let chroma = other.ok().and_then(|other| other.join().ok()).unwrap_or_else(|| run(2, Vec::new()));
            (luma, chroma)
        });
        (self.planes[0], self.planes[2]) = (Some(luma?), Some(chroma?));
        Ok(())
    }
}

/// The table of each component.
fn quantization(frame: &Frame, tables: &[Option<[u16; 64]>; 4]) -> Result<Vec<[u16; 64]>, Refusal> {
    frame.components.iter().map(|component| tables[component.table].ok_or(Refusal::Unsupported)).collect()
}
