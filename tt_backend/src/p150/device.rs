//! The operations that the graph is made of.
//!
//! The graph is written once against [`Device`]. Two things implement it: [`ttnn`](super::ttnn), which is the card, and in
//! tests an emulation with the card's number formats. Shapes, layouts and options are TT-NN's.

use std::fmt;

use tt_metal_sys::{Compute, Conv2dOptions, DType, Layout, MaxPool2dOptions, Spec};

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {reason}")]
pub(crate) struct DeviceError {
    /// The operation's name in TT-NN.
    pub(crate) operation: &'static str,
    /// What was wrong, with which value.
    pub(crate) reason: String,
}

impl From<tt_metal_sys::Error> for DeviceError {
    fn from(error: tt_metal_sys::Error) -> Self {
        Self { operation: error.operation, reason: error.reason }
    }
}

/// What every operation gives.
pub(crate) type Result<T> = std::result::Result<T, DeviceError>;

/// A card, or what stands for it. It does what it is told in that order, and only reading and [`Device::synchronize`] wait
/// for its end.
pub(crate) trait Device {
    /// A tensor on the device. Clones are the same tensor; it is freed with the last.
    type Tensor: Clone + fmt::Debug;
    /// A convolution with its weights on the device.
    type Conv: fmt::Debug;
    /// A recorded sequence of operations, released when dropped.
    type Trace: fmt::Debug;

    fn spec(&self, tensor: &Self::Tensor) -> Spec;

    /// A tensor of undefined values.
    fn allocate(&self, spec: Spec) -> Result<Self::Tensor>;
    /// A bf16 tensor of these values, row-major.
    fn constant(&self, spec: Spec, values: &[f32]) -> Result<Self::Tensor>;
    /// Overwrites a row-major tensor of 16-bit elements; bf16 as its bits.
    fn write(&self, to: &Self::Tensor, data: &[u16]) -> Result<()>;
    /// Overwrites a row-major tensor of 32-bit elements.
    fn write_u32(&self, to: &Self::Tensor, data: &[u32]) -> Result<()>;
    /// Reads a row-major tensor of 16-bit elements, and waits for it.
    fn read(&self, from: &Self::Tensor, data: &mut [u16]) -> Result<()>;
    /// As [`Device::read`] for a tensor of singles.
    fn read_f32(&self, from: &Self::Tensor, data: &mut [f32]) -> Result<()>;

    fn synchronize(&self) -> Result<()>;

    /// Records `work` instead of running it; its tensors get their values with each replay.
    fn record<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(Self::Trace, T)>;
    /// Does not wait for the end.
    fn replay(&self, trace: &Self::Trace) -> Result<()>;

    /// `weights` is `[out][in][kernel row][kernel column]`, `bias` is `[out]`.
    fn prepare_conv2d(&self, options: &Conv2dOptions, weights: &[f32], bias: &[f32]) -> Result<Self::Conv>;
    fn conv2d(&self, conv: &Self::Conv, input: &Self::Tensor) -> Result<Self::Tensor>;
    /// The output is row-major.
    fn max_pool2d(&self, input: &Self::Tensor, options: &MaxPool2dOptions) -> Result<Self::Tensor>;
    /// Of the last two dimensions, in tiles; the product in bf16 or fp32.
    fn matmul(&self, a: &Self::Tensor, b: &Self::Tensor, compute: Compute, dtype: DType) -> Result<Self::Tensor>;
    /// Over the last dimension, in tiles, in the input's number format.
    fn softmax(&self, input: &Self::Tensor, compute: Compute) -> Result<Self::Tensor>;
    /// `x / sqrt(mean(x * x) + epsilon) * gamma` over the last dimension, in tiles.
    fn rms_norm(
        &self,
        input: &Self::Tensor,
        gamma: &Self::Tensor,
        epsilon: f32,
        compute: Compute,
    ) -> Result<Self::Tensor>;
    fn slice(&self, input: &Self::Tensor, begin: [usize; 4], end: [usize; 4]) -> Result<Self::Tensor>;
    fn reshape(&self, input: &Self::Tensor, shape: [usize; 4]) -> Result<Self::Tensor>;
    /// Dimension `i` of the result is dimension `order[i]` of the input.
    fn permute(&self, input: &Self::Tensor, order: [usize; 4]) -> Result<Self::Tensor>;
    fn to_layout(&self, input: &Self::Tensor, layout: Layout) -> Result<Self::Tensor>;
    /// Between bf16 and fp32, rounded to the nearest.
    fn typecast(&self, input: &Self::Tensor, dtype: DType) -> Result<Self::Tensor>;
    /// In tiles.
    fn add(&self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;
    /// In tiles.
    fn add_scalar(&self, input: &Self::Tensor, value: f32) -> Result<Self::Tensor>;
    /// In tiles.
    fn floor(&self, input: &Self::Tensor) -> Result<Self::Tensor>;
    /// 1 where equal, else 0; in tiles.
    fn eq(&self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;
    /// In tiles.
    fn multiply(&self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;
    /// The `k` largest of the last dimension, descending, and their indices; equal values in any order. In tiles.
    fn topk(&self, input: &Self::Tensor, k: usize) -> Result<(Self::Tensor, Self::Tensor)>;
    /// Along the last dimension, in tiles: element `i` of a row is element `indices[i]` of that row of `input`.
    fn gather(&self, input: &Self::Tensor, indices: &Self::Tensor) -> Result<Self::Tensor>;
    /// Rows of `table` by number: `[1, 1, 1, n]` gives `[1, 1, n, width]`, in tiles.
    fn embedding(&self, indices: &Self::Tensor, table: &Self::Tensor) -> Result<Self::Tensor>;
    /// Overwrites `to` by `from`.
    fn copy(&self, from: &Self::Tensor, to: &Self::Tensor) -> Result<()>;
}
