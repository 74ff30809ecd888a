//! The product of matrices under convolution and matmul, fast enough for whole photos in a test.

use multiversion::multiversion;

use crate::team::{self, Team};

/// Columns of a panel.
const PANEL: usize = 16;
/// Rows that are multiplied side by side.
const ROWS: usize = 4;

/// The right-hand matrix, cut into panels of columns.
pub(super) struct Packed {
    depth: usize,
    columns: usize,
    /// `[panel][depth]`
    panels: Vec<[f32; PANEL]>,
}

impl Packed {
    /// From a row-major matrix of `depth` rows.
    pub(super) fn new(matrix: &[f32], depth: usize, columns: usize) -> Self {
        let mut panels = vec![[0.0; PANEL]; columns.div_ceil(PANEL) * depth];
        for (index, &value) in matrix.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            panels[column / PANEL * depth + row][column % PANEL] = value;
        }
        Self { depth, columns, panels }
    }

    /// `out = left · self` for the rows that `out` has.
    pub(super) fn multiply(&self, left: &[f32], out: &mut [f32]) {
        multiply(self, left, out);
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn multiply(right: &Packed, left: &[f32], out: &mut [f32]) {
    let Packed { depth, columns, panels } = right;
    for (left, out) in left.chunks(ROWS * depth).zip(out.chunks_mut(ROWS * columns)) {
        let count = left.len() / depth;
        let rows: [&[f32]; ROWS] = std::array::from_fn(|row| &left[row.min(count - 1) * depth..][..*depth]);
        for (panel, values) in panels.chunks_exact(*depth).enumerate() {
            let mut sums = [[0.0f32; PANEL]; ROWS];
            for (depth, values) in values.iter().enumerate() {
                for (sums, row) in sums.iter_mut().zip(rows) {
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = row[depth].mul_add(*value, *sum);
                    }
                }
            }
            let first = panel * PANEL;
            let width = PANEL.min(columns - first);
            for (out, sums) in out.chunks_exact_mut(*columns).zip(sums) {
                out[first..first + width].copy_from_slice(&sums[..width]);
            }
        }
    }
}

/// Calls `work(index, chunk)` for the chunks of `out`, on all cores.
pub(super) fn in_parallel(out: &mut [f32], chunk: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let mut team = Team::new(team::cores()).expect("threads");
    team.for_chunks(out, chunk, |_, index, out| work(index, out));
}
