//! The first layer, computed where the second one reads it.
//!
//! conv1a makes 64 channels of one; written to memory its output would be the largest map of the network. Instead the
//! second layer's input transform asks for a column of it, and it is computed in registers from a few pixels of the frame.

use super::buffer::Buffer;
use super::conv::{Source, Tiles};
use super::gemm;
use super::simd::Simd;
use super::winograd::{INPUT, OUTPUT};
use crate::Size;
use crate::weights::Conv;

/// Pixels of zeros around the frame before it: one for each of the two layers.
const BORDER: usize = 2;

/// Weights of the first layer as `[tap][channel]`, and its bias.
#[derive(Debug)]
pub(super) struct FirstLayer {
    pub(super) channels: usize,
    weights: Buffer,
    bias: Buffer,
}

impl FirstLayer {
    pub(super) fn new(conv: &Conv) -> Self {
        let (channels, _, height, width) = conv.weight.dim();
        let mut weights = Buffer::new(height * width * channels);
        for (index, value) in weights.as_mut_slice().iter_mut().enumerate() {
            let (tap, channel) = (index / channels, index % channels);
            *value = conv.weight[[channel, 0, tap / width, tap % width]];
        }
        Self { channels, weights, bias: gemm::pad_bias(conv.bias.as_slice().unwrap_or(&[]), 1, 0.0) }
    }
}

/// The frame with zeros around it, as far as whole tiles reach.
#[derive(Debug)]
pub(super) struct PaddedFrame {
    size: Size,
    row_stride: usize,
    values: Buffer,
}

impl PaddedFrame {
    pub(super) fn new(size: Size) -> Self {
        let tiles = Tiles::of(size);
        let row_stride = tiles.columns * OUTPUT + 2 * BORDER;
        Self { size, row_stride, values: Buffer::new((tiles.rows * OUTPUT + 2 * BORDER) * row_stride) }
    }

    pub(super) fn fill(&mut self, frame: &[f32]) {
        let rows = self.values.as_mut_slice().chunks_exact_mut(self.row_stride).skip(BORDER);
        for (to, from) in rows.zip(frame.chunks_exact(self.size.width)) {
            to[BORDER..BORDER + from.len()].copy_from_slice(from);
        }
    }
}

/// The first layer's output, column by column.
#[derive(Clone, Copy)]
pub(super) struct FrameSource<'a> {
    pub(super) layer: &'a FirstLayer,
    pub(super) frame: &'a PaddedFrame,
}

impl Source for FrameSource<'_> {
    #[inline(always)]
    fn prefetch_next<S: Simd>(self, _: S, _: usize, _: usize, _: usize) {
        // The frame is small enough to be in cache.
    }

    #[inline(always)]
    unsafe fn column<S: Simd>(self, s: S, tile_row: usize, column: usize, channel: usize) -> [S::V; INPUT] {
        let Self { layer, frame } = self;
        let zero = s.splat(0.0);
        let mut d = [zero; INPUT];
        // Column 0 is the one before the map. Outside of the map the second layer sees zeros, not this layer's output.
        if column == 0 || column > frame.size.width {
            return d;
        }
        let bias = &layer.bias.as_slice()[channel..channel + S::LANES];
        // SAFETY: a whole vector of biases.
        d = [unsafe { s.load(bias.as_ptr()) }; INPUT];
        // Rows outside of the map, likewise: a sum that starts this low ends below zero. (Testing each row at the end
        // makes the compiler compute them one by one, each waiting for its own chain of additions.)
        let outside = s.splat(-1e30);
        if tile_row == 0 {
            d[0] = outside;
        }
        let inside = frame.size.height + 1 - tile_row * OUTPUT;
        if inside < INPUT {
            for (i, d) in d.iter_mut().enumerate() {
                *d = if i < inside { *d } else { outside };
            }
        }
        let start = tile_row * OUTPUT * frame.row_stride + column;
        for dy in 0..3 {
            for dx in 0..3 {
                let weights = (dy * 3 + dx) * layer.channels + channel;
                // SAFETY: `channel` and the vector's other lanes are channels of the layer (the caller's promise).
                let weights = unsafe { s.load(layer.weights.as_slice().as_ptr().add(weights)) };
                for (i, d) in d.iter_mut().enumerate() {
                    let pixel = start + (i + dy) * frame.row_stride + dx;
                    // SAFETY: the padded frame reaches as far as the tiles and this layer's taps around them.
                    let pixel = unsafe { *frame.values.as_slice().as_ptr().add(pixel) };
                    *d = s.fma(s.splat(pixel), weights, *d);
                }
            }
        }
        for d in &mut d {
            // In this order NaN stays.
            *d = s.max(zero, *d);
        }
        d
    }
}
