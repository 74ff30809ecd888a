//! ROS messages as bytes: images in, keypoints out. Needs no ROS.
//!
//! | module | what it is |
//! |---|---|
//! | [`cdr`] | values in a serialized message |
//! | [`image`] | from a serialized image to its fields, without a copy |
//! | [`encoding`], `bayer` | from an image's fields to a plane; to a picture to draw on |
//! | [`keypoints`] | from detections to a serialized `superpoint_p150/Keypoints` |

mod bayer;
pub mod cdr;
pub mod encoding;
pub mod image;
pub mod keypoints;
