//! The ROS 2 node: images in, keypoints out.
//!
//! What reads and checks messages needs no ROS installation to be built and tested; the node itself is behind the
//! feature `ros`.

pub mod encoding;
pub mod image;

#[cfg(feature = "ros")]
mod frame;
#[cfg(feature = "ros")]
mod keypoints_message;
#[cfg(feature = "ros")]
mod node;
#[cfg(feature = "ros")]
mod parameters;
#[cfg(feature = "ros")]
mod shutdown;
#[cfg(feature = "ros")]
mod tally;

#[cfg(feature = "ros")]
pub use node::main;
