//! SuperPoint keypoints and descriptors: planes of pixels in, detections out.
//!
//! [`Detector`] is the entry. The way of the data, one module a step:
//!
//! ```text
//! Plane        one channel of an image, borrowed where it lies             plane
//!   -> frame   resized to 480x640, 0 to 1                                  resize
//!   -> maps    scores of all pixels, descriptors of all 8x8 cells          cpu
//!   -> points  suppression, threshold, border, best k, sampling            nms, keypoints
//!   -> Detections
//! ```
//!
//! This crate is blocking and knows nothing of ROS or HTTP. Same image, parameters and weights give the same
//! bytes, on any number of threads.

pub mod cpu;
mod detections;
mod detector;
mod error;
pub mod keypoints;
pub mod maps;
pub mod nms;
pub mod p150;
mod params;
mod plane;
mod ranking;
pub mod resize;
mod size;
pub mod team;
pub mod weights;

pub use detections::{Detections, ServingPath, Timings};
pub use detector::{Backend, BackendChoice, Detector, Fallback, Model, Options, Watch};
pub use error::Error;
pub use params::{Params, Postprocess};
pub use plane::{Endian, Plane, gather};
pub use size::Size;
