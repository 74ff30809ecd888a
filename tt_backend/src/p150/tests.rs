//! The graph on the emulation: against the host's definitions bit by bit, and against the fp32 network on photos.

use std::any::Any;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use half::bf16;
use tt_metal_sys::{Compute, Conv2dOptions, DType, DeviceOptions, Layout, Library, MaxPool2dOptions, Memory, Spec};

use super::backend::P150Backend;
use super::device::{Device, DeviceError};
use super::emulation::Emulation;
use super::network::{self, Network};
use super::resize::{Resize, plane_spec};
use super::sample::BATCH;
use super::self_test::correlation;
use super::session::{MAX_SIZES, Session};
use super::suppress;
use super::ttnn::Ttnn;
use super::worker::{Deadlines, Worker};
use crate::cpu::CpuBackend;
use crate::keypoints::{DESCRIPTOR_DIM, Extractor};
use crate::maps::Maps;
use crate::nms::Suppression;
use crate::resize::Resizer;
use crate::team::Team;
use crate::weights::Weights;
use crate::{Backend, Detections, Error, Params, Plane, Postprocess, Size, cpu};

/// A frame whose sides are whole tiles and differ, small enough for many runs.
const SMALL: Size = Size::new(64, 96);

pub(super) fn weights() -> Weights {
    Weights::bundled().unwrap()
}

/// Repeatable numbers of 0 to 1.
pub(super) fn noise(seed: u32) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 24) as f32
    }
}

pub(super) fn bits(values: &[f32]) -> Vec<u16> {
    values.iter().map(|&value| bf16::from_f32(value).to_bits()).collect()
}

fn read(device: &Emulation, tensor: &<Emulation as Device>::Tensor) -> Vec<f32> {
    let tensor = device.to_layout(tensor, Layout::RowMajor).unwrap();
    let tensor = device.typecast(&tensor, DType::F32).unwrap();
    let mut values = vec![0.0; device.spec(&tensor).volume()];
    device.read_f32(&tensor, &mut values).unwrap();
    values
}

/// A picture of the fixtures: its size and its 8-bit samples.
pub(super) fn photo(name: &str) -> (Size, Vec<u8>) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let mut reader = png::Decoder::new(BufReader::new(File::open(path).unwrap())).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    (Size::new(info.height as usize, info.width as usize), pixels)
}

/// F1 of two sets of keypoints, each keypoint matched to a free one within 2 pixels, the nearest first.
fn f1(a: &[[u16; 2]], b: &[[u16; 2]]) -> f64 {
    let mut pairs: Vec<(i32, usize, usize)> = Vec::new();
    for (i, &[ax, ay]) in a.iter().enumerate() {
        for (j, &[bx, by]) in b.iter().enumerate() {
            let (dx, dy) = (i32::from(ax) - i32::from(bx), i32::from(ay) - i32::from(by));
            if dx * dx + dy * dy <= 4 {
                pairs.push((dx * dx + dy * dy, i, j));
            }
        }
    }
    pairs.sort_unstable();
    let (mut used_a, mut used_b) = (vec![false; a.len()], vec![false; b.len()]);
    let mut matched = 0;
    for (_, i, j) in pairs {
        if !used_a[i] && !used_b[j] {
            (used_a[i], used_b[j]) = (true, true);
            matched += 1;
        }
    }
    2.0 * f64::from(matched) / (a.len() + b.len()) as f64
}

#[test]
fn folding_and_suppression_are_the_hosts_bit_by_bit() {
    let Size { height: rows, width: columns } = SMALL.cells();
    // Few values, so that ties are common, some next to each other in bf16 or equal in it; and one map of plain noise.
    let few = [0.0, 0.125, 0.5, 0.500_1, 257.0 / 512.0, 255.0 / 256.0];
    for (kind, seed) in [("ties", 1), ("ties", 2), ("noise", 3), ("plateau", 4)] {
        let mut noise = noise(seed);
        let mut probability = || match kind {
            "ties" => few[(noise() * 6.0) as usize],
            "noise" => noise(),
            _ => 0.25,
        };
        let probabilities: Vec<f32> = (0..rows * columns * 65).map(|_| probability()).collect();
        let device = Emulation::default();
        let spec = Spec {
            shape: [1, 1, rows * columns, 65],
            dtype: DType::F32,
            layout: Layout::RowMajor,
            memory: Memory::Dram,
        };
        let tensor = device.allocate(spec).unwrap();
        device.overwrite(&tensor, &probabilities);
        let tensor = device.to_layout(&tensor, Layout::Tile).unwrap();
        let scores = network::fold(&device, &tensor, SMALL).unwrap();

        let mut expected = vec![0.0; SMALL.area()];
        for (index, &value) in probabilities.iter().enumerate() {
            let (cell, k) = (index / 65, index % 65);
            if k < 64 {
                let (y, x) = (8 * (cell / columns) + k / 8, 8 * (cell % columns) + k % 8);
                expected[y * SMALL.width + x] = value;
            }
        }
        assert_eq!(read(&device, &scores), expected, "{kind}: folded");

        let rounded: Vec<f32> = expected.iter().map(|&score| bf16::from_f32(score).to_f32()).collect();
        for radius in suppress::RADII {
            let kept = read(&device, &suppress::suppress(&device, &scores, SMALL, radius).unwrap());
            let mut survivors = vec![0.0; SMALL.area()];
            Suppression::default().single_pass(&rounded, SMALL, radius, 0..SMALL.height, |y, bars| {
                for (x, bar) in bars.iter().enumerate() {
                    let index = y * SMALL.width + x;
                    // The device's map is transposed.
                    survivors[x * SMALL.height + y] = if rounded[index] == *bar { expected[index] } else { 0.0 };
                }
            });
            assert_eq!(kept, survivors, "{kind}, radius {radius}");
        }
    }
}

/// A tensor of any layout and format that holds `values`.
fn tensor(device: &Emulation, spec: Spec, values: &[f32]) -> <Emulation as Device>::Tensor {
    let tensor = device.allocate(spec).unwrap();
    device.overwrite(&tensor, values);
    tensor
}

/// One tile.
const TILE: Spec = Spec { shape: [1, 1, 32, 32], dtype: DType::Bf16, layout: Layout::Tile, memory: Memory::Dram };

/// A matrix of 32 x 32 with these numbers at the start of its first row or column.
fn first(values: &[f32], stride: usize) -> Vec<f32> {
    let mut matrix = vec![0.0; 32 * 32];
    values.iter().enumerate().for_each(|(index, &value)| matrix[index * stride] = value);
    matrix
}

// What a simulator of the card showed, and the emulation had otherwise.

#[test]
fn two_passes_cut_the_left_operand_to_seven_bits() {
    let device = Emulation::default();
    let product = |left: f32, right: f32, compute| {
        let (left, right) = (tensor(&device, TILE, &first(&[left], 1)), tensor(&device, TILE, &first(&[right], 1)));
        read(&device, &device.matmul(&left, &right, compute, DType::F32).unwrap())[0]
    };
    assert_eq!(product(255.0, 1.0, Compute::HIFI2), 254.0);
    assert_eq!(product(-255.0, 1.0, Compute::HIFI2), -254.0);
    assert_eq!(product(127.0, 1.0, Compute::HIFI2), 127.0);
    assert_eq!(product(1.0, 255.0, Compute::HIFI2), 255.0);
    assert_eq!(product(255.0, 1.0, Compute::HIFI4), 255.0);
}

#[test]
fn the_packer_rounds_ties_away_and_a_typecast_to_even() {
    let device = Emulation::default();
    let tie = 1.0 + 1.0 / 256.0;
    let left = tensor(&device, TILE, &first(&[1.0, 1.0 / 256.0], 1));
    let right = tensor(&device, TILE, &first(&[1.0, 1.0], 32));
    let product = |dtype| device.matmul(&left, &right, Compute::HIFI4, dtype).unwrap();
    assert_eq!(read(&device, &product(DType::Bf16))[0], 1.0 + 1.0 / 128.0);
    let exact = product(DType::F32);
    assert_eq!(read(&device, &exact)[0], tie);
    assert_eq!(read(&device, &device.typecast(&exact, DType::Bf16).unwrap())[0], 1.0);
}

#[test]
fn a_bias_is_added_in_eleven_bits() {
    let device = Emulation::default();
    let options = Conv2dOptions {
        height: 4,
        width: 8,
        in_channels: 1,
        kernel: [1, 1],
        padding: [0, 0],
        relu: false,
        output_dtype: DType::F32,
        compute: Compute::HIFI4,
        ..CONV
    };
    let map = tensor(&device, Spec { shape: [1, 1, 32, 1], layout: Layout::RowMajor, ..TILE }, &[129.0 / 128.0; 32]);
    let output = |weight: f32, bias: f32| {
        let conv = device.prepare_conv2d(&options, &[weight; 32], &[bias; 32]).unwrap();
        read(&device, &device.conv2d(&conv, &map).unwrap())[0]
    };
    let place = 1.0 / 1024.0;
    // 129/128 times itself is 1 + 16/1024 + 1/16384.
    assert_eq!(output(129.0 / 128.0, 0.0), 1.0 + 16.0 * place);
    assert_eq!(output(129.0 / 128.0, 0.5 * place), 1.0 + 17.0 * place);
    assert_eq!(output(129.0 / 128.0, -0.25 * place), 1.0 + 16.0 * place);
}

#[test]
fn a_row_major_transpose_cuts_fp32_to_eleven_bits_and_one_in_tiles_does_not() {
    let device = Emulation::default();
    let values: Vec<f32> = (0..32 * 32).map(|index| 1.0 + index as f32 / 8192.0).collect();
    let transposed = |layout| {
        let map = tensor(&device, Spec { dtype: DType::F32, layout, ..TILE }, &values);
        read(&device, &device.permute(&map, [0, 1, 3, 2]).unwrap())
    };
    let expected: Vec<f32> = (0..32 * 32).map(|index| values[index % 32 * 32 + index / 32]).collect();
    assert_eq!(transposed(Layout::Tile), expected);
    let cut: Vec<f32> = expected.iter().map(|value| f32::from_bits(value.to_bits() & !0x1fff)).collect();
    assert_eq!(transposed(Layout::RowMajor), cut);
    assert_ne!(cut, expected);
}

pub(super) fn resized_by_the_host(plane: &Plane<'_>, frame: Size) -> Vec<f32> {
    let mut resized = Vec::new();
    Resizer::new(frame).resize(plane, &mut Team::new(1).unwrap(), &mut resized);
    resized
}

#[test]
fn the_devices_resize_is_pillows_within_a_level() {
    let (size, pixels) = photo("astronaut_512x512.png");
    // Narrower and wider, higher and lower: the filter widens where it reduces.
    for frame in [Size::NETWORK, Size::new(256, 640), Size::new(192, 160)] {
        let plane = Plane::contiguous(&pixels, size).unwrap();
        let expected = resized_by_the_host(&plane, frame);
        let device = Emulation::default();
        let resize = Resize::new(&device, size, frame).unwrap();
        let levels: Vec<f32> = pixels.iter().map(|&level| f32::from(level)).collect();
        let plane = device.allocate(plane_spec(size, frame)).unwrap();
        let resized = device.allocate(plane_spec(frame, frame)).unwrap();
        device.write(&plane, &bits(&levels)).unwrap();
        resize.run(&device, &plane, &resized).unwrap();
        let resized = read(&device, &resized);
        assert!(resized.iter().all(|level| level.fract() == 0.0), "whole levels");
        let errors: Vec<f32> = resized.iter().zip(&expected).map(|(a, b)| (a - (255.0 * b).round()).abs()).collect();
        let worst = errors.iter().copied().fold(0.0, f32::max);
        let wrong = errors.iter().filter(|&&error| error > 0.0).count() as f32 / errors.len() as f32;
        eprintln!("{frame}: worst {worst} levels, {:.3} % of the pixels", 100.0 * wrong);
        // From 512 to 640 pixels weights are tenths, and many sums fall right between two levels.
        assert!(worst <= 1.0 && wrong < 0.04, "{frame}: worst {worst} levels, {wrong} of the pixels");
    }
}

/// What the CPU finds, and its maps.
fn in_fp32(plane: &Plane<'_>, params: &Params) -> (Detections, Maps) {
    let mut out = Detections::default();
    CpuBackend::new(&weights(), Size::NETWORK, 0).unwrap().detect(plane, params, &mut out).unwrap();
    let frame = resized_by_the_host(plane, Size::NETWORK);
    let mut maps = Maps::new(Size::NETWORK);
    cpu::Network::new(&weights(), Size::NETWORK, 0).unwrap().forward(&frame, true, &mut maps);
    (out, maps)
}

/// Score PCC, descriptor PCC and F1 of the best 1000 keypoints within two pixels, of the device against fp32 on one image.
fn against_fp32(name: &str, size: Size, pixels: &[u8]) -> (f64, f64, f64) {
    let params = Params { max_keypoints: Some(1000), ..Params::default() };
    let (expected, maps) = in_fp32(&Plane::contiguous(pixels, size).unwrap(), &params);
    let mut session = Session::new(Emulation::default(), &weights(), Size::NETWORK).unwrap();
    session.prepare(&[size], &[4]).unwrap();
    let levels: Vec<f32> = pixels.iter().map(|&level| f32::from(level)).collect();
    let mut found = Detections::default();
    let outcome = session.detect(size, &bits(&levels), &params, &mut found).unwrap();
    assert!(outcome.device_nms && outcome.finite);
    let device_maps = session.maps().unwrap();
    let score_pcc = correlation(&device_maps.scores, &maps.scores);
    let descriptor_pcc = correlation(&device_maps.descriptors, &maps.descriptors);
    let agreement = f1(&found.points, &expected.points);
    eprintln!("{name}: score PCC {score_pcc:.5}, descriptor PCC {descriptor_pcc:.5}, F1 {agreement:.4}");

    // The device's suppression, and the host's of the device's scores in fp32.
    let mut in_fp32 = Detections::default();
    Extractor::default().find(&device_maps, &params, &mut in_fp32);
    let other = found.points.iter().filter(|point| !in_fp32.points.contains(point)).count();
    eprintln!("{name}: {other} of {} keypoints are not those of suppression in fp32", found.len());
    // How many neighbours bf16 makes equal is chance: one to seven of a thousand on the fixtures.
    assert!(100 * other <= found.len(), "{name}");

    // Sampled descriptors, keypoint by keypoint, where both found the same pixel.
    let (ours, theirs) = (found.descriptors().unwrap(), expected.descriptors().unwrap());
    let mut common = 0;
    for (index, point) in found.points.iter().enumerate() {
        if let Some(other) = expected.points.iter().position(|other| other == point) {
            let cosine = ours.row(index).dot(&theirs.row(other));
            assert!(cosine >= 0.99, "{name}, {point:?}: cosine {cosine}");
            common += 1;
        }
    }
    assert!(common * 10 >= 8 * found.len(), "{name}: {common} keypoints of {} in the same place", found.len());
    (score_pcc, descriptor_pcc, agreement)
}

fn photos_agree(photos: impl IntoIterator<Item = (String, Size, Vec<u8>)>) {
    let disagrees = |(name, size, pixels): &(String, Size, Vec<u8>)| {
        let (score_pcc, descriptor_pcc, agreement) = against_fp32(name, *size, pixels);
        score_pcc < 0.997 || descriptor_pcc < 0.999 || agreement < 0.97
    };
    let others: Vec<String> = photos.into_iter().filter(disagrees).map(|(name, ..)| name).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn photos_give_what_the_fp32_network_gives() {
    let (size, upright) = photo("astronaut_640x480.png");
    let overhead: Vec<u8> = upright.iter().rev().copied().collect();
    photos_agree([("upright".into(), size, upright), ("upside down".into(), size, overhead)]);
}

#[test]
fn a_photo_that_the_device_resizes_gives_that_too() {
    let (size, pixels) = photo("astronaut_512x512.png");
    photos_agree([("resized on the device".into(), size, pixels)]);
}

/// By hand: `P150_PHOTOS=folder cargo test -p tt_backend photos_of_a_folder -- --ignored --nocapture`.
#[test]
#[ignore = "takes 8-bit grey PNG files from the folder that P150_PHOTOS names"]
fn photos_of_a_folder_agree_too() {
    let folder = PathBuf::from(std::env::var_os("P150_PHOTOS").unwrap());
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    photos_agree(paths.into_iter().map(|path| {
        let (size, pixels) = photo(path.to_str().unwrap());
        (path.display().to_string(), size, pixels)
    }));
}

/// A session on a small frame, and a picture for it.
fn small_session() -> (Session<Emulation>, Vec<u16>) {
    let mut noise = noise(5);
    let picture = (0..SMALL.area()).map(|index| {
        let (y, x) = (index / SMALL.width, index % SMALL.width);
        let square = if x / 13 % 2 == y / 11 % 2 { 180.0 } else { 30.0 };
        (square + 40.0 * noise()).floor()
    });
    let picture = bits(&picture.collect::<Vec<_>>());
    (Session::new(Emulation::default(), &weights(), SMALL).unwrap(), picture)
}

fn detect(session: &mut Session<Emulation>, picture: &[u16], params: &Params) -> (Detections, bool) {
    let mut out = Detections::default();
    let outcome = session.detect(SMALL, picture, params, &mut out).unwrap();
    (out, outcome.device_nms)
}

/// Whatever runs where, keypoints are those of the host's post-processing of the device's own scores.
#[test]
fn every_radius_and_mode_is_the_hosts_postprocessing() {
    let (mut session, picture) = small_session();
    session.prepare(&[SMALL], &(1..=8).collect::<Vec<_>>()).unwrap();
    let params = |nms_radius| Params { nms_radius, keypoint_threshold: 0.0005, ..Params::default() };
    let mut cases: Vec<Params> = (0..=10).map(params).collect();
    cases.push(Params { postprocess: Postprocess::Upstream, ..params(4) });
    cases.push(Params { max_keypoints: Some(7), ..params(2) });
    cases.push(Params { max_keypoints: None, border_removal_distance: 0, ..params(3) });
    for params in cases {
        let (found, device_nms) = detect(&mut session, &picture, &params);
        let expected_path = (1..=8).contains(&params.nms_radius) && params.postprocess == Postprocess::Package;
        assert_eq!(device_nms, expected_path, "{params:?}");
        let mut expected = Detections::default();
        Extractor::default().find(&session.maps().unwrap(), &params, &mut expected);
        assert!(!expected.is_empty(), "{params:?}: a test of nothing");
        assert_eq!((&found.points, &found.scores), (&expected.points, &expected.scores), "{params:?}");
        let norms = found.descriptors().unwrap().map_axis(ndarray::Axis(1), |row| row.dot(&row).sqrt());
        assert!(norms.iter().all(|norm| (norm - 1.0).abs() < 0.01), "{norms}");
    }
}

/// A picture of one grey level gives the same scores in every cell, and so a survivor every 8 rows of some columns.
#[test]
fn more_survivors_than_the_list_holds_are_left_to_the_host() {
    let params = |keypoint_threshold| Params { keypoint_threshold, max_keypoints: None, ..Params::default() };
    // 8 times 64 rows and more fill a column's list, and fewer do not.
    for (height, threshold, fits) in [(608, 0.0, false), (448, 0.0, true), (608, 0.9, true)] {
        let size = Size::new(height, 64);
        let mut session = Session::new(Emulation::default(), &weights(), size).unwrap();
        session.prepare(&[size], &[4]).unwrap();
        let mut out = Detections::default();
        let grey = bits(&vec![128.0; size.area()]);
        let outcome = session.detect(size, &grey, &params(threshold), &mut out).unwrap();
        assert_eq!(outcome.device_nms, fits, "{height} rows, threshold {threshold}");
        let mut expected = Detections::default();
        Extractor::default().find(&session.maps().unwrap(), &params(threshold), &mut expected);
        assert_eq!((&out.points, &out.scores), (&expected.points, &expected.scores), "{height} rows");
        assert_eq!(out.is_empty(), threshold > 0.5);
    }
}

#[test]
fn the_size_that_was_not_used_for_longest_goes() {
    let (mut session, picture) = small_session();
    let sizes: Vec<Size> = (0..MAX_SIZES).map(|i| Size::new(32 + 16 * i, 48)).collect();
    session.prepare(&sizes, &[4]).unwrap();
    assert_eq!(session.sizes(), sizes);
    let programs = session.device().programs();
    session.prepare(&sizes[..1], &[4]).unwrap();
    assert_eq!(session.device().programs(), programs, "nothing new was compiled");
    session.prepare(&[SMALL], &[]).unwrap();
    let mut expected = sizes[2..].to_vec();
    expected.extend([sizes[0], SMALL]);
    assert_eq!(session.sizes(), expected);
    assert!(!session.is_prepared(sizes[1], &Params::default()));
    assert!(!session.is_prepared(SMALL, &Params { nms_radius: 5, ..Params::default() }));
    assert!(session.is_prepared(SMALL, &Params { nms_radius: 9, ..Params::default() }), "the host's radius");
    assert!(!detect(&mut session, &picture, &Params { keypoint_threshold: 0.0005, ..Params::default() }).0.is_empty());
    // An image uses its size, not only its preparation.
    let plane = vec![0; sizes[2].area()];
    session.detect(sizes[2], &plane, &Params::default(), &mut Detections::default()).unwrap();
    session.prepare(&[Size::new(80, 80)], &[]).unwrap();
    assert!(session.is_prepared(sizes[2], &Params::default()) && !session.is_prepared(sizes[3], &Params::default()));
}

#[test]
fn more_keypoints_than_a_batch_get_their_own_descriptors() {
    let (mut session, picture) = small_session();
    session.prepare(&[SMALL], &[4]).unwrap();
    let params = Params { nms_radius: 0, keypoint_threshold: 0.0, max_keypoints: None, ..Params::default() };
    let (found, _) = detect(&mut session, &picture, &params);
    let mut expected = Detections::default();
    let mut team = Team::new(2).unwrap();
    Extractor::default().extract(&session.maps().unwrap(), &params, &mut team, &mut expected);
    assert!(found.len() > 2 * BATCH && !found.len().is_multiple_of(BATCH), "{}", found.len());
    assert!(found.points == expected.points);
    assert_eq!((found.descriptors.len(), expected.descriptors.len()), (found.len() * 256, found.len() * 256));
    let rows = found.descriptors.chunks(DESCRIPTOR_DIM).zip(expected.descriptors.chunks(DESCRIPTOR_DIM));
    for (index, (ours, theirs)) in rows.enumerate() {
        let cosine: f32 = ours.iter().zip(theirs).map(|(a, b)| a * b).sum();
        assert!(cosine > 0.99, "keypoint {index}: {cosine}");
    }
    let (without, _) = detect(&mut session, &picture, &Params { return_descriptors: false, ..params });
    assert!(without.points == found.points && without.descriptors.is_empty());
}

/// Weights of a run that went wrong have such values; keypoints of them are none.
#[test]
fn values_that_are_not_finite_are_noticed_wherever_they_are() {
    let (_, picture) = small_session();
    let finite = |change: fn(&mut Weights), nms_radius| {
        let mut weights = weights();
        change(&mut weights);
        let mut session = Session::new(Emulation::default(), &weights, SMALL).unwrap();
        session.prepare(&[SMALL], &[4]).unwrap();
        let params = Params { keypoint_threshold: 0.0005, nms_radius, ..Params::default() };
        session.detect(SMALL, &picture, &params, &mut Detections::default()).unwrap().finite
    };
    assert!(finite(|_| (), 4));
    assert!(!finite(|weights| weights.descriptor[1].bias[7] = f32::NAN, 4), "descriptors");
    assert!(!finite(|weights| weights.score[1].bias[7] = f32::NAN, 0), "scores that the host suppresses");
}

#[test]
fn an_image_leaves_nothing_to_the_next() {
    let (mut session, picture) = small_session();
    session.prepare(&[SMALL], &[2, 4]).unwrap();
    let params = |nms_radius| Params { nms_radius, keypoint_threshold: 0.0005, ..Params::default() };
    let other: Vec<u16> = picture.iter().rev().copied().collect();
    let (first, _) = detect(&mut session, &picture, &params(4));
    let (second, _) = detect(&mut session, &other, &params(4));
    assert_ne!(first.points, second.points);
    detect(&mut session, &picture, &params(2));
    let (again, _) = detect(&mut session, &picture, &params(4));
    assert_eq!((&again.points, &again.scores, &again.descriptors), (&first.points, &first.scores, &first.descriptors));
}

#[test]
fn a_replay_is_all_stages_of_an_image() {
    let (mut session, picture) = small_session();
    session.prepare(&[Size::new(40, 48), SMALL], &[2, 4]).unwrap();
    let params = Params { keypoint_threshold: 0.0005, ..Params::default() };
    let (found, _) = detect(&mut session, &picture, &params);
    assert!((1..=1024).contains(&found.len()), "one run of the sampling");
    let stages = session.device().replayed();
    assert_eq!(stages.len(), 4, "resize, network, suppression, sampling");
    session.replay(SMALL, &params, 3).unwrap();
    assert_eq!(session.device().replayed()[4..], stages.repeat(3));
}

/// The emulation is slower than a card, and the machine may have other things to do.
const PATIENT: Deadlines = Deadlines { prepare: Duration::from_secs(600), answer: Duration::from_secs(600) };

fn backend(deadlines: Deadlines, failure: Option<DeviceError>) -> P150Backend {
    backend_with(deadlines, move |device| *device.failure.borrow_mut() = failure)
}

/// A backend whose card is changed by `change` once it is prepared.
fn backend_with(deadlines: Deadlines, change: impl FnOnce(&Emulation) + Send + 'static) -> P150Backend {
    let open = move |_: &dyn Fn(), _: &mut _| {
        let mut session = Session::new(Emulation::default(), &weights(), SMALL).map_err(|error| error.to_string())?;
        session.prepare(&[SMALL], &[4]).map_err(|error| error.to_string())?;
        change(session.device());
        Ok((session, "emulation".to_owned()))
    };
    let (worker, name) = Worker::start(deadlines, open).unwrap();
    P150Backend::with_worker(worker, name, &weights(), SMALL).unwrap()
}

#[test]
fn the_backend_takes_planes_of_any_size_and_depth() {
    let mut backend = backend(PATIENT, None);
    let mut noise = noise(6);
    let params = Params { keypoint_threshold: 0.0005, ..Params::default() };
    let mut detect = |plane: &Plane<'_>| {
        let mut out = Detections::default();
        backend.detect(plane, &params, &mut out).unwrap();
        assert_eq!((out.network, out.original), (SMALL, plane.size()));
        assert!(out.serving_path.traced);
        out
    };
    let mut pixels = |size: Size| (0..size.area()).map(|_| (256.0 * noise()) as u8).collect::<Vec<_>>();
    let (small, other) = (pixels(SMALL), Size::new(100, 130));
    let eight = detect(&Plane::contiguous(&small, SMALL).unwrap());
    // 257 times a level of 8 bits is the same level of 16 bits.
    let wide: Vec<u8> = small.iter().flat_map(|&level| [level, level]).collect();
    let sixteen = detect(&Plane::from_u16(&wide, SMALL, 2 * SMALL.width, 2, crate::Endian::Little).unwrap());
    assert!(!eight.is_empty());
    assert_eq!((eight.points, eight.scores), (sixteen.points, sixteen.scores));
    // Both bytes count, each in its place.
    let high_first: Vec<u8> = small.iter().flat_map(|&level| [level, 255 - level]).collect();
    let low_first: Vec<u8> = small.iter().flat_map(|&level| [255 - level, level]).collect();
    let big = detect(&Plane::from_u16(&high_first, SMALL, 2 * SMALL.width, 2, crate::Endian::Big).unwrap());
    let little = detect(&Plane::from_u16(&low_first, SMALL, 2 * SMALL.width, 2, crate::Endian::Little).unwrap());
    assert!(!big.is_empty());
    assert_eq!((big.points, big.scores), (little.points, little.scores));
    // Resized on the card, and on the host.
    let pixels = pixels(other);
    assert!(!detect(&Plane::contiguous(&pixels, other).unwrap()).is_empty());
    assert!(!detect(&Plane::from_u16(&pixels, Size::new(100, 65), 130, 2, crate::Endian::Big).unwrap()).is_empty());
    // Beyond what the card resizes.
    let long = Size::new(16, 2100);
    detect(&Plane::contiguous(&vec![128; long.area()], long).unwrap());
}

#[test]
fn replays_are_timed_once_an_image_has_been_through() {
    let mut backend = backend(PATIENT, None);
    let params = Params { keypoint_threshold: 0.0005, ..Params::default() };
    let mut noise = noise(7);
    let pixels: Vec<u8> = (0..SMALL.area()).map(|_| (256.0 * noise()) as u8).collect();
    let plane = Plane::contiguous(&pixels, SMALL).unwrap();
    let (mut before, mut after) = (Detections::default(), Detections::default());
    backend.detect(&plane, &params, &mut before).unwrap();
    assert!(backend.replay(SMALL, &params, 3).unwrap() > Duration::ZERO);
    backend.detect(&plane, &params, &mut after).unwrap();
    assert!(!before.is_empty());
    assert_eq!((before.points, before.scores), (after.points, after.scores));
    let error = backend.replay(Size::new(40, 50), &params, 1).unwrap_err().to_string();
    assert!(error.contains("40x50") && error.contains("not prepared"), "{error}");
}

#[test]
fn a_card_that_fails_is_not_asked_again() {
    let failure = DeviceError { operation: "replay trace", reason: "device lost".into() };
    let mut backend = backend(PATIENT, Some(failure));
    let pixels = vec![128; SMALL.area()];
    let plane = Plane::contiguous(&pixels, SMALL).unwrap();
    let mut detect = || backend.detect(&plane, &Params::default(), &mut Detections::default());
    let first = detect().unwrap_err().to_string();
    assert_eq!(first, "the p150 failed: replay trace: device lost");
    let second = detect().unwrap_err();
    assert!(matches!(&second, Error::Device { reason } if reason.contains("restart")), "{second}");
}

/// An orderly end: the card is closed before the process goes on, or ends.
#[test]
fn a_card_that_failed_is_closed() {
    let closed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&closed);
    let mut backend = backend_with(PATIENT, move |device| {
        *device.failure.borrow_mut() = Some(DeviceError { operation: "replay trace", reason: "device lost".into() });
        device.on_close.set(Some(Box::new(move || {
            std::thread::sleep(Duration::from_millis(200));
            seen.store(true, Ordering::Relaxed);
        })));
    });
    let pixels = vec![128; SMALL.area()];
    let plane = Plane::contiguous(&pixels, SMALL).unwrap();
    backend.detect(&plane, &Params::default(), &mut Detections::default()).unwrap_err();
    drop(backend);
    assert!(closed.load(Ordering::Relaxed));
}

/// Kernels of a new size may have to be compiled, which takes longer than an image.
#[test]
fn preparing_has_a_deadline_of_its_own() {
    let mut backend = backend_with(Deadlines { answer: Duration::from_secs(2), ..PATIENT }, |device| {
        device.on_synchronize.set(Some(|| std::thread::sleep(Duration::from_secs(3))));
    });
    let size = Size::new(40, 48);
    let pixels = vec![128; size.area()];
    let plane = Plane::contiguous(&pixels, size).unwrap();
    backend.detect(&plane, &Params::default(), &mut Detections::default()).unwrap();
}

/// Each step of the opening may take as long as preparing does, but not longer.
#[test]
fn a_card_that_hangs_while_it_is_opened_is_given_up() {
    let deadlines = Deadlines { prepare: Duration::from_secs(2), ..PATIENT };
    let open = |steps: u64, seconds| {
        move |step: &dyn Fn(), _: &mut _| {
            (0..steps).for_each(|_| {
                std::thread::sleep(Duration::from_secs(seconds));
                step();
            });
            Err::<(Session<Emulation>, String), _>("this far".to_owned())
        }
    };
    let error = |steps, seconds| Worker::start(deadlines, open(steps, seconds)).unwrap_err().to_string();
    assert!(error(3, 1).contains("this far"));
    assert!(error(1, 5).contains("no answer for 2 s"));
}

#[test]
fn a_card_that_hangs_is_given_up_in_time() {
    let mut backend = backend(Deadlines { answer: Duration::from_millis(1), ..PATIENT }, None);
    let pixels = vec![128; SMALL.area()];
    let plane = Plane::contiguous(&pixels, SMALL).unwrap();
    let error = backend.detect(&plane, &Params::default(), &mut Detections::default()).unwrap_err().to_string();
    assert!(error.contains("no answer") && error.contains("tt-smi -r"), "{error}");
}

#[test]
fn a_card_that_cannot_be_opened_says_why() {
    let open = |_: &dyn Fn(), _: &mut _| Err::<(Session<Emulation>, String), _>("no card is found".to_owned());
    let error = Worker::start(Deadlines::default(), open).unwrap_err().to_string();
    assert_eq!(error, "the p150 failed: no card is found");
}

/// A card that failed may hang when it is closed.
#[test]
fn what_failed_is_told_before_the_card_is_closed() {
    struct Hangs;
    impl Drop for Hangs {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_secs(5));
        }
    }
    let open = |_: &dyn Fn(), card: &mut Option<Box<dyn Any>>| {
        *card = Some(Box::new(Hangs));
        Err::<(Session<Emulation>, String), _>("its maps are wrong".to_owned())
    };
    let deadlines = Deadlines { prepare: Duration::from_secs(2), answer: Duration::from_millis(100) };
    assert!(Worker::start(deadlines, open).unwrap_err().to_string().contains("its maps are wrong"));
}

pub(super) const CONV: Conv2dOptions = Conv2dOptions {
    height: 8,
    width: 8,
    in_channels: 64,
    out_channels: 32,
    kernel: [3, 3],
    stride: [1, 1],
    padding: [1, 1],
    relu: true,
    dram_slices: 0,
    input_layout: Layout::RowMajor,
    input_memory: Memory::Dram,
    output_layout: Layout::Tile,
    output_dtype: DType::Bf16,
    output_memory: Memory::Dram,
    compute: Compute::HIFI2,
};

pub(super) const POOL: MaxPool2dOptions = MaxPool2dOptions {
    height: 8,
    width: 8,
    channels: 64,
    kernel: [3, 1],
    stride: [1, 1],
    padding: [1, 0],
    dram_slices: 0,
    output_memory: Memory::Dram,
};

const BF16: Spec = Spec { shape: [1, 1, 64, 64], dtype: DType::Bf16, layout: Layout::RowMajor, memory: Memory::Dram };

fn refused<T: std::fmt::Debug, E: std::fmt::Display>(what: &str, result: std::result::Result<T, E>) {
    let reason = result.err().unwrap_or_else(|| panic!("{what} was accepted")).to_string();
    eprintln!("{what}: {}", reason.lines().take(4).collect::<Vec<_>>().join(" "));
}

/// What TT-NN refuses by itself, or the shim before it.
fn refuses_what_cannot_work<D: Device>(device: &D) {
    let map = device.allocate(BF16).unwrap();
    let tiles = device.allocate(Spec { layout: Layout::Tile, ..BF16 }).unwrap();
    let wide = device.allocate(Spec { layout: Layout::Tile, shape: [1, 1, 64, 96], ..BF16 }).unwrap();
    let (weights, bias) = (vec![0.5; 32 * 64 * 9], [0.0; 33]);
    let prepare = |options: &Conv2dOptions| device.prepare_conv2d(options, &weights, &bias[..32]);
    device.conv2d(&prepare(&CONV).unwrap(), &map).unwrap();
    device.max_pool2d(&map, &POOL).unwrap();

    // TT-NN takes these weights and reads on behind them.
    refused("half the input channels", device.prepare_conv2d(&CONV, &weights[..32 * 32 * 9], &bias[..32]));
    refused("a bias too long", device.prepare_conv2d(&CONV, &weights, &bias));
    let higher = prepare(&Conv2dOptions { height: 9, ..CONV });
    refused("steps of 0", prepare(&Conv2dOptions { stride: [0, 1], ..CONV }));
    refused("a window of nothing", prepare(&Conv2dOptions { kernel: [3, 0], ..CONV }));
    refused("a window larger than its map", prepare(&Conv2dOptions { height: 1, padding: [0, 1], ..CONV }));
    refused("a convolution to nothing", device.prepare_conv2d(&Conv2dOptions { out_channels: 0, ..CONV }, &[], &[]));
    refused("a pool in steps of 0", device.max_pool2d(&map, &MaxPool2dOptions { stride: [1, 0], ..POOL }));
    refused("another height", higher.and_then(|conv| device.conv2d(&conv, &map)));
    let large = prepare(&Conv2dOptions { height: 1080, width: 1920, ..CONV });
    let large_map = device.allocate(Spec { shape: [1, 1, 1080 * 1920, 64], ..BF16 });
    refused("a map larger than L1", large.and_then(|conv| device.conv2d(&conv, &large_map?)));
    refused("padding beyond half the window", device.max_pool2d(&map, &MaxPool2dOptions { padding: [2, 0], ..POOL }));
    refused("a pool in fp32", device.max_pool2d(&device.typecast(&map, DType::F32).unwrap(), &POOL));
    refused("a slice beyond the end", device.slice(&map, [0; 4], [1, 1, 64, 65]));
    refused("another volume", device.reshape(&map, [1, 1, 64, 65]));
    refused("eq of other shapes", device.eq(&tiles, &wide));
    refused("top-k of fp32", device.topk(&device.typecast(&tiles, DType::F32).unwrap(), 64));
    refused("too large a k", device.topk(&tiles, 65));
    refused("a product of integers", device.matmul(&tiles, &tiles, Compute::HIFI2, DType::U16));
    refused("a typecast to integers", device.typecast(&tiles, DType::U16));
    refused("indices that are no integers", device.gather(&tiles, &tiles));
    refused("reading tiles", device.read(&tiles, &mut [0; 4096]));
}

/// What a card must refuse, and what TT-NN takes although it should not.
#[test]
fn the_emulation_refuses_what_the_card_would() {
    let device = Emulation::default();
    refuses_what_cannot_work(&device);

    let map = device.allocate(BF16).unwrap();
    let tiles = device.allocate(Spec { layout: Layout::Tile, ..BF16 }).unwrap();
    let conv = device.prepare_conv2d(&CONV, &[0.0; 32 * 64 * 9], &[0.0; 32]).unwrap();
    refused("another layout", device.conv2d(&conv, &tiles));
    refused("a slice through tiles", device.slice(&tiles, [0, 0, 1, 0], [1, 1, 64, 64]));
    refused("a reshape through tiles", device.reshape(&tiles, [1, 1, 128, 32]));
    refused("row-major eq", device.eq(&map, &map));
    refused("eq of two formats", device.eq(&tiles, &device.typecast(&tiles, DType::F32).unwrap()));
    refused("tiles as a table", device.embedding(&map, &tiles));

    device.max_pool2d(&map, &POOL).unwrap();
    let wider = MaxPool2dOptions { kernel: [5, 1], padding: [2, 0], ..POOL };
    refused("compiling in a trace", device.record(|| device.max_pool2d(&map, &wider)));
    refused("writing in a trace", device.record(|| device.write(&map, &[0; 4096])));
    refused("allocating in a trace", device.record(|| device.allocate(BF16)));
}

/// Traces replay on the memory that they were recorded with, whoever has it by then.
#[test]
fn the_emulation_refuses_what_traces_may_have_overwritten() {
    let device = Emulation::default();
    let map = device.allocate(BF16).unwrap();
    device.write(&map, &[0; 4096]).unwrap();
    let pool = |map: &_| device.max_pool2d(map, &POOL);
    pool(&map).unwrap();
    let mut values = vec![0; 4096];
    let (first, inside) = device.record(|| pool(&map)).unwrap();
    let (second, output) = device.record(|| pool(&inside)).unwrap();
    refused("running beside a trace", pool(&map));
    refused("allocating beside a trace", device.allocate(BF16));
    refused("reading before a replay", device.read(&output, &mut values));
    for trace in [&first, &second] {
        device.replay(trace).unwrap();
    }
    device.read(&output, &mut values).unwrap();
    device.read(&inside, &mut values).unwrap();
    device.replay(&first).unwrap();
    refused("what an earlier trace may overwrite", device.read(&output, &mut values));
    device.replay(&second).unwrap();
    device.read(&output, &mut values).unwrap();
    drop(inside);
    device.replay(&first).unwrap();
    refused("what only traces hold", device.replay(&second));
    drop((first, second));
    assert!(pool(&map).is_ok());
}

/// By hand, in a process of its own:
/// `TTSP_LIBRARY=... TT_METAL_SLOW_DISPATCH_MODE=1 cargo test -p tt_backend a_mock_card_refuses -- --ignored --nocapture`.
#[test]
#[ignore = "needs TT-NN and libttsp.so"]
fn a_mock_card_refuses_the_same() {
    let library = Library::load().unwrap();
    library.mock().unwrap();
    refused("no L1 for configuration", library.open(&DeviceOptions { l1_small_bytes: 0, ..DeviceOptions::default() }));
    refused("three queues", library.open(&DeviceOptions { queues: 3, ..DeviceOptions::default() }));
    let device = library.open(&DeviceOptions::default()).unwrap();
    refused("more elements than can be counted", device.allocate(Spec { shape: [1 << 20; 4], ..BF16 }));
    let larger_than_dram = Spec { shape: [1, 1, 1 << 20, 1 << 16], ..BF16 };
    refused("a tensor larger than DRAM", device.allocate(larger_than_dram));
    let map = device.allocate(BF16).unwrap();
    refused("a queue that was not opened", device.write(1, &map, &[0u16; 4096]));
    refuses_what_cannot_work(&Ttnn::new(device));
}

#[test]
fn the_network_takes_any_frame_of_whole_tiles() {
    let device = Emulation::default();
    for size in [Size::new(32, 64), SMALL] {
        let frame = device.allocate(plane_spec(size, size)).unwrap();
        let outputs = Network::new(&device, &weights(), size).unwrap().run(&device, &frame).unwrap();
        assert_eq!(device.spec(&outputs.descriptors).shape, [1, 1, size.cells().area(), 256]);
    }
}
