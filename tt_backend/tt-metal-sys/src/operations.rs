//! The operations, with TT-NN's names.

use std::rc::Rc;

use crate::abi;
use crate::types::u32_of;
use crate::{Compute, Conv2dOptions, DType, Device, Error, Layout, MaxPool2dOptions, Memory, Tensor};

// Each operation on operands begins with the question whether they are on its device.

/// A convolution whose weights are on the device in the form that its kernels read. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Conv2d {
    inner: Rc<ConvHandle>,
}

#[derive(Debug)]
struct ConvHandle {
    device: Device,
    pointer: *mut abi::Conv,
}

impl Drop for ConvHandle {
    fn drop(&mut self) {
        // SAFETY: made by this library, and freed here only.
        unsafe { (self.device.functions().conv2d_free)(self.pointer) };
    }
}

impl Conv2d {
    /// The convolution of `input`, `[1, 1, height * width, in_channels]`.
    ///
    /// # Errors
    ///
    /// When the input is not the map that the options describe, or the device fails.
    pub fn run(&self, input: &Tensor) -> Result<Tensor, Error> {
        let Conv2d { inner } = self;
        inner.device.owns("conv2d", &[input])?;
        // SAFETY: convolution and tensor are alive, and the pointer valid for the call.
        inner
            .device
            .tensor("conv2d", |out| unsafe { (inner.device.functions().conv2d)(inner.pointer, input.pointer(), out) })
    }
}

impl Device {
    /// Brings the weights of a convolution to the device. `weights` is `[out][in][kernel row][kernel column]`, `bias` is
    /// `[out]`.
    ///
    /// # Errors
    ///
    /// When the counts are not those of the options, or TT-NN cannot run such a convolution.
    pub fn prepare_conv2d(&self, options: &Conv2dOptions, weights: &[f32], bias: &[f32]) -> Result<Conv2d, Error> {
        let mut out = std::ptr::null_mut();
        // SAFETY: the device is open, and the pointers valid for the call.
        let status = unsafe {
            let options = options.to_abi();
            let (weights, weight_count) = (weights.as_ptr(), weights.len());
            let prepare = self.functions().conv2d_prepare;
            prepare(self.pointer(), &options, weights, weight_count, bias.as_ptr(), bias.len(), &mut out)
        };
        self.check("prepare conv2d", status)?;
        Ok(Conv2d { inner: Rc::new(ConvHandle { device: self.clone(), pointer: out }) })
    }

    /// Maxima over windows.
    ///
    /// # Errors
    ///
    /// When the input is not the map that the options describe, or the device fails.
    pub fn max_pool2d(&self, input: &Tensor, options: &MaxPool2dOptions) -> Result<Tensor, Error> {
        self.owns("max_pool2d", &[input])?;
        // SAFETY: the tensor is alive, and the pointers valid for the call.
        self.tensor("max_pool2d", |out| unsafe {
            (self.functions().max_pool2d)(input.pointer(), &options.to_abi(), out)
        })
    }

    /// Products of the matrices in the last two dimensions, as [`DType::Bf16`] or [`DType::F32`].
    ///
    /// # Errors
    ///
    /// When the shapes do not fit, or the device fails.
    pub fn matmul(&self, a: &Tensor, b: &Tensor, compute: Compute, dtype: DType) -> Result<Tensor, Error> {
        self.owns("matmul", &[a, b])?;
        // SAFETY: the tensors are alive, and the pointers valid for the call.
        self.tensor("matmul", |out| unsafe {
            (self.functions().matmul)(a.pointer(), b.pointer(), &compute.to_abi(), dtype.to_abi(), out)
        })
    }

    /// Softmax over the last dimension.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn softmax(&self, input: &Tensor, compute: Compute) -> Result<Tensor, Error> {
        self.owns("softmax", &[input])?;
        // SAFETY: the tensor is alive, and the pointers valid for the call.
        self.tensor("softmax", |out| unsafe { (self.functions().softmax)(input.pointer(), &compute.to_abi(), out) })
    }

    /// `x / sqrt(mean(x * x) + epsilon) * gamma` over the last dimension; `gamma` is `[1, 1, 1, last dimension]`.
    ///
    /// # Errors
    ///
    /// When the shapes do not fit, or the device fails.
    pub fn rms_norm(&self, input: &Tensor, gamma: &Tensor, epsilon: f32, compute: Compute) -> Result<Tensor, Error> {
        self.owns("rms_norm", &[input, gamma])?;
        // SAFETY: the tensors are alive, and the pointers valid for the call.
        self.tensor("rms_norm", |out| unsafe {
            (self.functions().rms_norm)(input.pointer(), gamma.pointer(), epsilon, &compute.to_abi(), out)
        })
    }

    /// Element-wise sum.
    ///
    /// # Errors
    ///
    /// When the shapes differ, or the device fails.
    pub fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.owns("add", &[a, b])?;
        // SAFETY: the tensors are alive, and the pointer valid for the call.
        self.tensor("add", |out| unsafe { (self.functions().add)(a.pointer(), b.pointer(), out) })
    }

    /// 1 where two tensors are equal, else 0.
    ///
    /// # Errors
    ///
    /// When the shapes differ, or the device fails.
    pub fn eq(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.owns("eq", &[a, b])?;
        // SAFETY: the tensors are alive, and the pointer valid for the call.
        self.tensor("eq", |out| unsafe { (self.functions().eq)(a.pointer(), b.pointer(), out) })
    }

    /// Element-wise product.
    ///
    /// # Errors
    ///
    /// When the shapes differ, or the device fails.
    pub fn multiply(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Error> {
        self.owns("multiply", &[a, b])?;
        // SAFETY: the tensors are alive, and the pointer valid for the call.
        self.tensor("multiply", |out| unsafe { (self.functions().multiply)(a.pointer(), b.pointer(), out) })
    }

    /// The `k` largest values of the last dimension, descending, and their indices. Equal values come in any order.
    ///
    /// # Errors
    ///
    /// When the last dimension is shorter than `k` or than TT-NN takes, or the device fails.
    pub fn topk(&self, input: &Tensor, k: usize) -> Result<(Tensor, Tensor), Error> {
        self.owns("topk", &[input])?;
        let (mut values, mut indices) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the tensor is alive, and the pointers valid for the call.
        let status = unsafe { (self.functions().topk)(input.pointer(), u32_of(k), &mut values, &mut indices) };
        self.check("topk", status)?;
        // Both are adopted before either can fail, so that neither is lost.
        let (values, indices) = (self.adopt("topk", values), self.adopt("topk", indices));
        Ok((values?, indices?))
    }

    /// Along the last dimension: element `i` of a row of the result is element `indices[i]` of that row of `input`. All in
    /// tiles.
    ///
    /// # Errors
    ///
    /// When the shapes do not fit, or the device fails. Numbers beyond the row are not noticed.
    pub fn gather(&self, input: &Tensor, indices: &Tensor) -> Result<Tensor, Error> {
        self.owns("gather", &[input, indices])?;
        // SAFETY: the tensors are alive, and the pointer valid for the call.
        self.tensor("gather", |out| unsafe { (self.functions().gather)(input.pointer(), indices.pointer(), out) })
    }

    /// Rows of `table`, `[1, 1, rows, width]` row-major, by number: indices `[1, 1, 1, n]` give `[1, 1, n, width]`
    /// in tiles.
    ///
    /// # Errors
    ///
    /// When the shapes do not fit, or the device fails. Numbers beyond the table are not noticed.
    pub fn embedding(&self, indices: &Tensor, table: &Tensor) -> Result<Tensor, Error> {
        self.owns("embedding", &[indices, table])?;
        // SAFETY: the tensors are alive, and the pointer valid for the call.
        self.tensor("embedding", |out| unsafe { (self.functions().embedding)(indices.pointer(), table.pointer(), out) })
    }

    /// Overwrites `to` by `from`.
    ///
    /// # Errors
    ///
    /// When their specs differ, or the device fails.
    pub fn copy(&self, from: &Tensor, to: &Tensor) -> Result<(), Error> {
        self.owns("copy", &[from, to])?;
        // SAFETY: the tensors are alive.
        self.check("copy", unsafe { (self.functions().copy)(from.pointer(), to.pointer()) })
    }
}

impl Tensor {
    /// Elements from `begin` to before `end`.
    ///
    /// # Errors
    ///
    /// When they are not within the tensor, or the device fails.
    pub fn slice(&self, begin: [usize; 4], end: [usize; 4]) -> Result<Tensor, Error> {
        let (begin, end) = (begin.map(u32_of), end.map(u32_of));
        // SAFETY: the tensor is alive, and the pointers valid for the call.
        self.device().tensor("slice", |out| unsafe {
            (self.device().functions().slice)(self.pointer(), begin.as_ptr(), end.as_ptr(), out)
        })
    }

    /// The same elements in the same order in another shape.
    ///
    /// # Errors
    ///
    /// When the volumes differ, or the device fails.
    pub fn reshape(&self, shape: [usize; 4]) -> Result<Tensor, Error> {
        let shape = shape.map(u32_of);
        // SAFETY: the tensor is alive, and the pointers valid for the call.
        self.device().tensor("reshape", |out| unsafe {
            (self.device().functions().reshape)(self.pointer(), shape.as_ptr(), out)
        })
    }

    /// Dimension `i` of the result is dimension `order[i]` of this tensor.
    ///
    /// # Errors
    ///
    /// When `order` is not an order of the four dimensions, or the device fails.
    pub fn permute(&self, order: [usize; 4]) -> Result<Tensor, Error> {
        if !(0..4).all(|dimension| order.contains(&dimension)) {
            let reason = format!("{order:?} is not an order of four dimensions");
            return Err(Error { operation: "permute", reason });
        }
        let order = order.map(u32_of);
        // SAFETY: the tensor is alive, and the pointers valid for the call.
        self.device().tensor("permute", |out| unsafe {
            (self.device().functions().permute)(self.pointer(), order.as_ptr(), out)
        })
    }

    /// The same numbers in another format, rounded to the nearest; [`DType::Bf16`] and [`DType::F32`] only.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn typecast(&self, dtype: DType) -> Result<Tensor, Error> {
        // SAFETY: the tensor is alive, and the pointer valid for the call.
        self.device().tensor("typecast", |out| unsafe {
            (self.device().functions().typecast)(self.pointer(), dtype.to_abi(), out)
        })
    }

    /// `value` added to every element.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn add_scalar(&self, value: f32) -> Result<Tensor, Error> {
        // SAFETY: the tensor is alive, and the pointer valid for the call.
        self.device().tensor("add", |out| unsafe { (self.device().functions().add_scalar)(self.pointer(), value, out) })
    }

    /// Every element's largest integer that is not above it.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn floor(&self) -> Result<Tensor, Error> {
        // SAFETY: the tensor is alive, and the pointer valid for the call.
        self.device().tensor("floor", |out| unsafe { (self.device().functions().floor)(self.pointer(), out) })
    }

    /// The same tensor in another layout.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn to_layout(&self, layout: Layout) -> Result<Tensor, Error> {
        // SAFETY: the tensor is alive, and the pointer valid for the call.
        self.device().tensor("to_layout", |out| unsafe {
            (self.device().functions().to_layout)(self.pointer(), layout.to_abi(), out)
        })
    }

    /// The same tensor in another memory.
    ///
    /// # Errors
    ///
    /// For [`Memory::L1Sharded`], which only operations make; when there is no room; when the device fails.
    pub fn to_memory(&self, memory: Memory) -> Result<Tensor, Error> {
        // SAFETY: the tensor is alive, and the pointer valid for the call.
        self.device().tensor("to_memory_config", |out| unsafe {
            (self.device().functions().to_memory)(self.pointer(), memory.to_abi(), out)
        })
    }
}
