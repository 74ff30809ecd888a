//! What can go wrong between a plane of pixels and its keypoints.

use std::path::PathBuf;

use crate::Size;

/// Every error of this crate. The text says what was wrong, with which value, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A plane's strides and size need more bytes than were given.
    #[error(
        "image of {size} (height x width) with {pixel_stride} bytes from pixel to pixel and {row_stride} from row to row \
         needs {needed} bytes, but {given} were given"
    )]
    PlaneTooShort {
        /// Declared size of the image.
        size: Size,
        /// Bytes from one pixel to the next.
        pixel_stride: usize,
        /// Bytes from one row to the next.
        row_stride: usize,
        /// Bytes that the declared layout reaches to.
        needed: usize,
        /// Bytes that were given.
        given: usize,
    },

    /// A plane whose declared layout makes no sense, whatever the data.
    #[error("image of {size} (height x width): {reason}")]
    PlaneLayout {
        /// Declared size of the image.
        size: Size,
        /// What is wrong with it.
        reason: String,
    },

    /// A detection parameter outside its range.
    #[error("{name} is {value}, but must be {expected}")]
    Param {
        /// The parameter's name in every interface of the product.
        name: &'static str,
        /// The value given.
        value: String,
        /// The range that is accepted.
        expected: &'static str,
    },

    /// A network size the backend cannot run.
    #[error(
        "network size {0} (height x width) is not supported: height and width must be multiples of 8, from 16 to 4096"
    )]
    NetworkSize(Size),

    /// A weights file that could not be read.
    #[error("cannot read weights file {path}: {reason}")]
    WeightsRead {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: std::io::Error,
    },

    /// A weights file that was read but does not hold SuperPoint's tensors.
    #[error("weights {origin}: {reason}")]
    Weights {
        /// The file, or the name of the bundled weights.
        origin: String,
        /// Which tensor is wrong, how, and what was expected.
        reason: String,
    },

    /// The backend asked for is not to be had on this machine.
    #[error("backend {backend} is not available: {reason}")]
    BackendUnavailable {
        /// The backend's name in the configuration.
        backend: &'static str,
        /// What is missing, and what to install or to set.
        reason: String,
    },

    /// The card failed, or an operation on it.
    #[error("the p150 failed: {reason}")]
    Device {
        /// Which operation, why, and what to do.
        reason: String,
    },

    /// The network overflowed: its weights are finite, but not those of a working network.
    #[error("the network gave values that are not finite; the weights {weights} do not work on this image")]
    NotFinite {
        /// Name of the weights.
        weights: String,
    },

    /// The operating system refused something, such as a thread.
    #[error("{action} failed: {reason}")]
    System {
        /// What was being done.
        action: &'static str,
        /// Why it failed. (No `source`: the text above says it.)
        reason: std::io::Error,
    },
}
