//! `sensor_msgs/Image`, read where it lies in the serialized message.
//!
//! An image is most of the bytes that a frame moves. The typed way copies them twice more; here the message stays
//! as it came from the middleware, and [`ImageView`] borrows from it.

use std::fmt;

/// Time of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Seconds.
    pub sec: i32,
    /// Nanoseconds within the second.
    pub nanosec: u32,
}

/// The fields of a `sensor_msgs/Image`, borrowed from its serialized bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageView<'a> {
    /// When the image was taken.
    pub stamp: Stamp,
    /// The camera's coordinate frame.
    pub frame_id: &'a str,
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

/// Bytes that are not a serialized `sensor_msgs/Image`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    field: &'static str,
    reason: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a sensor_msgs/Image: {}: {}", self.field, self.reason)
    }
}

impl std::error::Error for Malformed {}

impl<'a> ImageView<'a> {
    /// Reads a serialized message (CDR, with its 4-byte encapsulation header).
    ///
    /// # Errors
    ///
    /// If the bytes end too early or a text is not one; never panics, whatever the bytes.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(message)?;
        let stamp =
            Stamp { sec: reader.u32("header.stamp.sec")?.cast_signed(), nanosec: reader.u32("header.stamp.nanosec")? };
        Ok(Self {
            stamp,
            frame_id: reader.string("header.frame_id")?,
            height: reader.u32("height")?,
            width: reader.u32("width")?,
            encoding: reader.string("encoding")?,
            is_bigendian: reader.u8("is_bigendian")? != 0,
            step: reader.u32("step")?,
            data: reader.bytes("data")?,
        })
    }
}

/// Takes CDR values off the front of a message. Values are aligned to their size, counted from behind the header.
struct Reader<'a> {
    body: &'a [u8],
    at: usize,
    big_endian: bool,
}

impl<'a> Reader<'a> {
    fn new(message: &'a [u8]) -> Result<Self, Malformed> {
        let malformed = |reason| Malformed { field: "encapsulation header", reason };
        let Some((header, body)) = message.split_at_checked(4) else {
            return Err(malformed(format!("4 bytes expected, the message has {}", message.len())));
        };
        // Plain CDR of version 1 and 2 agree on everything that an Image holds: no value of 8 bytes.
        let big_endian = match (header[0], header[1]) {
            (0, 0x00 | 0x06) => true,
            (0, 0x01 | 0x07) => false,
            (high, low) => return Err(malformed(format!("representation 0x{high:02x}{low:02x} is not plain CDR"))),
        };
        Ok(Self { body, at: 0, big_endian })
    }

    fn take(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], Malformed> {
        let rest = self.body.get(self.at..).unwrap_or_default();
        let Some(taken) = rest.get(..count) else {
            return Err(Malformed { field, reason: format!("{count} bytes expected, {} are left", rest.len()) });
        };
        self.at += count;
        Ok(taken)
    }

    fn u8(&mut self, field: &'static str) -> Result<u8, Malformed> {
        self.take(field, 1).map(|byte| byte[0])
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, Malformed> {
        self.at = self.at.next_multiple_of(4);
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(field, 4)?);
        Ok(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    /// A sequence of bytes: its length, then as many.
    fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], Malformed> {
        let count = self.u32(field)? as usize;
        self.take(field, count)
    }

    fn string(&mut self, field: &'static str) -> Result<&'a str, Malformed> {
        let bytes = self.bytes(field)?;
        // The length counts a NUL at the end. Some writers send an empty text as length 0, without one.
        let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
        if text.contains(&0) {
            // C strings carry the text from here on; it would be cut, or refused, at the NUL.
            return Err(Malformed { field, reason: "a NUL byte inside the text".into() });
        }
        std::str::from_utf8(text).map_err(|error| Malformed { field, reason: format!("not UTF-8: {error}") })
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
                    stamp: Stamp { sec: -2, nanosec: 999_999_999 },
                    frame_id,
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
        assert_eq!(image.stamp, Stamp { sec: 7, nanosec: 8 });
        assert_eq!((image.frame_id, image.encoding), ("cam", "mono8"));
        assert_eq!((image.height, image.width, image.step, image.data), (1, 2, 2, &[1, 2][..]));
    }

    #[test]
    fn an_empty_text_may_lack_its_terminator() {
        let message = Writer::image(false, b"", b"", &[]);
        let image = ImageView::parse(&message).unwrap();
        assert_eq!((image.frame_id, image.encoding, image.data), ("", "", &[][..]));
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
