//! From a plane to the network frame, on the device.
//!
//! The resize is separable, so it is two matrix products: `frame = V · plane · H`, where row `y` of `V` is the filter of
//! output row `y`, and column `x` of `H` that of output column `x`. Rows first, as on the host. Filters and the result
//! between the products are in bf16, where the host has integers: 8 bits either way.

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
    /// `H`, width of the plane x width of the frame, and `V`, height of the frame x height of the plane; `None` for planes
    /// that already have the frame's size.
    filters: Option<[D::Tensor; 2]>,
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
        let constant = |rows: usize, columns: usize, values: &[f32]| {
            let shape = [1, 1, rows, columns];
            device.constant(Spec { shape, dtype: DType::Bf16, layout: Layout::Tile, memory: Memory::Dram }, values)
        };
        let transposed = triangle_matrix(size.width, frame.width);
        let horizontal: Vec<f32> = (0..size.width * frame.width)
            .map(|index| transposed[index % frame.width * size.width + index / frame.width])
            .collect();
        let vertical = triangle_matrix(size.height, frame.height);
        let filters =
            [constant(size.width, frame.width, &horizontal)?, constant(frame.height, size.height, &vertical)?];
        Ok(Self { frame, filters: Some(filters) })
    }

    /// Overwrites `frame`, `[1, 1, HW / 32, 32]` row-major, by the resized plane.
    pub(super) fn run(&self, device: &D, plane: &D::Tensor, frame: &D::Tensor) -> Result<()> {
        let Some([horizontal, vertical]) = &self.filters else {
            return device.copy(plane, frame);
        };
        let plane = device.to_layout(plane, Layout::Tile)?;
        let narrowed = device.matmul(&plane, horizontal, Compute::HIFI4)?;
        let resized = device.matmul(vertical, &narrowed, Compute::HIFI4)?;
        let resized = device.to_layout(&resized, Layout::RowMajor)?;
        let resized = device.reshape(&resized, [1, 1, self.frame.area() / PAGE, PAGE])?;
        device.copy(&resized, frame)
    }
}
