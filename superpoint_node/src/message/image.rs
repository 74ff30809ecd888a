//! `sensor_msgs/Image` and `sensor_msgs/CompressedImage`, read where they lie in the serialized message.
//!
//! An image is most of the bytes that a frame moves. The typed way copies them twice more; here the message stays
//! as it came from the middleware, and the views borrow from it.

use super::cdr::{Malformed, Reader, Writer};

/// Time of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Seconds.
    pub sec: i32,
    /// Nanoseconds within the second.
    pub nanosec: u32,
}

/// The fields of a `std_msgs/Header`, borrowed from the serialized message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderView<'a> {
    /// When the image was taken.
    pub stamp: Stamp,
    /// The camera's coordinate frame.
    pub frame_id: &'a str,
}

impl<'a> HeaderView<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let stamp =
            Stamp { sec: reader.u32("header.stamp.sec")?.cast_signed(), nanosec: reader.u32("header.stamp.nanosec")? };
        Ok(Self { stamp, frame_id: reader.string("header.frame_id")? })
    }
}

/// The fields of a `sensor_msgs/Image`, borrowed from its serialized bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageView<'a> {
    /// Time and frame.
    pub header: HeaderView<'a>,
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
    /// How a pixel is stored, as `sensor_msgs/image_encodings.hpp` names it.
    pub encoding: &'a str,
    /// Byte order of samples longer than a byte; says nothing about 8-bit ones.
    pub is_bigendian: bool,
    /// Bytes from one row to the next.
    pub step: u32,
    /// The pixels.
    pub data: &'a [u8],
}

impl<'a> ImageView<'a> {
    /// Reads a serialized message (CDR, with its 4-byte encapsulation header).
    ///
    /// # Errors
    ///
    /// If the bytes end too early or a text is not one; never panics, whatever the bytes.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("sensor_msgs/Image", message)?;
        Ok(Self {
            header: HeaderView::read(&mut reader)?,
            height: reader.u32("height")?,
            width: reader.u32("width")?,
            encoding: reader.string("encoding")?,
            is_bigendian: reader.u8("is_bigendian")? != 0,
            step: reader.u32("step")?,
            data: reader.bytes("data")?,
        })
    }

    /// The message, serialized (CDR, with its 4-byte encapsulation header).
    pub fn serialize(&self) -> Vec<u8> {
        let mut message =
            Writer::with_capacity(64 + self.header.frame_id.len() + self.encoding.len() + self.data.len());
        message.i32(self.header.stamp.sec);
        message.u32(self.header.stamp.nanosec);
        message.string(self.header.frame_id);
        message.u32(self.height);
        message.u32(self.width);
        message.string(self.encoding);
        message.u8(self.is_bigendian.into());
        message.u32(self.step);
        message.bytes(self.data);
        message.finish()
    }
}

/// The fields of a `sensor_msgs/CompressedImage`, borrowed from its serialized bytes. Its `format` is passed over:
/// drivers fill it in wrongly, and the data says itself what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedView<'a> {
    /// Time and frame.
    pub header: HeaderView<'a>,
    /// The picture file.
    pub data: &'a [u8],
}

impl<'a> CompressedView<'a> {
    /// Reads a serialized message (CDR, with its 4-byte encapsulation header).
    ///
    /// # Errors
    ///
    /// As [`ImageView::parse`].
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("sensor_msgs/CompressedImage", message)?;
        let header = HeaderView::read(&mut reader)?;
        reader.bytes("format")?;
        Ok(Self { header, data: reader.bytes("data")? })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Writes what `Reader` reads, independently of it.
    struct Writer {
        bytes: Vec<u8>,
        big_endian: bool,
    }

    impl Writer {
        fn new(big_endian: bool) -> Self {
            Self { bytes: vec![0, u8::from(!big_endian), 0, 0], big_endian }
        }

        fn u32(&mut self, value: u32) {
            while !self.bytes.len().is_multiple_of(4) {
                self.bytes.push(0xaa);
            }
            self.bytes.extend(if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() });
        }

        fn bytes(&mut self, value: &[u8]) {
            self.u32(u32::try_from(value.len()).unwrap());
            self.bytes.extend(value);
        }

        fn image(big_endian: bool, frame_id: &[u8], encoding: &[u8], data: &[u8]) -> Vec<u8> {
            let mut writer = Self::new(big_endian);
            writer.u32(u32::MAX - 1); // sec = -2
            writer.u32(999_999_999);
            writer.bytes(frame_id);
            writer.u32(2);
            writer.u32(3);
            writer.bytes(encoding);
            writer.bytes.push(1);
            writer.u32(5);
            writer.bytes(data);
            writer.bytes
        }
    }

    #[test]
    fn reads_both_byte_orders_at_every_alignment() {
        for big_endian in [false, true] {
            for frame_id in ["", "c", "ca", "cam", "cam0", "Kamera_für_ü"] {
                let terminated = [frame_id.as_bytes(), &[0]].concat();
                let message = Writer::image(big_endian, &terminated, b"mono8\0", &[9; 10]);
                let expected = ImageView {
                    header: HeaderView { stamp: Stamp { sec: -2, nanosec: 999_999_999 }, frame_id },
                    height: 2,
                    width: 3,
                    encoding: "mono8",
                    is_bigendian: true,
                    step: 5,
                    data: &[9; 10],
                };
                assert_eq!(ImageView::parse(&message), Ok(expected));
            }
        }
    }

    #[test]
    fn reads_the_bytes_that_rclpy_writes() {
        // rclpy.serialization.serialize_message(Image(header=Header(stamp=Time(sec=7, nanosec=8), frame_id='cam'),
        // height=1, width=2, encoding='mono8', step=2, data=[1, 2])) on Jazzy with Fast DDS.
        let message = [
            0, 1, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0, 0, b'c', b'a', b'm', 0, 1, 0, 0, 0, 2, 0, 0, 0, 6, 0, 0, 0,
            b'm', b'o', b'n', b'o', b'8', 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 2,
        ];
        let image = ImageView::parse(&message).unwrap();
        assert_eq!(image.header.stamp, Stamp { sec: 7, nanosec: 8 });
        assert_eq!((image.header.frame_id, image.encoding), ("cam", "mono8"));
        assert_eq!((image.height, image.width, image.step, image.data), (1, 2, 2, &[1, 2][..]));
        assert_eq!(image.serialize(), message);
    }

    #[test]
    fn reads_a_compressed_image_whatever_its_format_says() {
        // rclpy.serialization.serialize_message(CompressedImage(header=..., format='jpeg', data=[1, 2, 3])).
        let message = [
            0, 1, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0, 0, b'c', b'a', b'm', 0, 5, 0, 0, 0, b'j', b'p', b'e', b'g', 0,
            0, 0, 0, 3, 0, 0, 0, 1, 2, 3,
        ];
        let image = CompressedView::parse(&message).unwrap();
        assert_eq!(image.header, HeaderView { stamp: Stamp { sec: 7, nanosec: 8 }, frame_id: "cam" });
        assert_eq!(image.data, [1, 2, 3]);
        for length in 0..message.len() {
            assert!(CompressedView::parse(&message[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn an_empty_text_may_lack_its_terminator() {
        let message = Writer::image(false, b"", b"", &[]);
        let image = ImageView::parse(&message).unwrap();
        assert_eq!((image.header.frame_id, image.encoding, image.data), ("", "", &[][..]));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let message = Writer::image(false, b"camera\0", b"rgb8\0", &[1; 30]);
        assert!(ImageView::parse(&message).is_ok());
        for length in 0..message.len() {
            assert!(ImageView::parse(&message[..length]).is_err(), "{length} of {} bytes", message.len());
        }
    }

    #[test]
    fn hostile_lengths_are_errors() {
        let message = Writer::image(false, b"camera\0", b"rgb8\0", &[1; 30]);
        for at in (4..message.len() - 4).step_by(4) {
            for hostile in [u32::MAX, u32::MAX - 3, 0x8000_0000, 0x7fff_ffff] {
                let mut changed = message.clone();
                changed[at..at + 4].copy_from_slice(&hostile.to_le_bytes());
                let _ = ImageView::parse(&changed); // any answer, but an answer
            }
        }
        let mut changed = message.clone();
        changed[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = ImageView::parse(&changed).unwrap_err().to_string();
        assert!(error.contains("frame_id") && error.contains("4294967295"), "{error}");
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        for length in 0..2000 {
            let mut message: Vec<u8> = (0..length % 97).map(|_| random()).collect();
            if message.len() >= 16 {
                message[..4].copy_from_slice(&[0, 1, 0, 0]);
                message[12..16].copy_from_slice(&[random() & 15, 0, 0, 0]);
            }
            let _ = ImageView::parse(&message);
        }
    }

    #[test]
    fn texts_that_are_none_are_refused() {
        for text in [&b"a\0b\0"[..], b"\xff\xfe\0"] {
            assert!(ImageView::parse(&Writer::image(false, text, b"mono8\0", &[])).is_err(), "{text:?}");
            assert!(ImageView::parse(&Writer::image(false, b"cam\0", text, &[])).is_err(), "{text:?}");
        }
    }

    #[test]
    fn other_representations_are_named() {
        let error = ImageView::parse(&[0, 3, 0, 0]).unwrap_err().to_string();
        assert!(error.contains("0x0003"), "{error}");
    }
}
