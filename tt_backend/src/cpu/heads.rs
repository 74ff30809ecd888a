//! The last layer of each head, a 1x1 convolution, with what follows it: softmax and folding, or the L2 norm.

use super::buffer::{Buffer, Shared};
use super::gemm::{self, Rows};
use super::simd::{self, Kernel, Simd};
use crate::Size;
use crate::maps::Maps;
use crate::weights::Conv;

/// Cells of a task: the panels' weights are read once for all of them.
pub(super) const CELLS: usize = 24;

/// Pixels of a cell in each direction.
const CELL: usize = 8;

/// Weights of a 1x1 layer, packed as `[panel][input channel][column]`.
#[derive(Debug)]
pub(super) struct Pointwise {
    inputs: usize,
    outputs: usize,
    /// Output channels filled up to whole panels.
    columns: usize,
    panels: Buffer,
    bias: Buffer,
}

impl Pointwise {
    /// `fill` is the value of the channels that fill up the last panel.
    pub(super) fn new(conv: &Conv, fill: f32, lanes: usize) -> Self {
        let (outputs, inputs, _, _) = conv.weight.dim();
        let width = gemm::panel_width(lanes);
        let columns = outputs.next_multiple_of(width);
        let mut panels = Buffer::new(inputs * columns);
        gemm::pack(panels.as_mut_slice(), inputs, outputs, width, |i, o| conv.weight[[o, i, 0, 0]]);
        let bias = conv.bias.to_vec();
        Self { inputs, outputs, columns, panels, bias: gemm::pad_bias(&bias, width, fill) }
    }

    /// Values of a cell's output, filled up to whole panels.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Multiply-adds of one cell.
    pub(super) fn macs(&self) -> usize {
        self.inputs * self.outputs
    }

    /// The layer's output for `cells` cells, `columns` values each.
    ///
    /// # Safety
    ///
    /// `input` must be valid for reading `cells` rows of the layer's inputs, `output` for writing `cells` rows of its
    /// columns.
    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, cells: usize, input: Rows<*const f32>, output: *mut f32) {
        let width = gemm::panel_width(S::LANES);
        assert!(self.columns.is_multiple_of(width), "weights packed for another instruction set");
        let (panels, bias) = (self.panels.as_slice().as_ptr(), self.bias.as_slice().as_ptr());
        for column in (0..self.columns).step_by(width) {
            // SAFETY: the caller's promises; the panel and its biases are the layer's.
            unsafe {
                let c = Rows { start: output.add(column), stride: self.columns };
                let (b, bias) = (panels.add(column * self.inputs), bias.add(column));
                gemm::multiply(s, cells, self.inputs, input, b, bias, c);
            }
        }
    }
}

/// What the heads' 3x3 layers left, for some cells.
#[derive(Clone, Copy)]
pub(super) struct Hidden<'a> {
    /// Dense map of `stride` channels, the head's own from `offset` on.
    pub(super) map: &'a [f32],
    pub(super) stride: usize,
    pub(super) offset: usize,
    /// First cell and number of cells.
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Hidden<'_> {
    /// The cells' rows of `inputs` channels.
    fn rows(&self, inputs: usize) -> Rows<*const f32> {
        let from = self.first * self.stride + self.offset;
        let cells = &self.map[from..][..(self.count - 1) * self.stride + inputs];
        Rows { start: cells.as_ptr(), stride: self.stride }
    }
}

/// Scores of some cells: softmax over their channels, the dustbin dropped, folded to pixels.
pub(super) struct Scores<'a> {
    pub(super) layer: &'a Pointwise,
    pub(super) hidden: Hidden<'a>,
    /// `CELLS` rows of the layer's columns.
    pub(super) logits: &'a mut [f32],
    pub(super) size: Size,
    pub(super) scores: Shared<'a>,
}

/// The score layer's value for channels that are not there: no probability at all.
pub(super) const NO_CHANNEL: f32 = -1e30;

impl Kernel for Scores<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { layer, hidden, size, .. } = self;
        let columns = layer.columns;
        assert!(columns >= CELL * CELL && hidden.count <= CELLS && self.logits.len() >= CELLS * columns);
        let input = hidden.rows(layer.inputs);
        let logits = self.logits.as_mut_ptr();
        // SAFETY: `rows` checked the input, and the logits have room for the cells.
        unsafe { layer.apply(s, hidden.count, input, logits) };
        for cell in 0..hidden.count {
            // SAFETY: all loads and stores are within the `columns` logits of this cell, `columns` being a multiple of
            // LANES.
            unsafe {
                let logits = logits.add(cell * columns);
                let mut max = s.load(logits);
                for k in (S::LANES..columns).step_by(S::LANES) {
                    max = s.max(max, s.load(logits.add(k)));
                }
                let mut lanes = [0.0f32; 16];
                s.store(lanes.as_mut_ptr(), max);
                let max = lanes[..S::LANES].iter().copied().fold(f32::MIN, f32::max);
                let mut sum = s.splat(0.0);
                for k in (0..columns).step_by(S::LANES) {
                    let e = simd::exp(s, s.sub(s.load(logits.add(k)), s.splat(max)));
                    sum = s.add(sum, e);
                    s.store(logits.add(k), e);
                }
                s.store(lanes.as_mut_ptr(), sum);
                let scale = s.splat(1.0 / lanes[..S::LANES].iter().sum::<f32>());
                for k in (0..CELL * CELL).step_by(S::LANES) {
                    s.store(logits.add(k), s.mul(s.load(logits.add(k)), scale));
                }
            }
            let cells = size.cells();
            let index = hidden.first + cell;
            let (y, x) = (CELL * (index / cells.width), CELL * (index % cells.width));
            for row in 0..CELL {
                // SAFETY: pixels of this cell only, which is this task's; a row of its 64 logits.
                unsafe {
                    let to = self.scores.at((y + row) * size.width + x, CELL);
                    std::ptr::copy_nonoverlapping(logits.add(cell * columns + row * CELL), to, CELL);
                }
            }
        }
    }
}

/// Descriptors of some cells, each divided by its L2 norm.
pub(super) struct Descriptors<'a> {
    pub(super) layer: &'a Pointwise,
    pub(super) hidden: Hidden<'a>,
    pub(super) descriptors: Shared<'a>,
}

/// Norms below this are taken as this, as PyTorch's `normalize` does.
const MIN_NORM: f32 = 1e-12;

impl Kernel for Descriptors<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { layer, hidden, .. } = self;
        let dim = Maps::DESCRIPTOR_DIM;
        assert_eq!(layer.columns, dim, "a descriptor layer of other dimension");
        let input = hidden.rows(layer.inputs);
        // SAFETY: the descriptors of this task's cells, which nobody else writes; `rows` checked the input.
        let out = unsafe {
            let out = self.descriptors.at(hidden.first * dim, hidden.count * dim);
            layer.apply(s, hidden.count, input, out);
            out
        };
        for cell in 0..hidden.count {
            // SAFETY: within the cell's descriptor, whose dimension is a multiple of LANES.
            unsafe {
                let out = out.add(cell * dim);
                let mut sum = s.splat(0.0);
                for k in (0..dim).step_by(S::LANES) {
                    let v = s.load(out.add(k));
                    sum = s.fma(v, v, sum);
                }
                let mut lanes = [0.0f32; 16];
                s.store(lanes.as_mut_ptr(), sum);
                let norm = lanes[..S::LANES].iter().sum::<f32>().sqrt().max(MIN_NORM);
                let scale = s.splat(1.0 / norm);
                for k in (0..dim).step_by(S::LANES) {
                    s.store(out.add(k), s.mul(s.load(out.add(k)), scale));
                }
            }
        }
    }
}
