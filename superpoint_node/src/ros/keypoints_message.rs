//! Detections as a `superpoint_p150/Keypoints` message.

use std::str::FromStr;

use half::f16;
use half::slice::HalfFloatSliceExt as _;
use r2r::builtin_interfaces::msg::Time;
use r2r::std_msgs::msg::Header;
use r2r::superpoint_p150::msg::Keypoints;
use tt_backend::{Detections, Size, keypoints};

use super::image::HeaderView;

/// Number format of the descriptors in a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DescriptorType {
    /// Four bytes a value.
    #[default]
    Float32,
    /// Two bytes a value.
    Float16,
}

impl DescriptorType {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
        }
    }

    const fn constant(self) -> u8 {
        match self {
            Self::Float32 => Keypoints::FLOAT32 as u8,
            Self::Float16 => Keypoints::FLOAT16 as u8,
        }
    }
}

impl FromStr for DescriptorType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "float32" => Ok(Self::Float32),
            "float16" => Ok(Self::Float16),
            other => Err(format!("descriptor_type is `{other}`, but must be `float32` or `float16`")),
        }
    }
}

/// The image's header, for whatever is derived from the image.
pub(super) fn header_of(image: &HeaderView<'_>) -> Header {
    Header { stamp: Time { sec: image.stamp.sec, nanosec: image.stamp.nanosec }, frame_id: image.frame_id.to_owned() }
}

/// The message for one image's detections.
pub(super) fn keypoints_message(header: &HeaderView<'_>, found: &Detections, format: DescriptorType) -> Keypoints {
    let to_image = PixelCentres::between(found.network, found.original);
    let (descriptor_dim, descriptors) = match found.descriptors() {
        Some(rows) => (DESCRIPTOR_DIM, bytes_of(rows.as_slice().unwrap_or_default(), format)),
        None => (0, Vec::new()),
    };
    Keypoints {
        header: header_of(header),
        // Planes have sides of at most `Plane::MAX_SIDE`.
        image_width: found.original.width as u32,
        image_height: found.original.height as u32,
        points: found.points.iter().flat_map(|&point| to_image.map(point)).collect(),
        scores: found.scores.clone(),
        descriptor_type: format.constant(),
        descriptor_dim,
        descriptors,
    }
}

/// Values per descriptor, as the message counts them.
const DESCRIPTOR_DIM: u32 = keypoints::DESCRIPTOR_DIM as u32;

/// From the network's pixel grid to the image's, both with pixel centres at integers.
///
/// Both grids cover the same area, so it is the pixels' corners that scale: the centre of the first network pixel,
/// half a pixel in, is half a network pixel in also in the image.
struct PixelCentres {
    scale_x: f32,
    scale_y: f32,
}

impl PixelCentres {
    fn between(network: Size, image: Size) -> Self {
        Self {
            scale_x: image.width as f32 / network.width as f32,
            scale_y: image.height as f32 / network.height as f32,
        }
    }

    fn map(&self, [x, y]: [u16; 2]) -> [f32; 2] {
        [(f32::from(x) + 0.5) * self.scale_x - 0.5, (f32::from(y) + 0.5) * self.scale_y - 0.5]
    }
}

fn bytes_of(values: &[f32], format: DescriptorType) -> Vec<u8> {
    match format {
        DescriptorType::Float32 => little_endian(values, f32::to_le_bytes),
        DescriptorType::Float16 => {
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(values);
            little_endian(&halves, f16::to_le_bytes)
        }
    }
}

/// Written so that the compiler sees a plain copy: a megabyte goes through here with every message.
fn little_endian<T: Copy, const N: usize>(values: &[T], to_bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; N * values.len()];
    for (place, &value) in bytes.chunks_exact_mut(N).zip(values) {
        place.copy_from_slice(&to_bytes(value));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grids_share_their_corners_not_their_first_centres() {
        // 640 columns over 1600: a network pixel spans 2.5 image pixels, its centre is 1.25 from their left edge.
        let map = PixelCentres::between(Size::new(480, 640), Size::new(900, 1600));
        assert_eq!(map.map([0, 0]), [0.75, 0.4375]);
        assert_eq!(map.map([639, 479]), [1598.25, 898.5625]);
        let same = PixelCentres::between(Size::new(480, 640), Size::new(480, 640));
        assert_eq!(same.map([17, 400]), [17.0, 400.0]);
    }

    #[test]
    fn descriptors_are_little_endian() {
        assert_eq!(bytes_of(&[1.0, -2.0], DescriptorType::Float32), [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
        assert_eq!(bytes_of(&[1.0, -2.0], DescriptorType::Float16), [0, 0x3c, 0, 0xc0]);
    }
}
