//! From a plane of any size to the network frame.
//!
//! Bilinear with antialiasing, as Pillow's `Image.resize(..., BILINEAR)` does it: a triangle filter that is
//! widened by the reduction, applied to the rows and then to the columns. 8-bit planes go through Pillow's own
//! fixed-point arithmetic (`libImaging/Resample.c`), both roundings included, so that the frame equals Pillow's
//! bit by bit; 16-bit planes stay in floating point throughout. (Rows first, always. Pillow 13 takes the columns
//! first for some tall images, which moves a level here and there.) Own code because the maintained crate
//! (`fast_image_resize`) keeps fewer bits of the filter and misses Pillow's value by a level at every eighth pixel.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use multiversion::multiversion;

use crate::plane::{Plane, Samples};
use crate::team::Team;
use crate::{Endian, Size};

/// Bits after the point of Pillow's 8-bit filter weights.
const PRECISION_BITS: u32 = 32 - 8 - 2;

/// Rows of the frame that a thread makes at a time.
const BAND: usize = 32;

/// Rows that the horizontal pass filters side by side: one vector of eight 32-bit lanes.
const LANES: usize = 8;

/// Columns of 8-bit rows that are read at a time: a multiple of [`LANES`] that the first-level cache holds.
const COLUMNS: usize = 256;

/// Resizes planes to one fixed size. Keeps the filters of the last input size and its scratch memory, so that a
/// stream of equal frames allocates nothing.
#[derive(Debug)]
pub struct Resizer {
    target: Size,
    bytes: Passes<u8>,
    words: Passes<f32>,
}

impl Resizer {
    /// A resizer to `target`.
    pub fn new(target: Size) -> Self {
        Self { target, bytes: Passes::default(), words: Passes::default() }
    }

    /// Writes the plane, resized and scaled to 0..=1, into `frame` (row-major, the target's size).
    pub fn resize(&mut self, plane: &Plane<'_>, team: &mut Team, frame: &mut Vec<f32>) {
        frame.resize(self.target.area(), 0.0);
        match plane.samples() {
            Samples::U8 => self.resize_u8(plane, team, |level| f32::from(level) / 255.0, frame),
            Samples::U16 { endian, black, white } => self.resize_u16(plane, endian, black, white, team, frame),
        }
    }

    /// An 8-bit plane at the target's size, in whole levels, row by row. A detector finds the same on it as on the plane:
    /// resizing ends in whole levels, and is left out where the size is right. So it may be done before the detector's
    /// turn comes. `None` for 16-bit planes, which would lose by it.
    ///
    /// ```
    /// use tt_backend::{Plane, Size, resize::Resizer, team::Team};
    /// let plane = Plane::contiguous(&[0, 100, 200, 40], Size::new(1, 4))?;
    /// let levels = Resizer::new(Size::new(1, 2)).levels(&plane, &mut Team::new(1)?);
    /// assert_eq!(levels, Some(vec![71, 117]));
    /// # Ok::<(), tt_backend::Error>(())
    /// ```
    pub fn levels(&mut self, plane: &Plane<'_>, team: &mut Team) -> Option<Vec<u8>> {
        if plane.samples() != Samples::U8 {
            return None;
        }
        let mut levels = vec![0; self.target.area()];
        self.resize_u8(plane, team, |level| level, &mut levels);
        Some(levels)
    }

    /// `finish` turns a level, 0 to 255, into what the frame holds.
    fn resize_u8<T: Send>(
        &mut self,
        plane: &Plane<'_>,
        team: &mut Team,
        finish: impl Fn(u8) -> T + Sync,
        frame: &mut [T],
    ) {
        if plane.size() == self.target {
            let width = self.target.width;
            team.for_chunks(frame, BAND * width, |_, band, rows| {
                let mut samples = [0; COLUMNS];
                for (y, row) in rows.chunks_exact_mut(width).enumerate() {
                    for (part, out) in row.chunks_mut(COLUMNS).enumerate() {
                        let samples = &mut samples[..out.len()];
                        plane.copy_row_u8(band * BAND + y, part * COLUMNS, samples);
                        out.iter_mut().zip(&*samples).for_each(|(out, &sample)| *out = finish(sample));
                    }
                }
            });
            return;
        }
        let read = |first: usize, count: usize, block: &mut [[u8; LANES]]| {
            let mut rows = [[0; COLUMNS]; LANES];
            for (part, block) in block.chunks_mut(COLUMNS).enumerate() {
                for (y, row) in (first..first + count).zip(&mut rows) {
                    plane.copy_row_u8(y, part * COLUMNS, &mut row[..block.len()]);
                }
                interleave(&rows, block);
            }
        };
        self.bytes.prepare(plane.size(), self.target, team.size());
        self.bytes.run(team, read, finish, frame);
    }

    fn resize_u16(
        &mut self,
        plane: &Plane<'_>,
        endian: Endian,
        black: u16,
        white: u16,
        team: &mut Team,
        frame: &mut [f32],
    ) {
        let (low, range) = (f32::from(black), f32::from(white) - f32::from(black));
        let to_unit = |sample: u16| ((f32::from(sample) - low) / range).clamp(0.0, 1.0);
        if plane.size() == self.target {
            for (y, row) in frame.chunks_exact_mut(self.target.width).enumerate() {
                row.iter_mut().zip(plane.row_u16(y, endian)).for_each(|(out, sample)| *out = to_unit(sample));
            }
            return;
        }
        let read = |first: usize, count: usize, block: &mut [[f32; LANES]]| {
            (0..count).for_each(|lane| scatter(plane.row_u16(first + lane, endian).map(to_unit), lane, block));
        };
        self.words.prepare(plane.size(), self.target, team.size());
        self.words.run(team, read, |sample| sample, frame);
    }
}

/// Puts the samples of one row into lane `lane` of a block of [`LANES`] interleaved rows.
#[inline(always)]
fn scatter<S>(samples: impl Iterator<Item = S>, lane: usize, block: &mut [[S; LANES]]) {
    for (column, sample) in block.iter_mut().zip(samples) {
        column[lane] = sample;
    }
}

/// As [`scatter`] for all lanes at once, a square of samples at a time. One by one, this takes longer than the filter.
#[multiversion(targets("x86_64+avx2"))]
fn interleave(rows: &[[u8; COLUMNS]; LANES], block: &mut [[u8; LANES]]) {
    for (index, columns) in block.chunks_mut(LANES).enumerate() {
        let mut square = [[0; LANES]; LANES];
        for (samples, row) in square.iter_mut().zip(rows) {
            samples.copy_from_slice(&row[LANES * index..][..LANES]);
        }
        u8::transpose(&mut square);
        columns.copy_from_slice(&square[..columns.len()]);
    }
}

/// A sample type with the arithmetic in which it is filtered.
trait Sample: Copy + Default + Send + std::fmt::Debug {
    /// Type of filter weights and sums.
    type Weight: Copy + Default + Send + Sync + std::fmt::Debug;
    /// What a sum starts from.
    const START: Self::Weight;
    fn weight(weight: f64) -> Self::Weight;
    fn add(sum: Self::Weight, weight: Self::Weight, sample: Self) -> Self::Weight;
    fn finish(sum: Self::Weight) -> Self;
    /// Exchanges rows and columns of a square.
    fn transpose(square: &mut [[Self; LANES]; LANES]);
}

impl Sample for u8 {
    type Weight = i32;
    /// Half a level, for rounding.
    const START: i32 = 1 << (PRECISION_BITS - 1);

    #[inline(always)]
    fn weight(weight: f64) -> i32 {
        // Away from zero, as in `normalize_coeffs_8bpc`; the triangle filter has no negative weights.
        (0.5 + weight * f64::from(1 << PRECISION_BITS)) as i32
    }

    #[inline(always)]
    fn add(sum: i32, weight: i32, sample: u8) -> i32 {
        // The weights of one output sum to about 2^22, so the sum stays below 2^31.
        sum + weight * i32::from(sample)
    }

    #[inline(always)]
    fn finish(sum: i32) -> u8 {
        (sum >> PRECISION_BITS).clamp(0, 255) as u8
    }

    /// By exchanging ever larger squares, a row in a word. Source: "Hacker's Delight", 7-3.
    #[inline(always)]
    fn transpose(square: &mut [[u8; LANES]; LANES]) {
        let mut rows = square.map(u64::from_le_bytes);
        for (step, mask) in [(1, 0x00ff_00ff_00ff_00ff), (2, 0x0000_ffff_0000_ffff), (4, 0x0000_0000_ffff_ffff)] {
            for upper in (0..LANES).filter(|row| row & step == 0) {
                let differing = (rows[upper] >> (8 * step) ^ rows[upper + step]) & mask;
                rows[upper] ^= differing << (8 * step);
                rows[upper + step] ^= differing;
            }
        }
        *square = rows.map(u64::to_le_bytes);
    }
}

impl Sample for f32 {
    type Weight = f32;
    const START: f32 = 0.0;

    #[inline(always)]
    fn weight(weight: f64) -> f32 {
        weight as f32
    }

    #[inline(always)]
    fn add(sum: f32, weight: f32, sample: f32) -> f32 {
        sum + weight * sample
    }

    #[inline(always)]
    fn finish(sum: f32) -> f32 {
        sum
    }

    #[inline(always)]
    fn transpose(square: &mut [[f32; LANES]; LANES]) {
        *square = std::array::from_fn(|column| std::array::from_fn(|row| square[row][column]));
    }
}

/// One output's window on the input line.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// First input sample.
    start: usize,
    /// Number of input samples.
    len: usize,
}

/// The triangle filter along one axis: a window and its weights for every output.
#[derive(Debug)]
struct Filter<W> {
    windows: Vec<Window>,
    /// `stride` weights an output.
    weights: Vec<W>,
    stride: usize,
}

impl<W> Filter<W> {
    /// Source: `precompute_coeffs` in Pillow's `libImaging/Resample.c`, support 1.
    fn triangle<S: Sample<Weight = W>>(input: usize, output: usize) -> Self {
        let scale = input as f64 / output as f64;
        // Widened when reducing, so that every input sample counts: this is the antialiasing.
        let support = scale.max(1.0);
        let stride = 2 * support.ceil() as usize + 1;
        let mut windows = Vec::with_capacity(output);
        let mut weights = Vec::with_capacity(output * stride);
        for index in 0..output {
            let center = (index as f64 + 0.5) * scale;
            // Casts to integers cut towards zero, and negative values to 0, as Pillow does.
            let start = (center - support + 0.5) as usize;
            let end = ((center + support + 0.5) as usize).min(input);
            let triangle = |x: usize| (1.0 - ((x as f64 - center + 0.5) / support).abs()).max(0.0);
            let total: f64 = (start..end).map(triangle).sum();
            weights.extend((start..end).map(|x| S::weight(triangle(x) / total)));
            weights.resize_with((index + 1) * stride, || S::weight(0.0));
            windows.push(Window { start, len: end - start });
        }
        Self { windows, weights, stride }
    }

    fn taps(&self, index: usize) -> (Window, &[W]) {
        let window = self.windows[index];
        (window, &self.weights[index * self.stride..][..window.len])
    }

    /// The input samples of all these outputs.
    fn span(&self, outputs: Range<usize>) -> Range<usize> {
        let windows = &self.windows[outputs];
        let end = |window: &Window| window.start + window.len;
        windows.first().map_or(0, |window| window.start)..windows.last().map_or(0, end)
    }
}

/// The filter along one axis as a matrix, `output x input`, row-major: a device resizes by multiplying with it.
pub(crate) fn triangle_matrix(input: usize, output: usize) -> Vec<f32> {
    let filter = Filter::triangle::<f32>(input, output);
    let mut matrix = vec![0.0; output * input];
    for (index, row) in matrix.chunks_exact_mut(input).enumerate() {
        let (window, weights) = filter.taps(index);
        row[window.start..][..window.len].copy_from_slice(weights);
    }
    matrix
}

/// Both passes between one pair of sizes.
#[derive(Debug)]
struct Passes<S: Sample> {
    /// Input, output, and the number of threads.
    prepared: Option<(Size, Size, usize)>,
    /// `None` where the width, or the height, stays as it is: Pillow then leaves that pass out.
    horizontal: Option<Filter<S::Weight>>,
    vertical: Option<Filter<S::Weight>>,
    /// One for each thread.
    scratch: Vec<Mutex<Scratch<S>>>,
}

/// What a thread needs to itself.
#[derive(Debug)]
struct Scratch<S: Sample> {
    /// [`LANES`] input rows, interleaved.
    block: Vec<[S; LANES]>,
    /// The input rows under a band of the output, at the output's width.
    rows: Vec<S>,
    sums: Vec<S::Weight>,
    line: Vec<S>,
}

impl<S: Sample> Default for Passes<S> {
    fn default() -> Self {
        Self { prepared: None, horizontal: None, vertical: None, scratch: Vec::new() }
    }
}

impl<S: Sample> Passes<S> {
    fn prepare(&mut self, input: Size, output: Size, threads: usize) {
        if self.prepared == Some((input, output, threads)) {
            return;
        }
        self.prepared = Some((input, output, threads));
        self.horizontal = (input.width != output.width).then(|| Filter::triangle::<S>(input.width, output.width));
        self.vertical = (input.height != output.height).then(|| Filter::triangle::<S>(input.height, output.height));
        let bands = (0..output.height).step_by(BAND).map(|y| y..(y + BAND).min(output.height));
        let most = bands.map(|band| self.input_rows(band).len()).max().unwrap_or(0);
        // Replaced rather than resized, so that one huge frame does not hold its memory for ever.
        let scratch = || Scratch {
            block: vec![[S::default(); LANES]; input.width],
            rows: vec![S::default(); most * output.width],
            sums: vec![S::START; output.width],
            line: vec![S::default(); output.width],
        };
        self.scratch = (0..threads).map(|_| Mutex::new(scratch())).collect();
    }

    /// The input rows that count for a band of output rows.
    fn input_rows(&self, band: Range<usize>) -> Range<usize> {
        match &self.vertical {
            Some(filter) => filter.span(band),
            None => band,
        }
    }

    /// `read(first, count, block)` puts so many input rows into the lanes of the block, `finish` turns a sample into
    /// what the frame holds.
    fn run<T: Send>(
        &self,
        team: &mut Team,
        read: impl Fn(usize, usize, &mut [[S; LANES]]) + Sync,
        finish: impl Fn(S) -> T + Sync,
        frame: &mut [T],
    ) {
        let Some((_, Size { width, .. }, _)) = self.prepared else { return };
        team.for_chunks(frame, BAND * width, |worker, number, frame| {
            let mut scratch = self.scratch[worker].lock().unwrap_or_else(PoisonError::into_inner);
            let Scratch { block, rows, sums, line } = &mut *scratch;
            let band = number * BAND..number * BAND + frame.len() / width;
            let input = self.input_rows(band.clone());
            for (first, rows) in input.clone().step_by(LANES).zip(rows.chunks_mut(LANES * width)) {
                let count = LANES.min(input.end - first);
                read(first, count, block);
                match &self.horizontal {
                    Some(filter) => filter_rows(filter, block, &mut rows[..count * width]),
                    None => unscatter(block, &mut rows[..count * width]),
                }
            }
            for (y, frame) in band.zip(frame.chunks_exact_mut(width)) {
                let samples = match &self.vertical {
                    Some(filter) => {
                        let (window, weights) = filter.taps(y);
                        filter_columns(&rows[(window.start - input.start) * width..], weights, sums, line);
                        &*line
                    }
                    None => &rows[(y - input.start) * width..][..width],
                };
                frame.iter_mut().zip(samples).for_each(|(out, &sample)| *out = finish(sample));
            }
        });
    }
}

/// The horizontal pass over a block of interleaved rows, all lanes at once.
#[multiversion(targets("x86_64+avx2"))]
fn filter_rows<S: Sample>(filter: &Filter<S::Weight>, block: &[[S; LANES]], rows: &mut [S]) {
    let width = filter.windows.len();
    for first in (0..width).step_by(LANES) {
        let mut square = [[S::default(); LANES]; LANES];
        for (x, column) in (first..width).zip(&mut square) {
            let (window, weights) = filter.taps(x);
            let mut sums = [S::START; LANES];
            for (samples, &weight) in block[window.start..][..window.len].iter().zip(weights) {
                for (sum, &sample) in sums.iter_mut().zip(samples) {
                    *sum = S::add(*sum, weight, sample);
                }
            }
            *column = sums.map(S::finish);
        }
        S::transpose(&mut square);
        for (row, samples) in rows.chunks_exact_mut(width).zip(&square) {
            match row[first..].first_chunk_mut() {
                Some(whole) => *whole = *samples,
                None => row[first..].iter_mut().zip(samples).for_each(|(out, &sample)| *out = sample),
            }
        }
    }
}

/// Interleaved rows back to rows, unfiltered.
fn unscatter<S: Sample>(block: &[[S; LANES]], rows: &mut [S]) {
    for (lane, row) in rows.chunks_exact_mut(block.len()).enumerate() {
        for (out, column) in row.iter_mut().zip(block) {
            *out = column[lane];
        }
    }
}

/// The vertical pass for one output row, from the first of its input rows; along the rows so that it runs in vectors.
#[multiversion(targets("x86_64+avx2"))]
fn filter_columns<S: Sample>(rows: &[S], weights: &[S::Weight], sums: &mut [S::Weight], line: &mut [S]) {
    sums.fill(S::START);
    for (row, &weight) in rows.chunks_exact(line.len()).zip(weights) {
        for (sum, &sample) in sums.iter_mut().zip(row) {
            *sum = S::add(*sum, weight, sample);
        }
    }
    for (out, &sum) in line.iter_mut().zip(&*sums) {
        *out = S::finish(sum);
    }
}
