//! Descriptors of keypoints: bilinear samples of the map of cells, on the device.
//!
//! The host knows the keypoints, and so for each of them four cells and their weights. The device gathers the cells' rows
//! (an embedding), and mixes them as a product of matrices with sums in fp32: for each group of 32 keypoints
//!
//! ```text
//! mix [32, 128]  x  rows [128, 256]  =  descriptors [32, 256]       row 4 j + c is corner c of keypoint j
//! ```
//!
//! where row `j` of the mix has its four weights in columns `4 j` to `4 j + 3` and zeros elsewhere. Then the L2 norm.

use half::bf16;
use tt_metal_sys::{Compute, DType, Layout, Memory, Spec};

use super::device::{Device, Result};
use super::network::unit_norm_gamma;
use crate::Size;
use crate::keypoints::{DESCRIPTOR_DIM, corners};

/// Keypoints of one run. More take several.
pub(super) const BATCH: usize = 1024;

/// Keypoints of one product: one row of tiles.
const GROUP: usize = 32;
/// Cells that a keypoint lies between.
const CORNERS: usize = 4;

/// The tensors that the host writes, and what the host prepares them in.
#[derive(Debug)]
pub(super) struct Sampler<D: Device> {
    cells: Size,
    /// Numbers of cells, 32 bits, `[1, 1, 1, 4 BATCH]`.
    indices: D::Tensor,
    /// `[1, BATCH / 32, 32, 128]`, row-major.
    mix: D::Tensor,
    gamma: D::Tensor,
    host_indices: Vec<u32>,
    host_mix: Vec<u16>,
}

impl<D: Device> Sampler<D> {
    pub(super) fn new(device: &D, frame: Size) -> Result<Self> {
        let groups = BATCH / GROUP;
        let spec = |shape, dtype| Spec { shape, dtype, layout: Layout::RowMajor, memory: Memory::Dram };
        let indices = spec([1, 1, 1, CORNERS * BATCH], DType::U32);
        let mix = spec([1, groups, GROUP, CORNERS * GROUP], DType::Bf16);
        Ok(Self {
            cells: frame.cells(),
            host_indices: vec![0; indices.volume()],
            host_mix: vec![0; mix.volume()],
            indices: device.allocate(indices)?,
            mix: device.allocate(mix)?,
            gamma: unit_norm_gamma(device)?,
        })
    }

    /// Writes cells and weights of at most [`BATCH`] keypoints, `[x, y]` in the frame.
    pub(super) fn write(&mut self, device: &D, points: &[[u16; 2]]) -> Result<()> {
        for index in 0..BATCH {
            // What fills up the batch samples one cell, so that no norm is zero.
            let filler = [(1.0, 0), (0.0, 0), (0.0, 0), (0.0, 0)];
            let corners = points.get(index).map_or(filler, |&point| corners(self.cells, point));
            let row = &mut self.host_mix[index * CORNERS * GROUP..][..CORNERS * GROUP];
            for (corner, (weight, cell)) in corners.into_iter().enumerate() {
                // Cells of a network frame are fewer than 2^32.
                self.host_indices[index * CORNERS + corner] = cell as u32;
                row[index % GROUP * CORNERS + corner] = bf16::from_f32(weight).to_bits();
            }
        }
        device.write_u32(&self.indices, &self.host_indices)?;
        device.write(&self.mix, &self.host_mix)
    }

    /// Descriptors, `[1, 1, BATCH, 256]` row-major, from the map of cells, `[1, 1, cells, 256]` row-major.
    pub(super) fn run(&self, device: &D, map: &D::Tensor) -> Result<D::Tensor> {
        let rows = device.embedding(&self.indices, map)?;
        let rows = device.reshape(&rows, [1, BATCH / GROUP, CORNERS * GROUP, DESCRIPTOR_DIM])?;
        let mix = device.to_layout(&self.mix, Layout::Tile)?;
        let mixed = device.matmul(&mix, &rows, Compute::HIFI4, DType::Bf16)?;
        let normed = device.rms_norm(&mixed, &self.gamma, 0.0, Compute::HIFI4)?;
        let normed = device.to_layout(&normed, Layout::RowMajor)?;
        device.reshape(&normed, [1, 1, BATCH, DESCRIPTOR_DIM])
    }
}
