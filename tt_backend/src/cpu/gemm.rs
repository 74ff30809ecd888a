//! The matrix product that everything rests on: a block of rows times one panel of the weights.
//!
//! Weights are packed once into panels `[k][2 * LANES]`. The kernel keeps `R x 2` vectors of the result in registers and
//! runs over `k`: two loads of the panel and one broadcast per row feed `2 R` multiply-adds.

use super::buffer::Buffer;
use super::simd::Simd;

/// Vectors of a panel's row.
const VECTORS: usize = 2;

/// Columns of a panel for vectors of `lanes` values.
pub(super) const fn panel_width(lanes: usize) -> usize {
    VECTORS * lanes
}

/// Packs a `depth x columns` matrix, given by its elements, into panels of `width` columns; the last is filled up with
/// zeros.
pub(super) fn pack(out: &mut [f32], depth: usize, columns: usize, width: usize, at: impl Fn(usize, usize) -> f32) {
    assert_eq!(out.len(), depth * columns.next_multiple_of(width), "panels of another size");
    for (panel, out) in out.chunks_exact_mut(depth * width).enumerate() {
        for (k, row) in out.chunks_exact_mut(width).enumerate() {
            for (c, v) in row.iter_mut().enumerate() {
                let column = panel * width + c;
                *v = if column < columns { at(k, column) } else { 0.0 };
            }
        }
    }
}

/// A bias of `columns` values, filled up to a multiple of `width`.
pub(super) fn pad_bias(bias: &[f32], width: usize, fill: f32) -> Buffer {
    let mut out = Buffer::new(bias.len().next_multiple_of(width));
    out.as_mut_slice().fill(fill);
    out.as_mut_slice()[..bias.len()].copy_from_slice(bias);
    out
}

/// Rows of a matrix product: where they are and how far apart.
#[derive(Clone, Copy)]
pub(super) struct Rows<P> {
    pub(super) start: P,
    pub(super) stride: usize,
}

/// `c[r] = bias + a[r] * panel` for `rows` rows of `depth` values, `bias` zero when it is null.
///
/// Rows are split evenly into register blocks. Each value is the same sum in the same order whatever the block it is in.
///
/// # Safety
///
/// `a` must be valid for reading `rows` rows of `depth` values, `panel` for `depth * 2 * LANES`, `bias` null or valid for
/// `2 * LANES`, and `c` for writing `rows` rows of `2 * LANES`.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd>(
    s: S,
    rows: usize,
    depth: usize,
    a: Rows<*const f32>,
    panel: *const f32,
    bias: *const f32,
    c: Rows<*mut f32>,
) {
    let blocks = rows.div_ceil(S::ROWS);
    let mut row = 0;
    for block in 0..blocks {
        let count = (rows - row) / (blocks - block);
        // SAFETY: rows `row..row + count` of those the caller promised.
        unsafe {
            let a = Rows { start: a.start.add(row * a.stride), ..a };
            let c = Rows { start: c.start.add(row * c.stride), ..c };
            match count {
                1 => register_block::<S, 1>(s, depth, a, panel, bias, c),
                2 => register_block::<S, 2>(s, depth, a, panel, bias, c),
                3 => register_block::<S, 3>(s, depth, a, panel, bias, c),
                4 => register_block::<S, 4>(s, depth, a, panel, bias, c),
                5 => register_block::<S, 5>(s, depth, a, panel, bias, c),
                6 => register_block::<S, 6>(s, depth, a, panel, bias, c),
                7 => register_block::<S, 7>(s, depth, a, panel, bias, c),
                8 => register_block::<S, 8>(s, depth, a, panel, bias, c),
                9 => register_block::<S, 9>(s, depth, a, panel, bias, c),
                10 => register_block::<S, 10>(s, depth, a, panel, bias, c),
                11 => register_block::<S, 11>(s, depth, a, panel, bias, c),
                _ => register_block::<S, 12>(s, depth, a, panel, bias, c),
            }
        }
        row += count;
    }
}

/// See [`multiply`], for exactly `R` rows.
///
/// # Safety
///
/// As for [`multiply`] with `R` rows.
#[inline(always)]
unsafe fn register_block<S: Simd, const R: usize>(
    s: S,
    depth: usize,
    a: Rows<*const f32>,
    panel: *const f32,
    bias: *const f32,
    c: Rows<*mut f32>,
) {
    if R > S::ROWS {
        // Never chosen by `multiply`; keeps the compiler from making blocks that do not fit the registers.
        return;
    }
    let mut acc = [[s.splat(0.0); VECTORS]; R];
    if !bias.is_null() {
        // SAFETY: the caller's promise on `bias`.
        acc = unsafe { [[s.load(bias), s.load(bias.add(S::LANES))]; R] };
    }
    for k in 0..depth {
        // SAFETY: `k < depth`, and the caller's promises on `panel` and `a`.
        unsafe {
            let b = panel.add(k * VECTORS * S::LANES);
            // The same row of the next panel, which lies behind this one and comes from far away.
            s.prefetch(b.wrapping_add(depth * VECTORS * S::LANES));
            let b = [s.load(b), s.load(b.add(S::LANES))];
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = s.splat(*a.start.add(r * a.stride + k));
                acc[0] = s.fma(x, b[0], acc[0]);
                acc[1] = s.fma(x, b[1], acc[1]);
            }
        }
    }
    for (r, acc) in acc.iter().enumerate() {
        // SAFETY: `r < R`, and the caller's promise on `c`.
        unsafe {
            let c = c.start.add(r * c.stride);
            s.store(c, acc[0]);
            s.store(c.add(S::LANES), acc[1]);
        }
    }
}
