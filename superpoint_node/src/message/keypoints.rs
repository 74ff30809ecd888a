//! Detections as a serialized `superpoint_p150/Keypoints` message.

use std::str::FromStr;

use half::f16;
use half::slice::HalfFloatSliceExt as _;
use tt_backend::{Detections, Size, keypoints};

use super::cdr::{Malformed, Reader, Writer};
use super::image::HeaderView;
use crate::pixel_centres::PixelCentres;

/// Number format of the descriptors in a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DescriptorType {
    /// Four bytes a value.
    #[default]
    Float32,
    /// Two bytes a value.
    Float16,
}

impl DescriptorType {
    /// As the parameter `descriptor_type` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
        }
    }

    /// The message's constant `FLOAT32` or `FLOAT16`.
    pub const fn constant(self) -> u8 {
        match self {
            Self::Float32 => 0,
            Self::Float16 => 1,
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

/// Type of the message, as ROS names it.
pub const MESSAGE_TYPE: &str = "superpoint_p150/msg/Keypoints";

/// The message for one image's detections, serialized (CDR, with its 4-byte encapsulation header).
///
/// The descriptors' only copy on their way to the middleware, which takes them from here.
pub fn serialize(header: &HeaderView<'_>, found: &Detections, format: DescriptorType) -> Vec<u8> {
    let to_image = PixelCentres::of(found);
    let descriptors = found.descriptors();
    let rows = descriptors.as_ref().and_then(|rows| rows.as_slice()).unwrap_or_default();

    let mut message = Writer::with_capacity(128 + header.frame_id.len() + 12 * found.len() + 4 * rows.len());
    message.i32(header.stamp.sec);
    message.u32(header.stamp.nanosec);
    message.string(header.frame_id);
    // Planes have sides of at most `Plane::MAX_SIDE`.
    message.u32(found.original.width as u32);
    message.u32(found.original.height as u32);
    let points: Vec<[f32; 2]> = found.points.iter().map(|&point| to_image.map(point)).collect();
    message.sequence(points.as_flattened());
    message.sequence(&found.scores);
    message.u8(format.constant());
    message.u32(if descriptors.is_some() { DESCRIPTOR_DIM } else { 0 });
    match format {
        DescriptorType::Float32 => message.bytes(rows),
        DescriptorType::Float16 => {
            let mut halves = vec![f16::ZERO; rows.len()];
            halves.convert_from_f32_slice(rows);
            message.bytes(&halves);
        }
    }
    message.finish()
}

/// The fields of a message, read back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Keypoints {
    /// Size of the image.
    pub image: Size,
    /// `[x, y]` in pixels of the image, pixel centres at integers.
    pub points: Vec<[f32; 2]>,
    /// Scores in the points' order.
    pub scores: Vec<f32>,
    /// A row for each point, or nothing.
    pub descriptors: Vec<f32>,
}

impl Keypoints {
    /// Reads a serialized message (CDR, with its 4-byte encapsulation header).
    ///
    /// # Errors
    ///
    /// If the bytes end too early; never panics, whatever the bytes.
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("superpoint_p150/Keypoints", message)?;
        HeaderView::read(&mut reader)?;
        let width = reader.u32("image_width")? as usize;
        let height = reader.u32("image_height")? as usize;
        let points = reader.floats("points")?;
        let scores = reader.floats("scores")?;
        let halves = reader.u8("descriptor_type")? == DescriptorType::Float16.constant();
        reader.u32("descriptor_dim")?;
        let bytes = reader.bytes("descriptors")?;
        let descriptors = if halves {
            bytes.as_chunks().0.iter().map(|&value| f16::from_le_bytes(value).to_f32()).collect()
        } else {
            bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect()
        };
        Ok(Self { image: Size::new(height, width), points: points.as_chunks().0.to_vec(), scores, descriptors })
    }
}

/// Values per descriptor, as the message counts them.
const DESCRIPTOR_DIM: u32 = keypoints::DESCRIPTOR_DIM as u32;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::image::Stamp;
    use super::*;
    use tt_backend::keypoints::Extractor;
    use tt_backend::maps::Maps;
    use tt_backend::team::Team;
    use tt_backend::{Params, Size};

    /// Two keypoints in an image as large as the network frame, with the descriptor (-1, 0, 0, ...).
    fn found(with_descriptors: bool) -> Detections {
        let size = Size::new(64, 64);
        let mut maps = Maps::new(size);
        (maps.scores[40 * 64 + 17], maps.scores[12 * 64 + 9]) = (0.5, 0.25);
        maps.descriptors = vec![0.0; 64 * 256];
        maps.descriptors.chunks_exact_mut(256).for_each(|cell| cell[0] = -1.0);
        let mut found = Detections::default();
        (found.network, found.original) = (size, size);
        let params = Params { return_descriptors: with_descriptors, ..Params::default() };
        Extractor::default().extract(&maps, &params, &mut Team::new(1).unwrap(), &mut found);
        found
    }

    fn header() -> HeaderView<'static> {
        HeaderView { stamp: Stamp { sec: -3, nanosec: 9 }, frame_id: "camera" }
    }

    /// The values up to the descriptors, read back.
    fn read(message: &[u8]) -> Result<(Vec<u32>, &[u8]), Malformed> {
        let mut reader = Reader::new("Keypoints", message)?;
        let mut values = vec![reader.u32("sec")?, reader.u32("nanosec")?];
        assert_eq!(reader.string("frame_id")?, "camera");
        values.extend([reader.u32("width")?, reader.u32("height")?]);
        for name in ["points", "scores"] {
            let count = reader.u32(name)?;
            values.push(count);
            for _ in 0..count {
                values.push(reader.u32(name)?);
            }
        }
        values.extend([u32::from(reader.u8("type")?), reader.u32("dim")?]);
        Ok((values, reader.bytes("descriptors")?))
    }

    #[test]
    fn every_field_is_where_it_belongs() {
        let bits = f32::to_bits;
        let before = [
            [(-3i32).cast_unsigned(), 9, 64, 64].as_slice(),
            &[4, bits(17.0), bits(40.0), bits(9.0), bits(12.0)],
            &[2, bits(0.5), bits(0.25)],
        ]
        .concat();
        let cases = [
            (DescriptorType::Float32, true, [0, 256], 2 * 256 * 4),
            (DescriptorType::Float16, true, [1, 256], 2 * 256 * 2),
            (DescriptorType::Float32, false, [0, 0], 0),
        ];
        for (format, with_descriptors, type_and_dim, bytes) in cases {
            let message = serialize(&header(), &found(with_descriptors), format);
            let (values, descriptors) = read(&message).unwrap();
            assert_eq!(values, [&before[..], &type_and_dim].concat(), "{format:?}");
            assert_eq!(descriptors.len(), bytes, "{format:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for format in [DescriptorType::Float32, DescriptorType::Float16] {
            let message = serialize(&header(), &found(true), format);
            let read = Keypoints::parse(&message).unwrap();
            assert_eq!((read.image, read.points), (Size::new(64, 64), vec![[17.0, 40.0], [9.0, 12.0]]));
            assert_eq!((read.scores, read.descriptors.len()), (vec![0.5, 0.25], 512));
            assert!(
                read.descriptors.chunks(256).all(|row| row[0] == -1.0 && row[1..].iter().all(|&value| value == 0.0))
            );
            for length in 0..message.len() {
                assert!(Keypoints::parse(&message[..length]).is_err(), "{length} bytes");
            }
        }
        assert!(
            Keypoints::parse(&serialize(&header(), &found(false), DescriptorType::Float32))
                .unwrap()
                .descriptors
                .is_empty()
        );
    }

    #[test]
    fn descriptors_are_little_endian() {
        for (format, bytes, minus_one) in
            [(DescriptorType::Float32, 4, &[0, 0, 0x80, 0xbf][..]), (DescriptorType::Float16, 2, &[0, 0xbc][..])]
        {
            let message = serialize(&header(), &found(true), format);
            for row in read(&message).unwrap().1.chunks_exact(256 * bytes) {
                let (first, rest) = row.split_at(bytes);
                assert_eq!(first, minus_one);
                assert!(rest.iter().all(|&byte| byte == 0), "{format:?}");
            }
        }
    }
}
