//! The ROS 2 node: images in, keypoints out. What is in the messages, [`crate::message`] tells.
//!
//! | module | what it is |
//! |---|---|
//! | `node` | its life: start, spin, end |
//! | `camera` | one camera: its images, its place in the engine, its output topics |
//! | `frame` | one frame's way through the node |
//! | `mask` | where keypoints are wanted |
//! | `parameters`, `parameter_services` | names, ranges, what may change at run time; how ROS gets at them |
//! | `tally`, `latency`, `diagnostics` | what became of the frames, how long it took, who is told |
//! | `model_info` | which backend, which weights |
//! | `arguments`, `names`, `shutdown` | the command line; remapped topics; signals |

mod arguments;
mod camera;
mod diagnostics;
mod frame;
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
