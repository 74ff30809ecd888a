//! What the network gives for one frame.

use crate::Size;

/// The two outputs of the network for one frame. Kept by the caller and filled again for each frame, so that a stream
/// of frames allocates nothing.
#[derive(Clone, Debug)]
pub struct Maps {
    /// Size of the frame in pixels.
    pub size: Size,
    /// Probability of a keypoint at each pixel, `height * width`, row-major: the softmax over the 65 channels of the
    /// score head with the dustbin (channel 64) dropped; channel `k` of cell `(cy, cx)` is pixel
    /// `(8 * cy + k / 8, 8 * cx + k % 8)`.
    pub scores: Vec<f32>,
    /// Descriptors of the cells, `(height / 8) * (width / 8) * 256`, row-major by cell with the channels last, each cell
    /// of unit L2 norm. Not touched when no descriptors are asked for (empty until they are the first time).
    pub descriptors: Vec<f32>,
}

/// Without a branch for each value, so that it runs in vectors.
pub(crate) fn all_finite(values: &[f32]) -> bool {
    !values.iter().fold(false, |found, value| found | !value.is_finite())
}

impl Maps {
    /// Channels of a descriptor.
    pub const DESCRIPTOR_DIM: usize = 256;

    /// Maps for frames of `size`: scores all zero, descriptors empty.
    pub fn new(size: Size) -> Self {
        Self { size, scores: vec![0.0; size.area()], descriptors: Vec::new() }
    }
}
