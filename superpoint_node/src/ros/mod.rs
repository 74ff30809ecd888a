//! The ROS 2 node: images in, keypoints out.
//!
//! | module | what it is |
//! |---|---|
//! | `node` | its life: start, spin, end |
//! | `frame` | one frame's way through it |
//! | [`image`], [`encoding`] | from a serialized image message to a plane, without a copy |
//! | `keypoints_message` | from detections to the message |
//! | `parameters` | names, ranges, what may change at run time |
//! | `tally`, `shutdown` | what became of the frames; signals |

pub mod encoding;
mod frame;
pub mod image;
mod keypoints_message;
mod node;
mod parameters;
mod shutdown;
mod tally;

pub use node::main;
