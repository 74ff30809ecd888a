//! Non-maximum suppression on the device, and the list of what survives.
//!
//! The maximum over a square is a maximum along columns and then one along rows. TT-NN's max-pool wants channels in
//! multiples of 32, so each of the two takes 32 neighbouring pixels as channels and pools along the other direction:
//!
//! ```text
//! scores, rounded to bf16, [1, 1, HW / 32, 32] = H x (W / 32) x 32    pool [2r + 1, 1]: maxima along columns
//!   -> transposed                              = W x (H / 32) x 32    pool [2r + 1, 1]: maxima along rows
//!   -> equal to the transposed rounded score? times the score, in fp32
//!   -> the 64 best of each column of the frame: their rows, and their scores in fp32
//! ```
//!
//! The pool and top-k take bf16 only. Rounding keeps the order of scores but for making some equal. So every pixel that
//! survives by its score in fp32 survives here too, and beside it such as are equal to the maximum near them only in bf16.
//! Pools, comparison and product by 0 or 1 are exact: the survivors are those of the host's suppression of the rounded
//! scores. Which of several equal ones are keypoints, and in which order, is settled on the host by their scores in fp32, by
//! [`list`](super::list).

use tt_metal_sys::{DType, Layout, MaxPool2dOptions, Memory};

use super::device::{Device, Result};
use super::network::PAGE;
use crate::Size;

/// Radii that the device suppresses with. Larger windows are wider than TT-NN's pool takes in one pass, and 0 means no
/// suppression.
pub(super) const RADII: std::ops::RangeInclusive<usize> = 1..=8;

/// Survivors of a column that are listed: the most that TT-NN finds on several cores at once.
pub(super) const PER_COLUMN: usize = 64;

/// The best survivors of each column of the frame.
#[derive(Clone, Debug)]
pub(super) struct Survivors<T> {
    /// Scores in fp32, descending if they are rounded to bf16, `[1, 1, W, 64]`, row-major; 0 where there are fewer.
    pub(super) scores: T,
    /// Their rows in the frame, 16 bits, `[1, 1, W, 64]`, row-major.
    pub(super) rows: T,
}

/// Suppresses `scores`, `[1, 1, HW / 32, 32]` in fp32, row-major, and lists the survivors.
pub(super) fn survivors<D: Device>(
    device: &D,
    scores: &D::Tensor,
    frame: Size,
    radius: usize,
) -> Result<Survivors<D::Tensor>> {
    let map = suppress(device, scores, frame, radius)?;
    let (_, rows) = device.topk(&device.typecast(&map, DType::Bf16)?, PER_COLUMN)?;
    let scores = device.gather(&map, &rows)?;
    Ok(Survivors {
        scores: device.to_layout(&scores, Layout::RowMajor)?,
        rows: device.to_layout(&rows, Layout::RowMajor)?,
    })
}

/// The transposed map, `[1, 1, W, H]` in fp32, in tiles, with 0 for what is suppressed.
pub(super) fn suppress<D: Device>(device: &D, scores: &D::Tensor, frame: Size, radius: usize) -> Result<D::Tensor> {
    let Size { height, width } = frame;
    let along_columns = |map: &D::Tensor, height: usize, width: usize| {
        device.max_pool2d(
            map,
            &MaxPool2dOptions {
                height,
                width: width / PAGE,
                channels: PAGE,
                kernel: [2 * radius + 1, 1],
                stride: [1, 1],
                padding: [radius, 0],
                dram_slices: 0,
                output_memory: Memory::Dram,
            },
        )
    };
    let transpose = |map: &D::Tensor| {
        let map = device.reshape(map, [1, 1, height, width])?;
        device.permute(&map, [0, 1, 3, 2])
    };
    let in_tiles = |map: &D::Tensor| device.to_layout(map, Layout::Tile);

    let rounded = device.typecast(scores, DType::Bf16)?;
    let maxima = transpose(&along_columns(&rounded, height, width)?)?;
    let maxima = device.reshape(&maxima, [1, 1, frame.area() / PAGE, PAGE])?;
    let maxima = along_columns(&maxima, width, height)?;
    let maxima = in_tiles(&device.reshape(&maxima, [1, 1, width, height])?)?;
    let survives = device.eq(&in_tiles(&transpose(&rounded)?)?, &maxima)?;
    // In tiles: TT-NN's transpose of row-major tensors cuts fp32 to 11 bits.
    let scores = in_tiles(&device.reshape(scores, [1, 1, height, width])?)?;
    let scores = device.permute(&scores, [0, 1, 3, 2])?;
    device.multiply(&scores, &device.typecast(&survives, DType::F32)?)
}
