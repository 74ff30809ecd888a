//! A 3x3 layer: convolution, bias, ReLU and, where the network has one, the 2x2 max-pool after it.
//!
//! The output is cut into tiles of 6x6, the tiles into blocks of a few, and a block is one task:
//!
//! 1. input transform of the block's tiles, `V[tile][position][channel]`;
//! 2. for each panel of output channels: 64 small matrix products, one per position, into `M[tile][position][channel]`;
//! 3. output transform of that panel's channels, with bias, ReLU and pool, to the output map.
//!
//! `V` and `M` stay in the core's second-level cache. The weights stream through it once per block, in the order in
//! which they lie in memory.

use super::buffer::{Buffer, LINE, Shared};
use super::gemm::{self, Rows};
use super::simd::{Kernel, Simd};
use super::winograd::{self, INPUT, OUTPUT, POSITIONS};
use crate::Size;
use crate::team::Team;
use crate::weights::Conv;

/// Channels whose input transforms are done together: a cache line of them.
const GROUP: usize = LINE;

/// Tiles in a row whose input transforms are done together. Neighbours share the transforms of columns; with four, the
/// columns and what is written of `V` for one group of channels fit the first-level cache.
const RUN: usize = 4;

/// Columns of a run.
const RUN_COLUMNS: usize = RUN * OUTPUT + 2;

/// Most tiles of a block.
pub(super) const BLOCK: usize = 12;

/// Weights of a 3x3 layer, transformed and packed as `[panel][position][input channel][column]`.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) pool: bool,
    panel_width: usize,
    panels: Buffer,
    bias: Buffer,
}

impl Layer {
    /// A layer that computes the outputs of `convs`, which read the same input, one after the other.
    pub(super) fn new(convs: &[&Conv], pool: bool, lanes: usize, team: &mut Team) -> Self {
        let panel_width = gemm::panel_width(lanes);
        let inputs = convs[0].weight.dim().1;
        let bias: Vec<f32> = convs.iter().flat_map(|conv| conv.bias.iter().copied()).collect();
        let outputs = bias.len();
        assert!(inputs.is_multiple_of(GROUP) && outputs.is_multiple_of(panel_width), "channels that kernels cannot do");
        let kernels: Vec<_> = convs.iter().flat_map(|conv| conv.weight.outer_iter()).collect();
        let mut panels = Buffer::new(POSITIONS * inputs * outputs);
        let panel_len = POSITIONS * inputs * panel_width;
        team.for_chunks(panels.as_mut_slice(), panel_len, |_, panel, out| {
            let kernels = &kernels[panel * panel_width..][..panel_width];
            // All columns of an input channel before the next, because they are neighbours in memory.
            for i in 0..inputs {
                for (column, kernel) in kernels.iter().enumerate() {
                    let kernel = std::array::from_fn(|y| std::array::from_fn(|x| f64::from(kernel[[i, y, x]])));
                    for (position, value) in winograd::kernel(&kernel).into_iter().enumerate() {
                        out[(position * inputs + i) * panel_width + column] = value as f32;
                    }
                }
            }
        });
        Self { inputs, outputs, pool, panel_width, panels, bias: gemm::pad_bias(&bias, panel_width, 0.0) }
    }

    /// Panels that hold the first `outputs` output channels.
    pub(super) fn panels_for(&self, outputs: usize) -> usize {
        outputs.div_ceil(self.panel_width)
    }
}

/// The tiles of a map.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Tiles {
    pub(super) fn of(size: Size) -> Self {
        Self { rows: size.height.div_ceil(OUTPUT), columns: size.width.div_ceil(OUTPUT) }
    }

    pub(super) fn count(self) -> usize {
        self.rows * self.columns
    }
}

/// Where a channel-last map lies in a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) size: Size,
    pub(super) channels: usize,
    /// Values from one row to the next.
    pub(super) row_stride: usize,
    /// Index of the first value of pixel (0, 0).
    pub(super) origin: usize,
}

impl Layout {
    /// A map without a border.
    pub(super) fn dense(size: Size, channels: usize) -> Self {
        Self { size, channels, row_stride: size.width * channels, origin: 0 }
    }

    /// A map that is read by tiles: one pixel of zeros before it in each direction, and behind it as many as whole tiles
    /// reach.
    pub(super) fn bordered(size: Size, channels: usize) -> Self {
        let row_stride = (Tiles::of(size).columns * OUTPUT + 2) * channels;
        Self { size, channels, row_stride, origin: row_stride + channels }
    }

    /// Index of a pixel's first value.
    #[inline(always)]
    fn index(&self, y: usize, x: usize) -> usize {
        self.origin + y * self.row_stride + x * self.channels
    }

    /// Values from the buffer's start to the end of the last tile that reads the map.
    pub(super) fn bordered_len(&self) -> usize {
        (Tiles::of(self.size).rows * OUTPUT + 2) * self.row_stride
    }

    /// Sets everything around the map to zero: what an earlier map in the same buffer may have left there.
    pub(super) fn clear_border(&self, buffer: &mut [f32]) {
        let before = self.channels;
        let content = self.size.width * self.channels;
        for (y, row) in buffer[..self.bordered_len()].chunks_exact_mut(self.row_stride).enumerate() {
            if (1..=self.size.height).contains(&y) {
                row[..before].fill(0.0);
                row[before + content..].fill(0.0);
            } else {
                row.fill(0.0);
            }
        }
    }
}

/// What a thread needs to itself.
#[derive(Debug)]
pub(super) struct Scratch {
    v: Buffer,
    m: Buffer,
    columns: Buffer,
}

impl Scratch {
    /// For layers of up to `inputs` input channels.
    pub(super) fn new(inputs: usize, lanes: usize) -> Self {
        Self {
            v: Buffer::new(BLOCK * v_stride(inputs)),
            m: Buffer::new(BLOCK * m_stride(gemm::panel_width(lanes))),
            columns: Buffer::new(RUN_COLUMNS * INPUT * lanes),
        }
    }
}

/// Values from tile to tile in `V`. The extra line keeps the rows of a product from falling on the same cache sets.
const fn v_stride(inputs: usize) -> usize {
    POSITIONS * inputs + LINE
}

/// Values from tile to tile in `M`; the extra line as in [`v_stride`].
const fn m_stride(panel_width: usize) -> usize {
    POSITIONS * panel_width + LINE
}

/// Where a layer's input comes from.
pub(super) trait Source: Copy {
    /// Input column: rows `OUTPUT * tile_row - 1` and the seven below, at column `column - 1` of the layer's input, for
    /// the channels from `channel` on.
    ///
    /// # Safety
    ///
    /// The column must be one that the tiles of the layer reach, and `LANES` channels must follow.
    unsafe fn column<S: Simd>(self, s: S, tile_row: usize, column: usize, channel: usize) -> [S::V; INPUT];

    /// Asks for what will be read after this column: its next group of channels, or after the last of them the first of
    /// the column that is one run ahead.
    fn prefetch_next<S: Simd>(self, s: S, tile_row: usize, column: usize, channel: usize);
}

/// A bordered map in memory.
#[derive(Clone, Copy)]
pub(super) struct MapSource<'a> {
    buffer: &'a [f32],
    layout: Layout,
}

impl<'a> MapSource<'a> {
    pub(super) fn new(buffer: &'a [f32], layout: Layout) -> Self {
        assert!(buffer.len() >= layout.bordered_len(), "map in a buffer that is too small");
        Self { buffer, layout }
    }
}

impl MapSource<'_> {
    /// Index of a column's first value.
    #[inline(always)]
    fn start(self, tile_row: usize, column: usize, channel: usize) -> usize {
        tile_row * OUTPUT * self.layout.row_stride + column * self.layout.channels + channel
    }
}

impl Source for MapSource<'_> {
    #[inline(always)]
    unsafe fn column<S: Simd>(self, s: S, tile_row: usize, column: usize, channel: usize) -> [S::V; INPUT] {
        let start = self.start(tile_row, column, channel);
        let mut d = [s.splat(0.0); INPUT];
        for (i, d) in d.iter_mut().enumerate() {
            // SAFETY: the caller's promise, and the buffer reaches to the end of the last tile (`new`).
            *d = unsafe { s.load(self.buffer.as_ptr().add(start + i * self.layout.row_stride)) };
        }
        d
    }

    #[inline(always)]
    fn prefetch_next<S: Simd>(self, s: S, tile_row: usize, column: usize, channel: usize) {
        let ahead = if channel + GROUP < self.layout.channels {
            self.start(tile_row, column, channel + GROUP)
        } else {
            self.start(tile_row, column + RUN * OUTPUT, 0)
        };
        for i in 0..INPUT {
            s.prefetch(self.buffer.as_ptr().wrapping_add(ahead + i * self.layout.row_stride));
        }
    }
}

/// One block of tiles of one layer.
pub(super) struct Block<'a, I> {
    pub(super) layer: &'a Layer,
    pub(super) source: I,
    pub(super) tiles: Tiles,
    /// First tile and number of tiles.
    pub(super) first: usize,
    pub(super) count: usize,
    /// Panels of output channels to compute.
    pub(super) panels: usize,
    pub(super) output: Shared<'a>,
    pub(super) output_layout: Layout,
    pub(super) scratch: &'a mut Scratch,
}

impl<I: Source> Kernel for Block<'_, I> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { layer, count, .. } = self;
        let width = gemm::panel_width(S::LANES);
        assert!(
            width == layer.panel_width
                && count <= BLOCK
                && self.first + count <= self.tiles.count()
                && self.scratch.v.as_slice().len() >= count * v_stride(layer.inputs)
                && self.scratch.m.as_slice().len() >= count * m_stride(width)
                && self.scratch.columns.as_slice().len() >= RUN_COLUMNS * INPUT * S::LANES
                && self.panels * width <= layer.outputs
                && self.output_layout.channels == layer.outputs,
            "a block that does not fit its layer"
        );
        let v = self.scratch.v.as_mut_slice().as_mut_ptr();
        let m = self.scratch.m.as_mut_slice().as_mut_ptr();
        let columns = self.scratch.columns.as_mut_slice().as_mut_ptr();

        let mut done = 0;
        while done < count {
            let tile = self.first + done;
            let (row, column) = (tile / self.tiles.columns, tile % self.tiles.columns);
            let run = RUN.min(count - done).min(self.tiles.columns - column);
            // SAFETY: the run's tiles are tiles of the layer, `V` has room for them behind the `done` earlier ones, and
            // `columns` for a run (all asserted above).
            unsafe {
                let v = v.add(done * v_stride(layer.inputs));
                input_transform(s, self.source, (row, column), run, layer.inputs, columns, v);
            }
            done += run;
        }

        let side = if layer.pool { OUTPUT / 2 } else { OUTPUT };
        let mut places = [Place::default(); BLOCK];
        for (index, place) in places[..count].iter_mut().enumerate() {
            let tile = self.first + index;
            let (y0, x0) = (tile / self.tiles.columns * side, tile % self.tiles.columns * side);
            let size = self.output_layout.size;
            *place = Place { y0, x0, height: side.min(size.height - y0), width: side.min(size.width - x0) };
        }

        let panels = layer.panels.as_slice()[..self.panels * POSITIONS * layer.inputs * width].as_ptr();
        for panel in 0..self.panels {
            for position in 0..POSITIONS {
                // The pixels that will be written when all positions are done: some at each position.
                if position < side * side {
                    for place in &places[..count] {
                        let pixel = self.output_layout.index(place.y0 + position / side, place.x0 + position % side);
                        s.prefetch_far(self.output.address(pixel + panel * width));
                    }
                }
                // SAFETY: `V` and `M` hold `count` tiles of all positions (asserted above), and panel and position are
                // within the layer's panels.
                unsafe {
                    let a = Rows { start: v.add(position * layer.inputs).cast_const(), stride: v_stride(layer.inputs) };
                    let b = panels.add((panel * POSITIONS + position) * layer.inputs * width);
                    let c = Rows { start: m.add(position * width), stride: m_stride(width) };
                    gemm::multiply(s, count, layer.inputs, a, b, std::ptr::null(), c);
                }
            }
            for (index, place) in places[..count].iter().enumerate() {
                for vector in 0..width / S::LANES {
                    let channel = panel * width + vector * S::LANES;
                    // SAFETY: tile `index` of `M` was just written; no other task writes this tile or these channels.
                    unsafe {
                        let m = m.add(index * m_stride(width) + vector * S::LANES).cast_const();
                        output_transform(s, &self, place, channel, m, columns);
                    }
                }
            }
        }
    }
}

/// The pixels of the output map that a tile makes.
#[derive(Clone, Copy, Default)]
struct Place {
    y0: usize,
    x0: usize,
    /// A tile may reach beyond the map; what is there stays zero.
    height: usize,
    width: usize,
}

/// Input transforms of a run of tiles in one row, for all channels, to `V`.
///
/// # Safety
///
/// `tile` (row, column) and the `run - 1` to the right of it must be tiles of the source's layer, `columns` valid for
/// writing the columns of a run, and `v` for `run` tiles.
#[inline(always)]
unsafe fn input_transform<S: Simd, I: Source>(
    s: S,
    source: I,
    tile: (usize, usize),
    run: usize,
    channels: usize,
    columns: *mut f32,
    v: *mut f32,
) {
    let (row, first_column) = (tile.0, tile.1 * OUTPUT);
    for channel in (0..channels).step_by(S::LANES) {
        for x in 0..run * OUTPUT + 2 {
            // SAFETY: the caller's promises: the column belongs to a tile, and `columns` has room for it.
            unsafe {
                let d = source.column(s, row, first_column + x, channel);
                if channel.is_multiple_of(GROUP) {
                    source.prefetch_next(s, row, first_column + x, channel);
                }
                for (i, value) in winograd::input(s, &d).into_iter().enumerate() {
                    s.store(columns.add((x * INPUT + i) * S::LANES), value);
                }
            }
        }
        for t in 0..run {
            for i in 0..INPUT {
                let mut d = [s.splat(0.0); INPUT];
                for (j, d) in d.iter_mut().enumerate() {
                    // SAFETY: a column written above.
                    *d = unsafe { s.load(columns.add(((t * OUTPUT + j) * INPUT + i) * S::LANES)) };
                }
                for (j, value) in winograd::input(s, &d).into_iter().enumerate() {
                    // SAFETY: tile `t < run`, and the caller's promise on `v`.
                    unsafe { s.store(v.add(t * v_stride(channels) + (i * INPUT + j) * channels + channel), value) };
                }
            }
        }
    }
}

/// Output transform of one tile and one vector of channels, with bias, ReLU and pool.
///
/// # Safety
///
/// `m` must be valid for reading the tile's positions, `temporary` for writing a tile, and no other thread may write this
/// tile's pixels and channels.
#[inline(always)]
unsafe fn output_transform<S: Simd, I>(
    s: S,
    block: &Block<'_, I>,
    place: &Place,
    channel: usize,
    m: *const f32,
    temporary: *mut f32,
) {
    let width = gemm::panel_width(S::LANES);
    let zero = s.splat(0.0);
    for j in 0..INPUT {
        let mut d = [zero; INPUT];
        for (i, d) in d.iter_mut().enumerate() {
            // SAFETY: position `(i, j)` of the tile.
            *d = unsafe { s.load(m.add((i * INPUT + j) * width)) };
        }
        for (i, value) in winograd::output(s, &d).into_iter().enumerate() {
            // SAFETY: within a tile.
            unsafe { s.store(temporary.add((i * INPUT + j) * S::LANES), value) };
        }
    }
    // SAFETY: `channel` is one of the layer's, whose biases fill whole vectors.
    let bias = unsafe { s.load(block.layer.bias.as_slice()[channel..channel + S::LANES].as_ptr()) };
    for y in 0..place.height {
        if block.layer.pool {
            // SAFETY: lines of the tile, written above; the caller's promise for `write`.
            unsafe {
                let (upper, lower) = (output_line(s, temporary, 2 * y), output_line(s, temporary, 2 * y + 1));
                let mut pooled = [zero; OUTPUT / 2];
                for (x, pooled) in pooled.iter_mut().enumerate() {
                    let left = s.max(upper[2 * x], lower[2 * x]);
                    let right = s.max(upper[2 * x + 1], lower[2 * x + 1]);
                    *pooled = s.max(left, right);
                }
                write_line(s, block, place, y, channel, bias, &pooled);
            }
        } else {
            // SAFETY: as above.
            unsafe { write_line(s, block, place, y, channel, bias, &output_line(s, temporary, y)) };
        }
    }
}

/// Writes line `y` of a tile, with bias and ReLU.
///
/// # Safety
///
/// No other thread may write these pixels and channels.
#[inline(always)]
unsafe fn write_line<S: Simd, I, const N: usize>(
    s: S,
    block: &Block<'_, I>,
    place: &Place,
    y: usize,
    channel: usize,
    bias: S::V,
    values: &[S::V; N],
) {
    let layout = &block.output_layout;
    let start = layout.index(place.y0 + y, place.x0) + channel;
    let (width, last) = (place.width.min(N), (place.width - 1) * layout.channels + S::LANES);
    // SAFETY: the caller's promise; `at` checks that the line is within the map.
    let to = unsafe { block.output.at(start, last) };
    for (x, &value) in values.iter().enumerate() {
        if x < width {
            // Zero first: `max` then keeps NaN, which must reach the result to be noticed there.
            let value = s.max(s.splat(0.0), s.add(value, bias));
            // SAFETY: a pixel of the line.
            unsafe { s.store(to.add(x * layout.channels), value) };
        }
    }
}

/// Line `i` of a tile whose columns are transformed.
///
/// # Safety
///
/// `temporary` must be valid for reading the tile, and `i` below `OUTPUT`.
#[inline(always)]
unsafe fn output_line<S: Simd>(s: S, temporary: *const f32, i: usize) -> [S::V; OUTPUT] {
    let mut d = [s.splat(0.0); INPUT];
    for (j, d) in d.iter_mut().enumerate() {
        // SAFETY: the caller's promises.
        *d = unsafe { s.load(temporary.add((i * INPUT + j) * S::LANES)) };
    }
    winograd::output(s, &d)
}
