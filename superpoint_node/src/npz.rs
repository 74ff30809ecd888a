//! NumPy's `.npz`: a zip of `.npy` arrays, stored without compression.
//!
//! Written by hand because a stored zip is three kinds of record around a checksum; formats:
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html> and PKWARE's APPNOTE 4.3.

use half::f16;

/// Size limit of a zip without the 64-bit extension.
const ZIP_LIMIT: u64 = u32::MAX as u64;

/// The arrays do not fit into a zip without the 64-bit extension.
#[derive(Debug, thiserror::Error)]
#[error("the arrays take {0} bytes, but an npz of this kind holds less than 4 GiB; ask for fewer keypoints")]
pub struct TooLarge(u64);

/// A number that NumPy knows, little-endian.
pub trait Element: Copy {
    /// NumPy's name of the type.
    const DTYPE: &'static str;
    /// Appends the numbers' bytes.
    fn write(elements: &[Self], to: &mut Vec<u8>);
}

/// Fixed-size pieces of a buffer that is already there: the compiler makes this one copy.
macro_rules! element {
    ($number:ty, $name:literal) => {
        impl Element for $number {
            const DTYPE: &'static str = $name;
            fn write(elements: &[Self], to: &mut Vec<u8>) {
                const BYTES: usize = size_of::<$number>();
                let start = to.len();
                to.resize(start + elements.len() * BYTES, 0);
                for (bytes, element) in to[start..].chunks_exact_mut(BYTES).zip(elements) {
                    bytes.copy_from_slice(&element.to_le_bytes());
                }
            }
        }
    };
}
element!(f16, "<f2");
element!(f32, "<f4");

/// Puts named arrays into an npz.
///
/// ```
/// use superpoint_node::npz::Npz;
/// let mut npz = Npz::default();
/// npz.add("scores", &[2], &[0.5f32, 0.25]);
/// let bytes = npz.finish()?;
/// # Ok::<(), superpoint_node::npz::TooLarge>(())
/// ```
#[derive(Debug, Default)]
pub struct Npz {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    entries: u16,
}

impl Npz {
    /// Adds an array in row-major order. The shape's product is the number of elements.
    pub fn add<E: Element>(&mut self, name: &str, shape: &[usize], elements: &[E]) {
        let start = self.bytes.len();
        let name = format!("{name}.npy");
        self.bytes.extend_from_slice(b"PK\x03\x04");
        let head = self.bytes.len();
        put_common(&mut self.bytes, &name);
        self.bytes.extend_from_slice(name.as_bytes());

        let content = self.bytes.len();
        put_npy_header(&mut self.bytes, E::DTYPE, shape);
        E::write(elements, &mut self.bytes);
        let length = self.bytes.len() - content;

        // Filled in behind the content, because only now are they known. Too large is found at the end.
        let crc = crc32fast::hash(&self.bytes[content..]);
        let (crc_at, sizes_at) = (head + 10, head + 14);
        self.bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
        for at in [sizes_at, sizes_at + 4] {
            self.bytes[at..at + 4].copy_from_slice(&(length as u32).to_le_bytes());
        }

        self.directory.extend_from_slice(b"PK\x01\x02\x14\0"); // made by version 2.0
        self.directory.extend_from_slice(&self.bytes[head..head + 26]);
        self.directory.extend_from_slice(&[0; 10]); // no comment, first disk, no attributes
        self.directory.extend_from_slice(&(start as u32).to_le_bytes());
        self.directory.extend_from_slice(name.as_bytes());
        self.entries += 1;
    }

    /// The file's bytes.
    ///
    /// # Errors
    ///
    /// If they are 4 GiB or more.
    pub fn finish(mut self) -> Result<Vec<u8>, TooLarge> {
        let total = (self.bytes.len() + self.directory.len()) as u64;
        if total >= ZIP_LIMIT {
            return Err(TooLarge(total));
        }
        let (start, length) = (self.bytes.len() as u32, self.directory.len() as u32);
        self.bytes.append(&mut self.directory);
        self.bytes.extend_from_slice(b"PK\x05\x06\0\0\0\0");
        for _ in 0..2 {
            self.bytes.extend_from_slice(&self.entries.to_le_bytes());
        }
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(&start.to_le_bytes());
        self.bytes.extend_from_slice(&[0; 2]);
        Ok(self.bytes)
    }
}

/// The 26 bytes that a file's record and its entry in the directory share; checksum and sizes are zero.
fn put_common(to: &mut Vec<u8>, name: &str) {
    to.extend_from_slice(&[0x14, 0, 0, 0, 0, 0]); // needs version 2.0; no flags; stored
    to.extend_from_slice(&[0, 0, 0x21, 0]); // 1980-01-01 00:00, so that equal arrays give equal bytes
    to.extend_from_slice(&[0; 12]); // checksum, compressed size, size
    to.extend_from_slice(&(name.len() as u16).to_le_bytes());
    to.extend_from_slice(&[0; 2]); // no extra field
}

fn put_npy_header(to: &mut Vec<u8>, dtype: &str, shape: &[usize]) {
    let mut dimensions: String = shape.iter().map(|length| format!("{length}, ")).collect();
    if shape.len() > 1 {
        dimensions.truncate(dimensions.len() - 2);
    }
    let mut header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({}), }}", dimensions.trim_end());
    // Magic, version and length take ten bytes; the array starts at a multiple of 64.
    let padded = (10 + header.len() + 1).next_multiple_of(64);
    header.extend(std::iter::repeat_n(' ', padded - 10 - header.len() - 1));
    header.push('\n');
    to.extend_from_slice(b"\x93NUMPY\x01\0");
    to.extend_from_slice(&(header.len() as u16).to_le_bytes());
    to.extend_from_slice(header.as_bytes());
}
