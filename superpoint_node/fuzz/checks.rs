//! What must hold for any bytes. The fuzz targets call these, and `tests/fuzz_corpus.rs` for the corpus.
// Each target uses one of them, as a module of its own.
#![allow(dead_code, unreachable_pub)]

use superpoint_node::channel::Channel;
use superpoint_node::decode::Samples;
use superpoint_node::http::read_predict_body;
use superpoint_node::npz::Npz;
use tt_backend::Params;

/// A body of `/predict` is a request in range, or refused with a sentence and a 4xx.
pub fn predict(body: &[u8]) {
    match read_predict_body(body, &Params::default()) {
        Ok(request) => {
            assert!(request.params.check().is_ok());
            picture(&request.image);
        }
        Err(problem) => {
            assert!((400..500).contains(&problem.status()), "{problem:?}");
            assert!((5..500).contains(&problem.detail().chars().count()), "{problem:?}");
        }
    }
}

/// A file is a picture with all of its samples, or refused with a sentence.
pub fn picture(file: &[u8]) {
    // The bench of the decoders is not the fuzzer: large pictures only cost time.
    if declares_many_pixels(file) {
        return;
    }
    for channel in [Channel::First, Channel::Luma] {
        match Samples::decode(file, channel) {
            Ok(samples) => {
                let plane = samples.plane().map(|plane| plane.size());
                assert_eq!(plane.ok(), Some(samples.size()));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

fn declares_many_pixels(file: &[u8]) -> bool {
    const MANY: u64 = 1 << 20;
    let area = |sides: [u32; 2]| u64::from(sides[0]) * u64::from(sides[1]) > MANY;
    let png =
        |at: usize| file.get(at..at + 4).map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let jpeg = file.windows(9).any(|segment| {
        let side = |at: usize| u32::from(u16::from_be_bytes([segment[at], segment[at + 1]]));
        segment[0] == 0xff && segment[1] & 0xf0 == 0xc0 && area([side(5), side(7)])
    });
    jpeg || matches!((png(16), png(20)), (Some(width), Some(height)) if area([width, height]))
}

/// An npz is a zip whose directory leads to every array, whole and with its checksum.
pub fn npz(data: &[u8]) {
    let mut npz = Npz::default();
    let mut expected = Vec::new();
    for (index, piece) in data.chunks(97).enumerate() {
        let values: Vec<f32> = piece.iter().map(|&byte| f32::from_bits(u32::from(byte) << 23)).collect();
        let name = format!("array{index}");
        let shape = if index % 2 == 0 { vec![values.len()] } else { vec![1, values.len()] };
        npz.add(&name, &shape, &values);
        expected
            .push((format!("{name}.npy"), values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()));
    }
    let Ok(file) = npz.finish() else { panic!("far below 4 GiB") };
    let u16_at = |at: usize| usize::from(u16::from_le_bytes([file[at], file[at + 1]]));
    let u32_at = |at: usize| u32::from_le_bytes([file[at], file[at + 1], file[at + 2], file[at + 3]]);
    let end = file.len() - 22;
    assert_eq!(&file[end..end + 4], b"PK\x05\x06");
    assert_eq!(u16_at(end + 10), expected.len());
    let mut entry = u32_at(end + 16) as usize;
    for (name, content) in expected {
        assert_eq!(&file[entry..entry + 4], b"PK\x01\x02");
        let (crc, size, name_length) = (u32_at(entry + 16), u32_at(entry + 24) as usize, u16_at(entry + 28));
        assert_eq!(&file[entry + 46..entry + 46 + name_length], name.as_bytes());
        let local = u32_at(entry + 42) as usize;
        assert_eq!(&file[local..local + 4], b"PK\x03\x04");
        let start = local + 30 + u16_at(local + 26) + u16_at(local + 28);
        let array = &file[start..start + size];
        assert_eq!(crc32fast::hash(array), crc);
        assert!(array.starts_with(b"\x93NUMPY\x01\0"));
        let header = 10 + usize::from(u16::from_le_bytes([array[8], array[9]]));
        assert_eq!(header % 64, 0);
        assert_eq!(array[header..], content);
        entry += 46 + name_length;
    }
    assert_eq!(entry, end);
}
