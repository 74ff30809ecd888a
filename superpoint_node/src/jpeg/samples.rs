//! Coefficients to samples, in libjpeg's arithmetic.

use multiversion::multiversion;

use super::{Component, Refusal, idct};

/// The samples of a component, with those that fill up its last blocks.
pub(super) struct Plane {
    data: Vec<u8>,
    stride: usize,
    /// Samples of the picture, across and down.
    samples: (usize, usize),
}

impl Plane {
    /// In memory that was used before. Every sample of the picture is written; what fills up the blocks need not be.
    pub(super) fn new(component: &Component, mut memory: Vec<u8>) -> Self {
        let (across, down) = component.padded;
        memory.resize(64 * across * down, 0);
        Self { data: memory, stride: 8 * across, samples: component.samples }
    }

    pub(super) fn into_memory(self) -> Vec<u8> {
        self.data
    }

    /// Where a block's samples go.
    #[inline(always)]
    pub(super) fn block(&mut self, (column, row): (usize, usize)) -> Target<'_> {
        Target { data: &mut self.data[8 * (row * self.stride + column)..], stride: self.stride }
    }

    fn row(&self, y: usize) -> &[u8] {
        &self.data[y * self.stride..][..self.samples.0]
    }

    /// Row `y` of the picture; beyond its borders, the nearest one.
    fn nearest_row(&self, y: isize) -> &[u8] {
        self.row(y.clamp(0, self.samples.1 as isize - 1) as usize)
    }

    /// The samples of the picture alone.
    pub(super) fn cropped(&self) -> Vec<u8> {
        let mut samples = Vec::with_capacity(self.samples.0 * self.samples.1);
        (0..self.samples.1).for_each(|y| samples.extend_from_slice(self.row(y)));
        samples
    }
}

/// Eight rows of eight samples in a plane.
pub(super) struct Target<'a> {
    data: &'a mut [u8],
    stride: usize,
}

impl Target<'_> {
    #[inline(always)]
    fn fill(&mut self, samples: &[[u8; 8]; 8]) {
        // Cut to its length first, so that one check is enough for all rows.
        let data = &mut self.data[..7 * self.stride + 8];
        for (row, samples) in samples.iter().enumerate() {
            data[row * self.stride..][..8].copy_from_slice(samples);
        }
    }
}

/// Dequantizes and transforms a block, whose coefficients lie row by row. `present` is 1 when only the first of them
/// is not zero.
#[inline(always)]
pub(super) fn transform(block: &[i16; 64], present: u64, quantization: &[u16; 64], mut target: Target<'_>) {
    if present == 1 {
        // One value everywhere; both roundings of the long way come to this one.
        let dequantized = i32::from(block[0]).wrapping_mul(i32::from(quantization[0]));
        let value = (dequantized.wrapping_add(4) >> 3).wrapping_add(128).clamp(0, 255) as u8;
        target.fill(&[[value; 8]; 8]);
    } else {
        target.fill(&idct::inverse(block, quantization));
    }
}

/// `R = Y + 1.402 (Cr - 128)` (`jdcolor.c`), Cr brought to the size of Y by libjpeg's triangle filter (`jdsample.c`).
pub(super) fn red(luma: &Plane, chroma: &Plane) -> Result<Vec<u8>, Refusal> {
    let (width, height) = luma.samples;
    let half_width = chroma.samples.0 != width;
    if half_width && chroma.samples.0 <= 2 {
        return Err(Refusal::Unsupported); // so narrow that libjpeg repeats samples instead
    }
    let mut red = vec![0; width * height];
    fill_red(luma, chroma, &mut red);
    Ok(red)
}

#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt+popcnt"))]
fn fill_red(luma: &Plane, chroma: &Plane, red: &mut [u8]) {
    let (width, height) = luma.samples;
    let (half_width, half_height) = (chroma.samples.0 != width, chroma.samples.1 != height);
    // Sums of two rows, 3:1, and a line at full width: one sample more than needed, for an odd width.
    let mut sums = vec![0_u16; chroma.samples.0];
    let mut line = vec![0_u8; 2 * chroma.samples.0];
    for (y, out) in red.chunks_exact_mut(width).enumerate() {
        let chroma_row = match (half_width, half_height) {
            (false, false) => chroma.row(y),
            (true, false) => {
                across(chroma.row(y), &mut line);
                &line
            }
            (_, true) => {
                let near = (y / 2) as isize;
                let far = if y % 2 == 0 { near - 1 } else { near + 1 };
                let (near, far) = (chroma.nearest_row(near), chroma.nearest_row(far));
                for ((sum, &near), &far) in sums.iter_mut().zip(near).zip(far) {
                    *sum = 3 * u16::from(near) + u16::from(far);
                }
                if half_width {
                    across_sums(&sums, &mut line);
                } else {
                    let bias = if y % 2 == 0 { 1 } else { 2 };
                    line.iter_mut().zip(&sums).for_each(|(out, &sum)| *out = ((sum + bias) >> 2) as u8);
                }
                &line
            }
        };
        for ((out, &y), &cr) in out.iter_mut().zip(luma.row(y)).zip(chroma_row) {
            // 1.402 with sixteen bits after the point.
            let difference = (91_881 * (i32::from(cr) - 128) + 32_768) >> 16;
            *out = (i32::from(y) + difference).clamp(0, 255) as u8;
        }
    }
}

/// Twice as many samples across: three quarters of the nearer and a quarter of the further one.
#[inline(always)]
fn across(row: &[u8], line: &mut [u8]) {
    let last = row.len() - 1;
    for (pair, window) in line[2..].chunks_exact_mut(2).zip(row.windows(3)) {
        let near = 3 * u16::from(window[1]);
        pair[0] = ((near + u16::from(window[0]) + 1) >> 2) as u8;
        pair[1] = ((near + u16::from(window[2]) + 2) >> 2) as u8;
    }
    line[0] = row[0];
    line[1] = ((3 * u16::from(row[0]) + u16::from(row[1]) + 2) >> 2) as u8;
    line[2 * last] = ((3 * u16::from(row[last]) + u16::from(row[last - 1]) + 1) >> 2) as u8;
    line[2 * last + 1] = row[last];
}

/// The same for sums of two rows, which are four times as large.
#[inline(always)]
fn across_sums(sums: &[u16], line: &mut [u8]) {
    let last = sums.len() - 1;
    for (pair, window) in line[2..].chunks_exact_mut(2).zip(sums.windows(3)) {
        pair[0] = ((3 * window[1] + window[0] + 8) >> 4) as u8;
        pair[1] = ((3 * window[1] + window[2] + 7) >> 4) as u8;
    }
    line[0] = ((4 * sums[0] + 8) >> 4) as u8;
    line[1] = ((3 * sums[0] + sums[1] + 7) >> 4) as u8;
    line[2 * last] = ((3 * sums[last] + sums[last - 1] + 8) >> 4) as u8;
    line[2 * last + 1] = ((4 * sums[last] + 7) >> 4) as u8;
}
