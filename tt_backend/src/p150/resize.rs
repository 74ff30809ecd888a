//! From a plane to the network frame, on the device.
//!
//! The resize is separable, so it is two matrix products: `frame = V · plane · H`, where row `y` of `V` is the filter of
//! output row `y`, and column `x` of `H` that of output column `x`. Rows first, and whole grey levels after each product, as
//! on the host, where both are Pillow's.
//!
//! The products take bf16, which has 8 bits; a filter needs more, and so is the sum of two matrices: its weights rounded to
//! bf16, and what that left over. Grey levels are exact in bf16, and so is each product of two of its numbers in the sums of
//! fp32. The filters are a little off all the same, and Pillow's are rounded too: where a sum falls close to the middle of
//! two levels, the result is one level beside the host's (on the emulation up to 2.4 % of a photo's pixels, on a simulator 9 %).

use half::bf16;
use tt_metal_sys::{Compute, DType, Layout, Memory, Spec};

use super::device::{Device, Result};
use super::network::PAGE;
use crate::Size;
use crate::resize::triangle_matrix;

/// The longest side of a plane that is resized on the device. Larger planes take longer to upload than to resize on the
/// host.
pub(super) const MAX_SIDE: usize = 2048;

/// The way of planes of one size to the frame.
#[derive(Debug)]
pub(super) struct Resize<D: Device> {
    frame: Size,
    /// `H` and `V`; `None` for planes that already have the frame's size.
    filters: Option<[Filter<D>; 2]>,
}

/// A matrix that is the sum of two in bf16, the second of which is small.
#[derive(Debug)]
struct Filter<D: Device>([D::Tensor; 2]);

impl<D: Device> Filter<D> {
    /// Brings a row-major matrix to the device.
    fn new(device: &D, rows: usize, columns: usize, values: &[f32]) -> Result<Self> {
        let spec =
            Spec { shape: [1, 1, rows, columns], dtype: DType::Bf16, layout: Layout::Tile, memory: Memory::Dram };
        let rest: Vec<f32> = values.iter().map(|&value| value - bf16::from_f32(value).to_f32()).collect();
        Ok(Self([device.constant(spec, values)?, device.constant(spec, &rest)?]))
    }

    /// The product with the filter, as `product` takes it with one matrix, in whole grey levels.
    fn apply(&self, device: &D, product: impl Fn(&D::Tensor) -> Result<D::Tensor>) -> Result<D::Tensor> {
        let Self([weights, rest]) = self;
        let sum = device.add(&product(weights)?, &product(rest)?)?;
        let levels = device.floor(&device.add_scalar(&sum, 0.5)?)?;
        device.typecast(&levels, DType::Bf16)
    }
}

/// Spec of the tensor that planes of `size` are uploaded to: row-major with the pages as wide as they can be.
pub(super) fn plane_spec(size: Size, frame: Size) -> Spec {
    let shape = if size == frame { [1, 1, frame.area() / PAGE, PAGE] } else { [1, 1, size.height, size.width] };
    Spec { shape, dtype: DType::Bf16, layout: Layout::RowMajor, memory: Memory::Dram }
}

/// Whether planes of `size` can be resized on the device.
pub(super) fn covers(size: Size) -> bool {
    size.height <= MAX_SIDE && size.width <= MAX_SIDE
}

impl<D: Device> Resize<D> {
    /// Brings the filters to the device.
    pub(super) fn new(device: &D, size: Size, frame: Size) -> Result<Self> {
        if size == frame {
            return Ok(Self { frame, filters: None });
        }
        let transposed = triangle_matrix(size.width, frame.width);
        let horizontal: Vec<f32> = (0..size.width * frame.width)
            .map(|index| transposed[index % frame.width * size.width + index / frame.width])
            .collect();
        let vertical = triangle_matrix(size.height, frame.height);
        let filters = [
            Filter::new(device, size.width, frame.width, &horizontal)?,
            Filter::new(device, frame.height, size.height, &vertical)?,
        ];
        Ok(Self { frame, filters: Some(filters) })
    }

    /// Overwrites `frame`, `[1, 1, HW / 32, 32]` row-major, by the resized plane.
    pub(super) fn run(&self, device: &D, plane: &D::Tensor, frame: &D::Tensor) -> Result<()> {
        let Some([horizontal, vertical]) = &self.filters else {
            return device.copy(plane, frame);
        };
        let plane = device.to_layout(plane, Layout::Tile)?;
        let product = |a: &D::Tensor, b: &D::Tensor| device.matmul(a, b, Compute::HIFI4, DType::F32);
        let narrowed = horizontal.apply(device, |filter| product(&plane, filter))?;
        let resized = vertical.apply(device, |filter| product(filter, &narrowed))?;
        let resized = device.to_layout(&resized, Layout::RowMajor)?;
        let resized = device.reshape(&resized, [1, 1, self.frame.area() / PAGE, PAGE])?;
        device.copy(&resized, frame)
    }
}
