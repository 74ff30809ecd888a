//! What the operations compute, in f32. The caller rounds the results to the tensor's format.

use tt_metal_sys::{Conv2dOptions, MaxPool2dOptions};

use super::gemm;
use super::matrix_unit::tf32;

/// Position of an element in row-major order.
pub(super) fn flat(shape: [usize; 4], at: [usize; 4]) -> usize {
    ((at[0] * shape[1] + at[1]) * shape[2] + at[2]) * shape[3] + at[3]
}

/// A tensor of `shape` whose elements come from `source(position)`.
pub(super) fn pick(values: &[f32], shape: [usize; 4], source: impl Fn([usize; 4]) -> usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(shape.iter().product());
    for a in 0..shape[0] {
        for b in 0..shape[1] {
            for c in 0..shape[2] {
                out.extend((0..shape[3]).map(|d| values[source([a, b, c, d])]));
            }
        }
    }
    out
}

/// `weights` is `[kernel row, kernel column, in][out]`; row by row of the output as a product of matrices, to which `add` adds
/// the bias.
pub(in crate::p150) fn conv2d(
    options: &Conv2dOptions,
    weights: &[f32],
    bias: &[f32],
    map: &[f32],
    add: impl Fn(f32, f32) -> f32 + Sync,
) -> Vec<f32> {
    let Conv2dOptions { height, width, in_channels, out_channels, kernel, stride, padding, relu, .. } = *options;
    let side = |axis: usize, size: usize| (size + 2 * padding[axis] - kernel[axis]) / stride[axis] + 1;
    let (rows, columns) = (side(0, height), side(1, width));
    let depth = kernel[0] * kernel[1] * in_channels;
    let weights = gemm::Packed::new(weights, depth, out_channels);
    let mut out = vec![0.0; rows * columns * out_channels];
    gemm::in_parallel(&mut out, columns * out_channels, |y, row| {
        let mut patches = vec![0.0; columns * depth];
        for (x, patch) in patches.chunks_exact_mut(depth).enumerate() {
            for (tap, values) in patch.chunks_exact_mut(in_channels).enumerate() {
                let at_row = (y * stride[0] + tap / kernel[1]).wrapping_sub(padding[0]);
                let at_column = (x * stride[1] + tap % kernel[1]).wrapping_sub(padding[1]);
                if at_row < height && at_column < width {
                    values.copy_from_slice(&map[(at_row * width + at_column) * in_channels..][..in_channels]);
                }
            }
        }
        weights.multiply(&patches, row);
        for pixel in row.chunks_exact_mut(out_channels) {
            for (value, &bias) in pixel.iter_mut().zip(bias) {
                *value = add(*value, bias);
                *value = if relu { value.max(0.0) } else { *value };
            }
        }
    });
    out
}

pub(in crate::p150) fn max_pool2d(options: &MaxPool2dOptions, map: &[f32]) -> Vec<f32> {
    let MaxPool2dOptions { height, width, channels, kernel, stride, padding, .. } = *options;
    let side = |axis: usize, size: usize| (size + 2 * padding[axis] - kernel[axis]) / stride[axis] + 1;
    let (rows, columns) = (side(0, height), side(1, width));
    let mut out = vec![f32::NEG_INFINITY; rows * columns * channels];
    for (index, pixel) in out.chunks_exact_mut(channels).enumerate() {
        let (y, x) = (index / columns, index % columns);
        for tap in 0..kernel[0] * kernel[1] {
            let at_row = (y * stride[0] + tap / kernel[1]).wrapping_sub(padding[0]);
            let at_column = (x * stride[1] + tap % kernel[1]).wrapping_sub(padding[1]);
            if at_row < height && at_column < width {
                let values = &map[(at_row * width + at_column) * channels..][..channels];
                for (maximum, &value) in pixel.iter_mut().zip(values) {
                    *maximum = if value > *maximum { value } else { *maximum };
                }
            }
        }
    }
    out
}

/// Products of the matrices in the last two dimensions.
pub(super) fn matmul(a_shape: [usize; 4], b_shape: [usize; 4], a: &[f32], b: &[f32]) -> Vec<f32> {
    let (depth, columns) = (b_shape[2], b_shape[3]);
    let mut out = vec![0.0; a.len() / depth * columns];
    let matrices = a.chunks_exact(a_shape[2] * depth).zip(b.chunks_exact(depth * columns));
    for ((a, b), out) in matrices.zip(out.chunks_exact_mut(a_shape[2] * columns)) {
        let b = gemm::Packed::new(b, depth, columns);
        gemm::in_parallel(out, columns, |row, out| b.multiply(&a[row * depth..][..depth], out));
    }
    out
}

/// Step by step as TT-NN's kernel does it; each step reads what the one before it stored in fp32.
pub(super) fn softmax(row: &mut [f32]) {
    let maximum = row.iter().copied().map(tf32).fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|value| *value = tf32((tf32(*value) - maximum).exp()));
    let sum: f32 = row.iter().sum();
    let factor = tf32(1.0 / sum);
    row.iter_mut().for_each(|value| *value *= factor);
}

pub(super) fn rms_norm(row: &mut [f32], gamma: &[f32], epsilon: f32) {
    let mean = row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
    let scale = 1.0 / (mean + epsilon).sqrt();
    row.iter_mut().zip(gamma).for_each(|(value, gamma)| *value *= scale * gamma);
}

/// Of equal values the later one comes first: as TT-NN leaves their order open, an order that nobody hopes for.
pub(super) fn topk(row: &[f32], k: usize) -> Vec<(u16, f32)> {
    let mut order: Vec<(u16, f32)> = (0..).zip(row.iter().copied()).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    order.truncate(k);
    order
}
