//! The ROS 2 node: images in, keypoints out.
//!
//! | module | what it is |
//! |---|---|
//! | `node` | its life: start, spin, end |
//! | `camera` | one camera: its images, its place in the engine, its output topics |
//! | `frame` | one frame's way through the node |
//! | [`image`], [`cdr`] | from a serialized message to its fields, without a copy |
//! | [`encoding`], `bayer` | from an image's fields to a plane; to a picture to draw on |
//! | `mask` | where keypoints are wanted |
//! | `keypoints_message` | from detections to the message |
//! | `parameters`, `parameter_services` | names, ranges, what may change at run time; how ROS gets at them |
//! | `tally`, `latency`, `diagnostics` | what became of the frames, how long it took, who is told |
//! | `model_info` | which backend, which weights |
//! | `names`, `shutdown` | remapped topics; signals |

mod bayer;
mod camera;
pub mod cdr;
mod diagnostics;
pub mod encoding;
mod frame;
pub mod image;
mod keypoints_message;
mod latency;
mod mask;
mod model_info;
mod names;
mod node;
mod parameter_services;
mod parameters;
mod shutdown;
mod tally;

pub use node::main;
