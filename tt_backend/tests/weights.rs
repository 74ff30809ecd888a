//! Weights files that are right, and every way found so far in which they are wrong.

use std::fs;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;
use tt_backend::weights::{Location, MAX_FILE_BYTES, Weights, summarize};

const BUNDLED: &[u8] = include_bytes!("../../weights/superpoint_open.safetensors");

/// A tensor that can be changed: its name, number format, shape and bytes.
#[derive(Clone)]
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

/// The bundled tensors.
fn tensors() -> Vec<Tensor> {
    let file = safetensors::SafeTensors::deserialize(BUNDLED).expect("the bundled file is whole");
    file.iter()
        .map(|(name, view)| Tensor {
            name: name.to_owned(),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            data: view.data().to_vec(),
        })
        .collect()
}

fn file_of(tensors: &[Tensor]) -> Vec<u8> {
    let views = tensors.iter().map(|tensor| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.data).expect("consistent");
        (tensor.name.clone(), view)
    });
    safetensors::serialize(views, None).expect("serialisable")
}

/// The bundled tensors with one of them changed.
fn with(name: &str, change: impl Fn(&mut Tensor)) -> Vec<u8> {
    let mut tensors = tensors();
    let tensor = tensors.iter_mut().find(|tensor| tensor.name == name).expect("one of the network's");
    change(tensor);
    file_of(&tensors)
}

fn f32_bytes(tensor: &Tensor) -> Vec<u8> {
    tensor.data.chunks_exact(2).flat_map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32().to_le_bytes()).collect()
}

#[track_caller]
fn refused(bytes: &[u8], parts: &[&str]) {
    let text = Weights::from_bytes(bytes, "some file").expect_err("it is wrong").to_string();
    for part in ["weights some file: "].iter().chain(parts) {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

const CONV: &str = "encoder.conv_blocks.2.conv_a.weight";

#[test]
fn the_bundled_weights_are_whole() {
    let weights = Weights::bundled().expect("whole");
    assert_eq!(weights.encoder[0].weight.dim(), (64, 1, 3, 3));
    assert_eq!(weights.encoder[4].weight.dim(), (128, 64, 3, 3));
    assert_eq!(weights.score[1].weight.dim(), (65, 256, 1, 1));
    assert_eq!(weights.descriptor[1].bias.len(), 256);
    let convs = weights.encoder.iter().chain(&weights.score).chain(&weights.descriptor);
    assert_eq!(convs.map(|conv| conv.weight.len() + conv.bias.len()).sum::<usize>(), 1_300_865);
    assert_eq!(weights.provenance.name, "superpoint_open");
    assert_eq!(weights.provenance.revision.as_deref(), Some("2026-11-30"));
    assert_eq!(weights.provenance.path, None);
}

/// The card says which file it describes.
#[test]
fn the_card_names_the_bundled_file() {
    let card = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/README.md")).expect("a card");
    let provenance = Weights::bundled().expect("whole").provenance;
    assert!(card.contains(&provenance.sha256), "the card must have {}", provenance.sha256);
    assert!(card.contains(&provenance.revision.unwrap_or_default()));
}

#[test]
fn all_three_number_formats_give_the_same_network() {
    let original = Weights::bundled().expect("whole");
    let mut full = tensors();
    for tensor in &mut full {
        tensor.data = f32_bytes(tensor);
        tensor.dtype = Dtype::F32;
    }
    let loaded = Weights::from_bytes(&file_of(&full), "f32").expect("whole");
    assert_eq!((&loaded.encoder, &loaded.score), (&original.encoder, &original.score));
    assert_eq!(loaded.descriptor, original.descriptor);
    assert_ne!(loaded.provenance.sha256, original.provenance.sha256);

    let mut brief = tensors();
    for tensor in &mut brief {
        let values = f32_bytes(tensor);
        let values = values.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        tensor.data = values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect();
        tensor.dtype = Dtype::BF16;
    }
    let loaded = Weights::from_bytes(&file_of(&brief), "bf16").expect("whole");
    let close = |a: &f32, b: &f32| (a - b).abs() <= a.abs() / 128.0;
    assert!(original.encoder[3].weight.iter().zip(&loaded.encoder[3].weight).all(|(a, b)| close(a, b)));
}

#[test]
fn wrong_tensors_are_named_with_what_was_found_and_expected() {
    refused(
        &with(CONV, |tensor| tensor.shape = vec![64, 128, 3, 3]),
        &[CONV, "[64, 128, 3, 3]", "must have [128, 64, 3, 3]"],
    );
    refused(&with(CONV, |tensor| tensor.shape = vec![128 * 64 * 9]), &[CONV, "[73728]"]);
    refused(&with(CONV, |tensor| tensor.dtype = Dtype::I16), &[CONV, "I16", "F32, F16 or BF16"]);
    let bias = "keypoint_decoder.conv_score_b.bias";
    refused(
        &with(bias, |tensor| {
            tensor.shape = vec![64];
            tensor.data.truncate(128);
        }),
        &[bias, "[64]", "[65]"],
    );
}

#[test]
fn values_that_are_not_finite_are_found_wherever_they_are() {
    for (value, text) in [(f16::NAN, "NaN"), (f16::INFINITY, "inf"), (f16::NEG_INFINITY, "-inf")] {
        // Value 64 * 9 + 2 * 9 + 3 + 1: output 1, input 2, row 1, column 1.
        let at = 64 * 9 + 2 * 9 + 3 + 1;
        let bytes = with(CONV, |tensor| tensor.data[2 * at..][..2].copy_from_slice(&value.to_le_bytes()));
        refused(&bytes, &[CONV, &format!("has {text} at [1, 2, 1, 1]"), "finite"]);
    }
    let last = "descriptor_decoder.conv_descriptor_b.bias";
    let bytes = with(last, |tensor| {
        tensor.data = f32_bytes(tensor);
        tensor.dtype = Dtype::F32;
        let end = tensor.data.len() - 4;
        tensor.data[end..].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    refused(&bytes, &[last, "NaN at [255]"]);
}

#[test]
fn missing_and_unexpected_tensors_are_named() {
    let without: Vec<Tensor> = tensors().into_iter().filter(|tensor| tensor.name != CONV).collect();
    refused(&file_of(&without), &["missing", CONV]);

    let mut more = tensors();
    more.push(Tensor { name: "classifier.weight".into(), ..more[0].clone() });
    refused(&file_of(&more), &["does not have", "classifier.weight"]);

    let renamed = with(CONV, |tensor| tensor.name = "conv3a.weight".into());
    refused(&renamed, &["missing", CONV, "conv3a.weight"]);

    refused(&file_of(&[]), &["missing", "and 18 more"]);
}

#[test]
fn names_from_a_file_cannot_spoil_the_terminal_or_fill_it() {
    let name = format!("\u{1b}[2J\n{}", "x".repeat(100_000));
    let text = Weights::from_bytes(&with(CONV, |tensor| tensor.name.clone_from(&name)), "some file")
        .expect_err("it is wrong")
        .to_string();
    assert!(!text.contains('\u{1b}') && !text.contains('\n'));
    assert!(text.len() < 1000, "{} bytes", text.len());
}

#[test]
fn a_cut_file_is_refused_wherever_it_was_cut() {
    for length in [0, 1, 7, 8, 9, 100, 2000, BUNDLED.len() / 2, BUNDLED.len() - 1] {
        assert!(Weights::from_bytes(&BUNDLED[..length], "cut").is_err(), "{length} bytes");
    }
    refused(&BUNDLED[..BUNDLED.len() - 1], &["cut off", &(BUNDLED.len() - 1).to_string()]);
    refused(&[], &["empty"]);
    let mut longer = BUNDLED.to_vec();
    longer.push(0);
    refused(&longer, &["is not what its header declares"]);
}

#[test]
fn other_formats_are_called_by_their_names() {
    refused(b"\x80\x02}q\x00(X\x05\x00\x00\x00conv1", &["pickle", "model.safetensors"]);
    refused(b"PK\x03\x04\x00\x00\x08\x08\x00\x00archive/data.pkl", &["pickle", "model.safetensors"]);
    refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", &["Git LFS"]);
    refused(b"<!DOCTYPE html><html><body>Sign in</body></html>", &["not a valid safetensors file"]);
    refused(&u64::MAX.to_le_bytes(), &["not a valid safetensors file"]);
}

/// A header of 0x10280 bytes starts with the same two bytes as a pickle of protocol 2.
#[test]
fn a_header_that_looks_like_a_pickle_is_still_read() {
    let with_name_of = |length| with(CONV, |tensor| tensor.name = "x".repeat(length));
    let header = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let lookalike = with_name_of(60_000 + 0x10280 - header(&with_name_of(60_000)));
    assert_eq!(lookalike[..2], [0x80, 0x02]);
    let text = Weights::from_bytes(&lookalike, "lookalike").expect_err("one name is wrong").to_string();
    assert!(!text.contains("pickle") && text.contains("missing"), "{text}");
}

#[test]
fn every_damaged_byte_of_the_header_is_survived() {
    // The header's length and its JSON: any result is right, except a panic.
    let header = 8 + u64::from_le_bytes(BUNDLED[..8].try_into().expect("eight bytes")) as usize;
    let mut bytes = BUNDLED[..header + 64].to_vec();
    for at in 0..header {
        for value in [0, b'9', b'"', 0xff] {
            let old = std::mem::replace(&mut bytes[at], value);
            let _ = Weights::from_bytes(&bytes, "damaged");
            bytes[at] = old;
        }
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[track_caller]
fn unreadable(path: &Path, part: &str) {
    let text = Weights::load(path).expect_err("it cannot be read").to_string();
    assert!(text.contains("cannot read weights file") && text.contains(&path.display().to_string()), "{text}");
    assert!(text.contains(part), "`{part}` is not in: {text}");
}

#[test]
fn a_loaded_file_says_where_it_came_from() {
    let folder = folder();
    // Without metadata the file's own name is all there is.
    let path = folder.path().join("mine.safetensors");
    fs::write(&path, file_of(&tensors())).expect("writable");
    let provenance = Weights::load(&path).expect("whole").provenance;
    assert_eq!((provenance.name.as_str(), provenance.revision), ("mine", None));
    assert_eq!(provenance.path.as_deref(), Some(path.as_path()));

    // In a cache, the folders say it.
    let snapshot = folder.path().join("models--magic-leap-community--superpoint/snapshots/734450e9");
    fs::create_dir_all(&snapshot).expect("writable");
    let path = snapshot.join("model.safetensors");
    fs::write(&path, BUNDLED).expect("writable");
    let provenance = Weights::load(&path).expect("whole").provenance;
    assert_eq!(provenance.name, "magic-leap-community/superpoint");
    assert_eq!(provenance.revision.as_deref(), Some("734450e9"));
    assert_eq!(provenance.sha256, Weights::bundled().expect("whole").provenance.sha256);
}

#[test]
fn what_is_not_a_readable_file_is_said() {
    let folder = folder();
    unreadable(folder.path(), "folder");
    unreadable(&folder.path().join("none.safetensors"), "No such file");
    unreadable(&folder.path().join("file/below"), "No such file");
}

#[cfg(unix)]
#[test]
fn devices_pipes_links_and_huge_files_are_refused_at_once() {
    unreadable(Path::new("/dev/zero"), "device or a pipe");
    let folder = folder();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("gone", &link).expect("writable");
    unreadable(&link, "link to gone");

    // A sparse file: it takes no room.
    let huge = folder.path().join("huge.safetensors");
    fs::File::create(&huge).and_then(|file| file.set_len(MAX_FILE_BYTES + 1)).expect("writable");
    unreadable(&huge, "67108865");
    assert!(summarize(&huge).is_err());

    // Opening this for reading would wait for a writer.
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is part of coreutils");
    assert!(made.success());
    unreadable(&pipe, "device or a pipe");
}

#[cfg(unix)]
#[test]
fn a_file_without_permission_is_said() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let path = folder.path().join("private.safetensors");
    fs::write(&path, BUNDLED).expect("writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("own file");
    // Root reads everything.
    if fs::read(&path).is_err() {
        unreadable(&path, "denied");
    }
}

#[test]
fn an_explicit_choice_wins() {
    let path = Path::new("some/file.safetensors");
    assert_eq!(Weights::locate(Some(path)).expect("not looked at"), Location::Explicit(path.into()));
    assert_eq!(Weights::locate(Some(Path::new("bundled"))).expect("a word"), Location::Bundled);
    assert_eq!(Weights::locate(Some(Path::new("./bundled"))).expect("a file"), Location::Explicit("./bundled".into()));
    assert_eq!(Location::Bundled.to_string(), "bundled");
}
