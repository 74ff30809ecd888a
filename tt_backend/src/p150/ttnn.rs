//! The card: [`Device`] on TT-NN.

use tt_metal_sys::{Compute, Conv2d, Conv2dOptions, DType, Layout, MaxPool2dOptions, Spec, Tensor, Trace};

use super::device::{Device, Result};

/// The command queue that everything goes through.
const QUEUE: u32 = 0;

/// An open card.
#[derive(Debug)]
pub(super) struct Ttnn {
    device: tt_metal_sys::Device,
}

impl Ttnn {
    pub(super) fn new(device: tt_metal_sys::Device) -> Self {
        Self { device }
    }
}

impl Device for Ttnn {
    type Tensor = Tensor;
    type Conv = Conv2d;
    type Trace = Trace;

    fn spec(&self, tensor: &Tensor) -> Spec {
        tensor.spec()
    }

    fn allocate(&self, spec: Spec) -> Result<Tensor> {
        Ok(self.device.allocate(spec)?)
    }

    fn constant(&self, spec: Spec, values: &[f32]) -> Result<Tensor> {
        Ok(self.device.constant(spec, values)?)
    }

    fn write(&self, to: &Tensor, data: &[u16]) -> Result<()> {
        Ok(self.device.write(QUEUE, to, data)?)
    }

    fn write_u32(&self, to: &Tensor, data: &[u32]) -> Result<()> {
        Ok(self.device.write(QUEUE, to, data)?)
    }

    fn read(&self, from: &Tensor, data: &mut [u16]) -> Result<()> {
        Ok(self.device.read(QUEUE, from, data)?)
    }

    fn read_f32(&self, from: &Tensor, data: &mut [f32]) -> Result<()> {
        Ok(self.device.read(QUEUE, from, data)?)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(self.device.synchronize()?)
    }

    fn record<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(Trace, T)> {
        self.device.record_trace(work)
    }

    fn replay(&self, trace: &Trace) -> Result<()> {
        Ok(trace.replay()?)
    }

    fn prepare_conv2d(&self, options: &Conv2dOptions, weights: &[f32], bias: &[f32]) -> Result<Conv2d> {
        Ok(self.device.prepare_conv2d(options, weights, bias)?)
    }

    fn conv2d(&self, conv: &Conv2d, input: &Tensor) -> Result<Tensor> {
        Ok(conv.run(input)?)
    }

    fn max_pool2d(&self, input: &Tensor, options: &MaxPool2dOptions) -> Result<Tensor> {
        Ok(self.device.max_pool2d(input, options)?)
    }

    fn matmul(&self, a: &Tensor, b: &Tensor, compute: Compute, dtype: DType) -> Result<Tensor> {
        Ok(self.device.matmul(a, b, compute, dtype)?)
    }

    fn softmax(&self, input: &Tensor, compute: Compute) -> Result<Tensor> {
        Ok(self.device.softmax(input, compute)?)
    }

    fn rms_norm(&self, input: &Tensor, gamma: &Tensor, epsilon: f32, compute: Compute) -> Result<Tensor> {
        Ok(self.device.rms_norm(input, gamma, epsilon, compute)?)
    }

    fn slice(&self, input: &Tensor, begin: [usize; 4], end: [usize; 4]) -> Result<Tensor> {
        Ok(input.slice(begin, end)?)
    }

    fn reshape(&self, input: &Tensor, shape: [usize; 4]) -> Result<Tensor> {
        Ok(input.reshape(shape)?)
    }

    fn permute(&self, input: &Tensor, order: [usize; 4]) -> Result<Tensor> {
        Ok(input.permute(order)?)
    }

    fn to_layout(&self, input: &Tensor, layout: Layout) -> Result<Tensor> {
        Ok(input.to_layout(layout)?)
    }

    fn typecast(&self, input: &Tensor, dtype: DType) -> Result<Tensor> {
        Ok(input.typecast(dtype)?)
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok(self.device.add(a, b)?)
    }

    fn add_scalar(&self, input: &Tensor, value: f32) -> Result<Tensor> {
        Ok(input.add_scalar(value)?)
    }

    fn floor(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.floor()?)
    }

    fn eq(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok(self.device.eq(a, b)?)
    }

    fn multiply(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok(self.device.multiply(a, b)?)
    }

    fn topk(&self, input: &Tensor, k: usize) -> Result<(Tensor, Tensor)> {
        Ok(self.device.topk(input, k)?)
    }

    fn gather(&self, input: &Tensor, indices: &Tensor) -> Result<Tensor> {
        Ok(self.device.gather(input, indices)?)
    }

    fn embedding(&self, indices: &Tensor, table: &Tensor) -> Result<Tensor> {
        Ok(self.device.embedding(indices, table)?)
    }

    fn copy(&self, from: &Tensor, to: &Tensor) -> Result<()> {
        Ok(self.device.copy(from, to)?)
    }
}
