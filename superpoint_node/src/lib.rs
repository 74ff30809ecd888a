//! SuperPoint keypoints as a ROS 2 node and as a command line, around [`tt_backend`].
//!
//! | module | what it is |
//! |---|---|
//! | [`engine`] | the thread that owns the detector, and where work waits for it |
//! | [`decode`], [`jpeg`], [`channel`] | from picture files to planes |
//! | [`response`], [`npz`], [`overlay`] | from detections to JSON, NumPy's format and pictures |
//! | [`matching`] | the same points in two pictures |
//! | `pixel_centres` | where a keypoint lies in the image, pixel centres at integers |
//! | [`settings`] | the parameter file that node and command line share |
//! | [`http`] | the server |
//! | `log` | what both programs log |
//! | [`cli`] | the program `superpoint` |
//! | [`message`] | ROS messages as bytes |
//! | [`replay`] | recordings through the detector |
//! | [`synth`] | recordings with known truth |
//! | `ros` | the program `superpoint_node`; feature `ros` |

// A program must not end because nobody reads what it says: `log::say`.
#![warn(clippy::print_stderr)]

pub mod channel;
pub mod cli;
pub mod decode;
pub mod engine;
mod file_identity;
pub mod http;
pub mod jpeg;
mod log;
pub mod matching;
pub mod message;
pub mod npz;
pub mod overlay;
mod pixel_centres;
pub mod replay;
pub mod response;
#[cfg(feature = "ros")]
pub mod ros;
pub mod settings;
pub mod synth;
