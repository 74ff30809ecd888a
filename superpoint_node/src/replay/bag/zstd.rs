//! rosbag2's two ways to compress with zstd: each file as a whole, or each message.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::NamedTempFile;

/// No image is larger; a few bytes could become very many, and some messages are unpacked at a time.
const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// The first bytes of a zstd frame (RFC 8878, 3.1.1). No serialized message begins so: its first byte is 0.
pub(super) const MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// A message's bytes, decompressed if they are compressed.
///
/// # Errors
///
/// If the compressed bytes are damaged, or grow beyond 256 MiB.
pub fn unpacked(data: Vec<u8>) -> Result<Vec<u8>, String> {
    if !data.starts_with(MAGIC) {
        return Ok(data);
    }
    let damaged = |error: io::Error| format!("the compressed message is damaged: {error}");
    let mut message = Vec::new();
    let decoder = zstd::stream::read::Decoder::with_buffer(data.as_slice()).map_err(damaged)?;
    decoder.take(MAX_MESSAGE_BYTES as u64 + 1).read_to_end(&mut message).map_err(damaged)?;
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(format!("the compressed message has more than {MAX_MESSAGE_BYTES} bytes"));
    }
    Ok(message)
}

/// Unpacks a file into a temporary one, which is removed when it is dropped. Where the file is damaged, what comes before
/// is kept, and the reason is the second value.
///
/// # Errors
///
/// If the temporary file cannot be written, or `stop` was set meanwhile.
pub(super) fn unpacked_file(path: &Path, stop: &AtomicBool) -> io::Result<(NamedTempFile, Option<String>)> {
    let mut unpacked = tempfile::Builder::new().prefix("superpoint-").tempfile()?;
    let mut decoder = zstd::stream::read::Decoder::new(File::open(path)?)?;
    let mut block = vec![0; 1 << 20];
    let damage = loop {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match decoder.read(&mut block) {
            Ok(0) => break None,
            Ok(count) => io::Write::write_all(&mut unpacked, &block[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Some(format!("its zstd compression is damaged: {error}")),
        }
    };
    unpacked.seek(SeekFrom::Start(0))?;
    Ok((unpacked, damage))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn unpacking_ends_when_it_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bag.mcap.zstd");
        std::fs::write(&path, zstd::encode_all(&[7; 5000][..], 1).unwrap()).unwrap();
        let (unpacked, damage) = unpacked_file(&path, &AtomicBool::new(false)).unwrap();
        assert_eq!((std::fs::read(unpacked.path()).unwrap(), damage), (vec![7; 5000], None));
        let error = unpacked_file(&path, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    }
}
