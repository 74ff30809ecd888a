//! The network on the device: encoder, heads, softmax, L2 norm.
//!
//! ```text
//! frame   [1, 1, HW / 32, 32]    row-major, 0 to 255
//!   -> [1, 1, HW, 1]             one pixel a row, as conv2d wants it
//!   -> four blocks of two 3x3 convolutions, a 2x2 max-pool between blocks
//!   -> score head                [1, 1, cells, 65], softmax, 64 channels, folded to pixels
//!   -> descriptor head           [1, 1, cells, 256], L2 norm
//! ```
//!
//! Numbers: weights and activations in bf16, products in two passes (HiFi2), sums in fp32. Two passes take 7 significant bits
//! of the map and cut the eighth off, so the first convolution, whose pixels have 8, takes four (HiFi4). The port that is
//! published for this card measured that fewer passes or weights of 8 bits, even in the first block alone, cost the score map its
//! correlation with fp32 (0.91 or less, against 0.997). Logits and scores are in fp32: in bf16 a logit of 8 is off by up to
//! 1/64, which is one or two hundredths of its score, and exchanges many of the keypoints around the last that is kept.

use tt_metal_sys::{Compute, Conv2dOptions, DType, Layout, MaxPool2dOptions, Memory, Spec};

use super::device::{Device, Result};
use crate::Size;
use crate::keypoints::DESCRIPTOR_DIM;
use crate::weights::{Conv, Weights};

/// Pixels of a page of the frame as it is uploaded: pages of 64 bytes, where pages of one pixel would take three times
/// as long.
pub(super) const PAGE: usize = 32;

/// Pixels of a cell in each direction.
const CELL: usize = 8;

/// Horizontal slices of each block's maps that go through L1 one by one; 0 keeps the whole map in L1. With fewer, a core's
/// share of the map does not fit into its L1.
const SLICES: [usize; 4] = [4, 2, 0, 0];

/// The convolutions, with their weights on the device.
#[derive(Debug)]
pub(super) struct Network<D: Device> {
    frame: Size,
    encoder: Vec<D::Conv>,
    score: [D::Conv; 2],
    descriptor: [D::Conv; 2],
    gamma: D::Tensor,
}

/// What the network leaves on the device.
#[derive(Clone, Debug)]
pub(super) struct Outputs<T> {
    /// Score of each pixel in fp32, `[1, 1, HW / 32, 32]`, row-major.
    pub(super) scores: T,
    /// Descriptor of each cell in bf16, of unit L2 norm, `[1, 1, cells, 256]`, row-major.
    pub(super) descriptors: T,
}

impl<D: Device> Network<D> {
    /// Brings the weights to the device. Both sides of the frame are multiples of 32.
    pub(super) fn new(device: &D, weights: &Weights, frame: Size) -> Result<Self> {
        let convs = weights.encoder.iter().enumerate().map(|(index, conv)| {
            let block = index / 2;
            // Pixels come as 0 to 255, which bf16 holds exactly; hundredths of its precision would be lost by dividing.
            let scale = if index == 0 { 1.0 / 255.0 } else { 1.0 };
            let first = index % 2 == 0;
            // A block's first input is the frame or a pool's output, which are row-major.
            let input_layout = if first { Layout::RowMajor } else { Layout::Tile };
            // A pool leaves its output where its own block's maps are.
            let input_block = if first { block.saturating_sub(1) } else { block };
            let input_memory = block_memory(input_block);
            let mut options = options(conv, map_size(frame, block), SLICES[block], input_layout, input_memory);
            if index == 0 {
                options.compute = Compute::HIFI4;
            }
            prepare(device, conv, scale, &options)
        });
        let cells = frame.cells();
        let head = |[first, last]: &[Conv; 2], output_dtype: DType| -> Result<[D::Conv; 2]> {
            let first_options = options(first, cells, 0, Layout::Tile, Memory::L1Sharded);
            let last_options = Conv2dOptions {
                relu: false,
                output_dtype,
                output_memory: Memory::Dram,
                ..options(last, cells, 0, Layout::Tile, Memory::L1Sharded)
            };
            Ok([prepare(device, first, 1.0, &first_options)?, prepare(device, last, 1.0, &last_options)?])
        };
        Ok(Self {
            frame,
            encoder: convs.collect::<Result<_>>()?,
            score: head(&weights.score, DType::F32)?,
            descriptor: head(&weights.descriptor, DType::Bf16)?,
            gamma: unit_norm_gamma(device)?,
        })
    }

    /// The network on `frame`, `[1, 1, HW / 32, 32]`, row-major.
    pub(super) fn run(&self, device: &D, frame: &D::Tensor) -> Result<Outputs<D::Tensor>> {
        let mut map = device.reshape(frame, [1, 1, self.frame.area(), 1])?;
        for (index, conv) in self.encoder.iter().enumerate() {
            map = device.conv2d(conv, &map)?;
            if matches!(index, 1 | 3 | 5) {
                let block = index / 2;
                let Size { height, width } = map_size(self.frame, block);
                let channels = device.spec(&map).shape[3];
                map = device.max_pool2d(
                    &map,
                    &MaxPool2dOptions {
                        height,
                        width,
                        channels,
                        kernel: [2, 2],
                        stride: [2, 2],
                        padding: [0, 0],
                        dram_slices: SLICES[block],
                        output_memory: block_memory(block),
                    },
                )?;
            }
        }
        let head = |[first, last]: &[D::Conv; 2]| device.conv2d(last, &device.conv2d(first, &map)?);
        let probabilities = device.softmax(&head(&self.score)?, Compute::HIFI4)?;
        let scores = fold(device, &probabilities, self.frame)?;
        let normed = device.rms_norm(&head(&self.descriptor)?, &self.gamma, 0.0, Compute::HIFI4)?;
        Ok(Outputs { scores, descriptors: device.to_layout(&normed, Layout::RowMajor)? })
    }
}

/// The tile row of factors that makes an RMS norm of descriptors an L2 norm: `x / sqrt(mean(x²)) / sqrt(256)` is
/// `x / sqrt(sum(x²))`, and 1/16 is exact in bf16.
pub(super) fn unit_norm_gamma<D: Device>(device: &D) -> Result<D::Tensor> {
    let spec =
        Spec { shape: [1, 1, 1, DESCRIPTOR_DIM], dtype: DType::Bf16, layout: Layout::Tile, memory: Memory::Dram };
    device.constant(spec, &[1.0 / (DESCRIPTOR_DIM as f32).sqrt(); DESCRIPTOR_DIM])
}

/// From probabilities of 65 channels a cell, `[1, 1, cells, 65]` in tiles, to the scores of pixels, `[1, 1, HW / 32, 32]`
/// row-major: the dustbin is dropped, and channel `k` of cell `(cy, cx)` is pixel `(8 cy + k / 8, 8 cx + k % 8)`.
pub(super) fn fold<D: Device>(device: &D, probabilities: &D::Tensor, frame: Size) -> Result<D::Tensor> {
    let Size { height: rows, width: columns } = frame.cells();
    let cells = device.slice(probabilities, [0; 4], [1, 1, rows * columns, CELL * CELL])?;
    let cells = device.to_layout(&cells, Layout::RowMajor)?;
    let cells = device.reshape(&cells, [rows, columns, CELL, CELL])?;
    let pixels = device.permute(&cells, [0, 2, 1, 3])?;
    device.reshape(&pixels, [1, 1, frame.area() / PAGE, PAGE])
}

/// Size of the maps of a block.
fn map_size(frame: Size, block: usize) -> Size {
    Size::new(frame.height >> block, frame.width >> block)
}

/// Where the maps of a block are.
fn block_memory(block: usize) -> Memory {
    if SLICES[block] > 0 { Memory::Dram } else { Memory::L1Sharded }
}

/// A convolution that keeps the map's size, with ReLU.
fn options(conv: &Conv, map: Size, dram_slices: usize, input_layout: Layout, input_memory: Memory) -> Conv2dOptions {
    let (out_channels, in_channels, rows, columns) = conv.weight.dim();
    Conv2dOptions {
        height: map.height,
        width: map.width,
        in_channels,
        out_channels,
        kernel: [rows, columns],
        stride: [1, 1],
        padding: [rows / 2, columns / 2],
        relu: true,
        dram_slices,
        input_layout,
        input_memory,
        output_layout: Layout::Tile,
        output_dtype: DType::Bf16,
        output_memory: if dram_slices > 0 { Memory::Dram } else { Memory::L1Sharded },
        compute: Compute::HIFI2,
    }
}

fn prepare<D: Device>(device: &D, conv: &Conv, scale: f32, options: &Conv2dOptions) -> Result<D::Conv> {
    let weights: Vec<f32> = conv.weight.iter().map(|weight| weight * scale).collect();
    let bias: Vec<f32> = conv.bias.to_vec();
    device.prepare_conv2d(options, &weights, &bias)
}
