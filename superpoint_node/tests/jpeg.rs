//! The first channel of JPEGs, against what Pillow (libjpeg-turbo) decodes; see `jpeg/make_fixtures.py`.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use superpoint_node::channel::Channel;
use superpoint_node::decode::{DecodeError, MAX_PIXELS, Samples};
use superpoint_node::jpeg::{Refusal, first_channel};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jpeg")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(format!("{name}.jpg"))).unwrap()
}

fn expected(name: &str) -> image::GrayImage {
    image::open(folder().join(format!("{name}.png"))).unwrap().into_luma8()
}

#[test]
fn samples_are_pillows() {
    for name in [
        "baseline_420",
        "baseline_422",
        "baseline_440",
        "baseline_444",
        "progressive_420",
        "progressive_444",
        "coarse_420",
        "restarts_420",
        "restarts_progressive",
        "gray",
        "gray_progressive",
        "large_progressive_420",
    ] {
        let (samples, size) =
            first_channel(&file(name), MAX_PIXELS).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        let expected = expected(name);
        assert_eq!((size.width, size.height), (expected.width() as usize, expected.height() as usize), "{name}");
        let different = samples.iter().zip(expected.as_raw()).filter(|(a, b)| a != b).count();
        assert_eq!(different, 0, "{name}: {different} of {} samples differ", samples.len());
    }
}

/// The general decoder takes what this one does not; its samples are near.
#[test]
fn unusual_files_are_decoded_too() {
    for name in ["rgb", "narrow_420"] {
        assert_eq!(first_channel(&file(name), MAX_PIXELS).unwrap_err(), Refusal::Unsupported, "{name}");
        let samples = Samples::decode(&file(name), Channel::First).unwrap();
        let expected = expected(name);
        assert_eq!(
            (samples.size().width, samples.size().height),
            (expected.width() as usize, expected.height() as usize)
        );
    }
}

#[test]
fn a_file_that_is_cut_off_is_said_to_be() {
    for name in ["baseline_420", "progressive_420", "gray", "restarts_420"] {
        let whole = file(name);
        for length in (2..whole.len() - 40).step_by(7) {
            let error = Samples::decode(&whole[..length], Channel::First).unwrap_err();
            assert!(
                matches!(error, DecodeError::CutOff(_) | DecodeError::Undecodable(_)),
                "{name} at {length}: {error}"
            );
        }
    }
}

/// Whatever is damaged, nothing panics, and the size stays what was declared.
#[test]
fn damage_is_survived() {
    let mut state = 1_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for name in ["baseline_422", "progressive_420", "restarts_progressive", "baseline_440"] {
        let whole = file(name);
        for _ in 0..2000 {
            let mut damaged = whole.clone();
            for _ in 0..1 + random() % 4 {
                let at = random() % damaged.len();
                damaged[at] = random() as u8;
            }
            if let Ok((samples, size)) = first_channel(&damaged, MAX_PIXELS) {
                assert_eq!(samples.len(), size.width * size.height);
            }
        }
    }
}

#[test]
fn a_declared_size_is_refused_before_memory_is_taken() {
    let mut huge = file("progressive_420");
    let at = huge.windows(2).position(|marker| marker == [0xff, 0xc2]).unwrap();
    huge[at + 5..at + 9].copy_from_slice(&[0xff; 4]);
    assert!(matches!(first_channel(&huge, MAX_PIXELS), Err(Refusal::TooLarge { width: 65_535, height: 65_535 })));
    let error = Samples::decode(&huge, Channel::First).unwrap_err();
    assert!(matches!(error, DecodeError::TooLarge { width: 65_535, height: 65_535 }), "{error}");
}
