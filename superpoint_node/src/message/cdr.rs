//! Values in a message serialized as CDR (OMG's Common Data Representation, as DDS sends it).

use std::fmt;

use zerocopy::{Immutable, IntoBytes};

/// Bytes that are not a serialized message of the expected type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    message_type: &'static str,
    field: &'static str,
    reason: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a {}: {}: {}", self.message_type, self.field, self.reason)
    }
}

impl std::error::Error for Malformed {}

/// Takes CDR values off the front of a message. Values are aligned to their size, counted from behind the header.
pub(super) struct Reader<'a> {
    message_type: &'static str,
    body: &'a [u8],
    at: usize,
    big_endian: bool,
}

impl<'a> Reader<'a> {
    /// `message_type` is for errors.
    pub(super) fn new(message_type: &'static str, message: &'a [u8]) -> Result<Self, Malformed> {
        let malformed = |reason| Malformed { message_type, field: "encapsulation header", reason };
        let Some((header, body)) = message.split_at_checked(4) else {
            return Err(malformed(format!("4 bytes expected, the message has {}", message.len())));
        };
        // Plain CDR of version 1 and 2 agree on everything that an Image holds: no value of 8 bytes.
        let big_endian = match (header[0], header[1]) {
            (0, 0x00 | 0x06) => true,
            (0, 0x01 | 0x07) => false,
            (high, low) => return Err(malformed(format!("representation 0x{high:02x}{low:02x} is not plain CDR"))),
        };
        Ok(Self { message_type, body, at: 0, big_endian })
    }

    fn take(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], Malformed> {
        let rest = self.body.get(self.at..).unwrap_or_default();
        let Some(taken) = rest.get(..count) else {
            return Err(Malformed {
                message_type: self.message_type,
                field,
                reason: format!("{count} bytes expected, {} are left", rest.len()),
            });
        };
        self.at += count;
        Ok(taken)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, Malformed> {
        self.take(field, 1).map(|byte| byte[0])
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, Malformed> {
        self.at = self.at.next_multiple_of(4);
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(field, 4)?);
        Ok(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    /// A sequence of bytes: its length, then as many.
    pub(super) fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], Malformed> {
        let count = self.u32(field)? as usize;
        self.take(field, count)
    }

    /// A sequence of 32-bit floats.
    pub(super) fn floats(&mut self, field: &'static str) -> Result<Vec<f32>, Malformed> {
        let count = self.u32(field)? as usize;
        let bytes = self.take(field, count.saturating_mul(4))?;
        let read = if self.big_endian { f32::from_be_bytes } else { f32::from_le_bytes };
        Ok(bytes.as_chunks().0.iter().map(|&value| read(value)).collect())
    }

    pub(super) fn string(&mut self, field: &'static str) -> Result<&'a str, Malformed> {
        let bytes = self.bytes(field)?;
        // The length counts a NUL at the end. Some writers send an empty text as length 0, without one.
        let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
        if text.contains(&0) {
            // C strings carry the text from here on; it would be cut, or refused, at the NUL.
            return Err(Malformed {
                message_type: self.message_type,
                field,
                reason: "a NUL byte inside the text".into(),
            });
        }
        std::str::from_utf8(text).map_err(|error| Malformed {
            message_type: self.message_type,
            field,
            reason: format!("not UTF-8: {error}"),
        })
    }
}

/// Puts CDR values behind each other, in the machine's byte order, each aligned to its size.
#[derive(Debug)]
pub(super) struct Writer {
    message: Vec<u8>,
}

/// Bytes in front of the values, from where alignment is counted: plain CDR, the byte order, no options.
const ENCAPSULATION: [u8; 4] = [0, cfg!(target_endian = "little") as u8, 0, 0];

impl Writer {
    /// Makes room for a message of about `size` bytes.
    pub(super) fn with_capacity(size: usize) -> Self {
        let mut message = Vec::with_capacity(size + ENCAPSULATION.len());
        message.extend_from_slice(&ENCAPSULATION);
        Self { message }
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.message.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.message.resize(self.message.len().next_multiple_of(4), 0);
        self.message.extend_from_slice(&value.to_ne_bytes());
    }

    pub(super) fn i32(&mut self, value: i32) {
        self.u32(value.cast_unsigned());
    }

    /// A text without NUL bytes.
    pub(super) fn string(&mut self, text: &str) {
        self.length(text.len() + 1);
        self.message.extend_from_slice(text.as_bytes());
        self.message.push(0);
    }

    /// A sequence of values of at most four bytes each.
    pub(super) fn sequence<T: IntoBytes + Immutable>(&mut self, values: &[T]) {
        self.length(values.len());
        self.message.extend_from_slice(values.as_bytes());
    }

    /// A sequence of the bytes of these values.
    pub(super) fn bytes<T: IntoBytes + Immutable>(&mut self, values: &[T]) {
        self.sequence(values.as_bytes());
    }

    fn length(&mut self, length: usize) {
        // A sequence's length has 32 bits; nothing that is published comes near.
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    /// The whole message, with its encapsulation header.
    pub(super) fn finish(self) -> Vec<u8> {
        self.message
    }
}
