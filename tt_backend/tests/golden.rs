//! The whole crate against `transformers` on PyTorch and against Pillow.
//!
//! `tests/golden/README.md` says what the fixtures are and how they are made. The last tests damage the network and
//! the resize on purpose and demand that the comparison notices.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use half::f16;
use ndarray::{Array1, Array4};
use safetensors::SafeTensors;
use tt_backend::cpu::Network;
use tt_backend::maps::Maps;
use tt_backend::resize::Resizer;
use tt_backend::team::Team;
use tt_backend::weights::{Conv, Provenance, Weights};
use tt_backend::{BackendChoice, Detections, Detector, Endian, Options, Params, Plane, Postprocess, Size};

/// The largest difference of a score that counts as equal.
const SCORE_TOLERANCE: f32 = 1e-4;
/// The largest 1 - cosine between two descriptors that count as equal.
const COSINE_TOLERANCE: f32 = 1e-4;

type Comparison = Result<(), String>;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A picture of the fixtures: its size and its 8-bit samples.
fn photo(name: &str) -> (Size, Vec<u8>) {
    let file = std::io::BufReader::new(fs::File::open(golden(name)).expect("the fixture is there"));
    let mut reader = png::Decoder::new(file).read_info().expect("a PNG");
    let mut pixels = vec![0; reader.output_buffer_size().expect("small")];
    let info = reader.next_frame(&mut pixels).expect("a whole PNG");
    assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Grayscale, png::BitDepth::Eight));
    (Size::new(info.height as usize, info.width as usize), pixels)
}

/// One file of `make_case` in make_golden.py.
struct Case {
    size: Size,
    stride: usize,
    params: Params,
    /// Scores at every `stride`-th pixel.
    scores: Vec<f32>,
    /// Descriptors of every `stride`-th cell.
    cells: Vec<f32>,
    upstream: Keypoints,
    package: Keypoints,
    /// Which of the upstream keypoints have descriptors, and these.
    descriptors: Vec<(usize, Vec<f32>)>,
}

struct Keypoints {
    points: Vec<[u16; 2]>,
    scores: Vec<f32>,
}

impl Case {
    fn load(name: &str) -> Self {
        let bytes = fs::read(golden(name)).expect("the fixture is there");
        let file = SafeTensors::deserialize(&bytes).expect("a fixture");
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a fixture");
        let entries = header.metadata().clone().expect("the case's parameters");
        let entry = |key: &str| entries[key].parse::<f32>().expect("a number");
        let keypoints = |mode: &str| Keypoints {
            points: numbers(&file, &format!("{mode}_points"))
                .chunks_exact(2)
                .map(|pair| [pair[0] as u16, pair[1] as u16])
                .collect(),
            scores: numbers(&file, &format!("{mode}_scores")),
        };
        let rows = numbers(&file, "descriptors");
        Self {
            size: Size::new(entry("height") as usize, entry("width") as usize),
            stride: entry("stride") as usize,
            params: Params {
                max_keypoints: None,
                keypoint_threshold: entry("keypoint_threshold"),
                nms_radius: entry("nms_radius") as usize,
                border_removal_distance: entry("border_removal_distance") as usize,
                ..Params::default()
            },
            scores: numbers(&file, "scores"),
            cells: numbers(&file, "cells"),
            upstream: keypoints("upstream"),
            package: keypoints("package"),
            descriptors: numbers(&file, "descriptor_index")
                .into_iter()
                .map(|index| index as usize)
                .zip(rows.chunks_exact(256).map(<[f32]>::to_vec))
                .collect(),
        }
    }
}

/// A tensor of any of the fixtures' number formats; all values are small enough for f32.
fn numbers(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    use safetensors::Dtype;
    let tensor = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let data = tensor.data();
    match tensor.dtype() {
        Dtype::F32 => data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Dtype::F16 => data.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dtype::U32 => data.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32).collect(),
        Dtype::U16 => data.chunks_exact(2).map(|b| f32::from(u16::from_le_bytes([b[0], b[1]]))).collect(),
        Dtype::U8 => data.iter().copied().map(f32::from).collect(),
        other => panic!("{name} is {other}"),
    }
}

/// Output `index` of SplitMix64 from state `seed`.
fn splitmix64(seed: u64, index: usize) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(index as u64 + 1));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// `random_weights` of make_golden.py, bit by bit.
fn random_weights(seed: u64) -> Weights {
    let half = (1i64 << 23) as f64;
    let conv = |index: u64, input: usize, output: usize, kernel: usize, gain: f64| {
        let fan_in = input * kernel * kernel;
        let draw = |tensor: u64, at: usize| {
            ((splitmix64(seed.wrapping_add(tensor << 32), at) >> 40) as i64 - (1 << 23)) as f64
        };
        let scale = gain * (6.0 / fan_in as f64).sqrt() / half;
        let mut weight = Vec::with_capacity(output * fan_in);
        for channel in 0..output {
            let kernel: Vec<f64> = (0..fan_in).map(|at| draw(2 * index, channel * fan_in + at)).collect();
            let mean = kernel.iter().sum::<f64>() / fan_in as f64;
            weight.extend(kernel.iter().map(|value| ((value - mean) * scale) as f32));
        }
        let bias = (0..output).map(|at| (draw(2 * index + 1, at) * (0.05 / half)) as f32);
        Conv {
            weight: Array4::from_shape_vec([output, input, kernel, kernel], weight).expect("the right length"),
            bias: Array1::from_iter(bias),
        }
    };
    Weights {
        encoder: [
            conv(0, 1, 64, 3, 1.0),
            conv(1, 64, 64, 3, 1.0),
            conv(2, 64, 64, 3, 1.0),
            conv(3, 64, 64, 3, 1.0),
            conv(4, 64, 128, 3, 1.0),
            conv(5, 128, 128, 3, 1.0),
            conv(6, 128, 128, 3, 1.0),
            conv(7, 128, 128, 3, 1.0),
        ],
        score: [conv(8, 128, 256, 3, 1.0), conv(9, 256, 65, 1, 3.0)],
        descriptor: [conv(10, 128, 256, 3, 1.0), conv(11, 256, 256, 1, 1.0)],
        provenance: Provenance { name: "random".into(), revision: None, sha256: String::new(), path: None },
    }
}

/// The largest of differences; NaN if there is one.
fn largest(differences: impl Iterator<Item = f32>) -> f32 {
    differences.map(f32::abs).max_by(f32::total_cmp).unwrap_or(0.0)
}

/// Fails if `what` is over the tolerance, or NaN.
fn within(difference: f32, tolerance: f32, what: impl FnOnce() -> String) -> Comparison {
    if difference <= tolerance { Ok(()) } else { Err(format!("{} is off by {difference}", what())) }
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    (dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()) as f32
}

/// Everything that the case has to say, on `plane`, which is resized to the case's size first.
fn compare(weights: &Weights, case: &Case, plane: &Plane<'_>) -> Comparison {
    compare_maps(weights, case, plane)?;

    let options = Options { backend: BackendChoice::Cpu, network: case.size, ..Options::default() };
    let mut detector = Detector::with_weights(weights, &options).map_err(|error| error.to_string())?;
    let mut detect = |postprocess| {
        let params = Params { postprocess, ..case.params.clone() };
        detector.detect(plane, &params).map_err(|error| error.to_string())
    };
    let upstream = detect(Postprocess::Upstream)?;
    compare_keypoints("upstream", &upstream, &case.upstream)?;
    compare_descriptors(&upstream, case)?;
    compare_keypoints("package", &detect(Postprocess::Package)?, &case.package)
}

/// The network's two outputs, where the case has them.
fn compare_maps(weights: &Weights, case: &Case, plane: &Plane<'_>) -> Comparison {
    let mut frame = Vec::new();
    Resizer::new(case.size).resize(plane, &mut Team::new(2).map_err(|error| error.to_string())?, &mut frame);
    let mut maps = Maps::new(case.size);
    let mut network = Network::new(weights, case.size, 0).map_err(|error| error.to_string())?;
    network.forward(&frame, true, &mut maps);

    if maps.scores.len().div_ceil(case.stride) != case.scores.len() {
        return Err(format!("{} scores", maps.scores.len()));
    }
    let scores = largest(maps.scores.iter().step_by(case.stride).zip(&case.scores).map(|(a, b)| a - b));
    let cells = maps.descriptors.chunks_exact(256).step_by(case.stride).zip(case.cells.chunks_exact(256));
    let cells = largest(cells.map(|(a, b)| 1.0 - cosine(a, b)));
    eprintln!("scores differ by at most {scores:.1e}, cosines of cells from 1 by {cells:.1e}");
    within(scores, SCORE_TOLERANCE, || "a score of the map".into())?;
    within(cells, COSINE_TOLERANCE, || "the cosine of a cell's descriptors".into())
}

/// The same set of keypoints, equal scores, and our order.
fn compare_keypoints(mode: &str, ours: &Detections, theirs: &Keypoints) -> Comparison {
    let set = |points: &[[u16; 2]]| points.iter().copied().collect::<BTreeSet<_>>();
    let (our_set, their_set) = (set(&ours.points), set(&theirs.points));
    if our_set != their_set || our_set.len() != ours.points.len() {
        let first: Vec<_> = our_set.symmetric_difference(&their_set).take(5).collect();
        let count = our_set.symmetric_difference(&their_set).count();
        return Err(format!("{mode}: {count} of {} keypoints are not the same, such as {first:?}", their_set.len()));
    }
    let order = |(&[x, y], &score): (&[u16; 2], &f32)| (std::cmp::Reverse(score.to_bits()), y, x);
    if !ours.points.iter().zip(&ours.scores).map(order).is_sorted() {
        return Err(format!("{mode}: keypoints are not in the order of score, row, column"));
    }
    // In our order equal keypoints may lie a little apart where scores are almost equal.
    let ours: std::collections::HashMap<_, _> = ours.points.iter().zip(&ours.scores).collect();
    let worst = largest(theirs.points.iter().zip(&theirs.scores).map(|(point, score)| ours[point] - score));
    eprintln!("{mode}: {} keypoints, scores differ by at most {worst:.1e}", theirs.points.len());
    within(worst, SCORE_TOLERANCE, || format!("{mode}: a keypoint's score"))
}

/// The descriptors of the upstream keypoints that have one in the case.
fn compare_descriptors(ours: &Detections, case: &Case) -> Comparison {
    let rows = ours.descriptors().ok_or("no descriptors")?;
    let position: std::collections::HashMap<_, _> = ours.points.iter().enumerate().map(|(i, p)| (p, i)).collect();
    let mut worst = 0.0f32;
    for (index, theirs) in &case.descriptors {
        let point = case.upstream.points[*index];
        let row = rows.row(position[&point]).to_vec();
        let norm = row.iter().map(|value| value * value).sum::<f32>().sqrt();
        within((norm - 1.0).abs(), 1e-5, || format!("the norm of the descriptor at {point:?}"))?;
        let distance = (1.0 - cosine(&row, theirs)).abs();
        within(distance, COSINE_TOLERANCE, || format!("the cosine of the descriptor at {point:?}"))?;
        worst = worst.max(distance);
    }
    eprintln!("{} descriptors, cosines from 1 by at most {worst:.1e}", case.descriptors.len());
    Ok(())
}

#[track_caller]
fn agrees(weights: &Weights, case: &str, picture: &str) {
    let (size, pixels) = photo(picture);
    let plane = Plane::contiguous(&pixels, size).expect("a photo");
    compare(weights, &Case::load(case), &plane).unwrap_or_else(|reason| panic!("{case}: {reason}"));
}

fn bundled() -> Weights {
    Weights::bundled().expect("the bundled weights are whole")
}

#[test]
fn bundled_weights_on_a_photo_agree_with_transformers() {
    agrees(&bundled(), "bundled_640x480.safetensors", "astronaut_640x480.png");
}

#[test]
fn a_reduced_photo_agrees_with_pillow_and_transformers() {
    agrees(&bundled(), "bundled_320x240.safetensors", "astronaut_512x512.png");
}

#[test]
fn a_photo_resized_to_the_network_frame_agrees_with_pillow_and_transformers() {
    agrees(&bundled(), "bundled_640x480.safetensors", "astronaut_512x512.png");
}

#[test]
fn random_weights_agree_with_transformers() {
    agrees(&random_weights(2), "random_640x480.safetensors", "astronaut_640x480.png");
}

#[test]
fn descriptors_agree_at_every_edge() {
    let (size, pixels) = photo("astronaut_640x480.png");
    let case = Case::load("edges_64x48.safetensors");
    let part = Plane::from_u8(&pixels[100 * size.width + 240..], case.size, size.width, 1).expect("inside");
    compare(&random_weights(2), &case, &part).expect("agreement");
}

#[test]
fn max_keypoints_keeps_the_best_in_both_modes() {
    let (size, pixels) = photo("astronaut_640x480.png");
    let plane = Plane::contiguous(&pixels, size).expect("a photo");
    let case = Case::load("bundled_640x480.safetensors");
    let options = Options { backend: BackendChoice::Cpu, ..Options::default() };
    let mut detector = Detector::with_weights(&bundled(), &options).expect("the CPU is always there");
    for (postprocess, theirs) in [(Postprocess::Upstream, &case.upstream), (Postprocess::Package, &case.package)] {
        for count in [0, 1, 500] {
            // The cut is at a gap between scores, so that rounding cannot decide it.
            let count = (count..).find(|&n| n == 0 || theirs.scores[n - 1] - theirs.scores[n] > 1e-5).expect("a gap");
            let params = Params { max_keypoints: Some(count), postprocess, ..case.params.clone() };
            let best = Keypoints { points: theirs.points[..count].to_vec(), scores: theirs.scores[..count].to_vec() };
            compare_keypoints("best", &detector.detect(&plane, &params).expect("runs"), &best).expect("agreement");
        }
    }
}

/// Each size of the resize fixture, with Pillow's values.
fn resizes() -> Vec<(Size, bool, Vec<f32>)> {
    let bytes = fs::read(golden("resize.safetensors")).expect("the fixture is there");
    let file = SafeTensors::deserialize(&bytes).expect("a fixture");
    let mut sizes: Vec<_> = file
        .names()
        .into_iter()
        .map(|name| {
            let deep = name.ends_with("_16bit");
            let (width, height) = name.trim_end_matches("_16bit").split_once('x').expect("WxH");
            let size = Size::new(height.parse().expect("a number"), width.parse().expect("a number"));
            (size, deep, numbers(&file, name))
        })
        .collect();
    sizes.sort_by_key(|(size, deep, _)| (size.height, size.width, *deep));
    sizes
}

fn noise(size: Size, shift: u32) -> impl Iterator<Item = u64> {
    let seed = (size.width * 65536 + size.height) as u64;
    (0..size.height * size.width).map(move |index| splitmix64(seed, index) >> shift)
}

/// The largest difference in grey levels and the share of pixels that are exactly Pillow's.
fn against_pillow(frame: &[f32], theirs: &[f32]) -> (f32, f64) {
    let differences: Vec<f32> =
        frame.iter().step_by(37).zip(theirs).map(|(ours, theirs)| (ours * 255.0 - theirs).abs()).collect();
    assert_eq!(frame.len().div_ceil(37), theirs.len());
    // A level is 1; scaling to 0..1 and back costs some 1e-5.
    let exact = differences.iter().filter(|&&difference| difference < 1e-3).count();
    (largest(differences.iter().copied()), exact as f64 / differences.len() as f64)
}

#[test]
fn resize_is_pillows() {
    let mut compared = 0;
    let mut team = Team::new(3).expect("threads");
    for (size, deep, theirs) in resizes() {
        let mut frame = Vec::new();
        if deep {
            let samples: Vec<u8> = noise(size, 48).flat_map(|value| (value as u16).to_be_bytes()).collect();
            let plane = Plane::from_u16(&samples, size, 2 * size.width, 2, Endian::Big).expect("noise");
            let mut resizer = Resizer::new(Size::NETWORK);
            resizer.resize(&plane, &mut team, &mut frame);
            assert_eq!(resizer.levels(&plane, &mut team), None, "{size}: levels are too coarse for 16 bits");
            let worst = largest(frame.iter().step_by(37).zip(&theirs).map(|(a, b)| a - b));
            eprintln!("{size} 16 bit: differs by at most {worst:.1e}");
            assert!(worst < 2e-6, "{size} 16 bit: {worst}");
        } else {
            let samples: Vec<u8> = noise(size, 56).map(|value| value as u8).collect();
            let plane = Plane::contiguous(&samples, size).expect("noise");
            let mut resizer = Resizer::new(Size::NETWORK);
            resizer.resize(&plane, &mut team, &mut frame);
            let levels = resizer.levels(&plane, &mut team).expect("8 bits");
            let as_resized = Plane::contiguous(&levels, Size::NETWORK).expect("the frame's size");
            let mut again = Vec::new();
            resizer.resize(&as_resized, &mut team, &mut again);
            assert!(frame == again, "{size}: resized ahead, it is another frame");
            let (worst, exact) = against_pillow(&frame, &theirs);
            assert!(exact == 1.0, "{size}: {worst} levels, exact at {:.2} %", 100.0 * exact);
        }
        compared += 1;
    }
    assert_eq!(compared, 20);
}

/// Plain bilinear interpolation at pixel centres, without antialiasing: what the resize must not be.
fn without_antialiasing(pixels: &[u8], size: Size, target: Size) -> Vec<u8> {
    let axis = |at: usize, from: usize, to: usize| {
        let position = ((at as f64 + 0.5) * from as f64 / to as f64 - 0.5).clamp(0.0, (from - 1) as f64);
        let low = position.floor() as usize;
        (low, (low + 1).min(from - 1), position.fract())
    };
    let mut out = Vec::with_capacity(target.height * target.width);
    for y in 0..target.height {
        let (top, bottom, v) = axis(y, size.height, target.height);
        for x in 0..target.width {
            let (left, right, u) = axis(x, size.width, target.width);
            let at = |y: usize, x: usize| f64::from(pixels[y * size.width + x]);
            let above = at(top, left) * (1.0 - u) + at(top, right) * u;
            let below = at(bottom, left) * (1.0 - u) + at(bottom, right) * u;
            out.push((above * (1.0 - v) + below * v).round() as u8);
        }
    }
    out
}

#[test]
fn a_resize_without_antialiasing_is_noticed() {
    for (size, deep, theirs) in resizes() {
        // Where next to nothing is reduced, next to nothing depends on antialiasing.
        let reduces = size.width >= 960 || size.height >= 720;
        if deep || !reduces {
            continue;
        }
        let samples: Vec<u8> = noise(size, 56).map(|value| value as u8).collect();
        let frame = without_antialiasing(&samples, size, Size::NETWORK);
        let frame: Vec<f32> = frame.iter().map(|&value| f32::from(value) / 255.0).collect();
        let (worst, exact) = against_pillow(&frame, &theirs);
        assert!(worst > 10.0 && exact < 0.5, "{size}: {worst} levels, exact at {exact}");
    }

    let (size, pixels) = photo("astronaut_512x512.png");
    let case = Case::load("bundled_320x240.safetensors");
    let frame = without_antialiasing(&pixels, size, case.size);
    let plane = Plane::contiguous(&frame, case.size).expect("a frame");
    let reason = compare(&bundled(), &case, &plane).expect_err("antialiasing is missing");
    eprintln!("{reason}");
}

/// Every layer, so that it can be changed.
fn layers(weights: &mut Weights) -> Vec<&mut Conv> {
    weights.encoder.iter_mut().chain(&mut weights.score).chain(&mut weights.descriptor).collect()
}

/// Which comparison notices it, for the small photo with the bundled weights.
fn damage_is_noticed(what: &str, damage: impl Fn(&mut [&mut Conv])) {
    let (size, pixels) = photo("astronaut_512x512.png");
    let plane = Plane::contiguous(&pixels, size).expect("a photo");
    let mut weights = bundled();
    damage(&mut layers(&mut weights));
    match compare(&weights, &Case::load("bundled_320x240.safetensors"), &plane) {
        Err(reason) => eprintln!("{what}: {reason}"),
        Ok(()) => panic!("{what} was not noticed"),
    }
}

#[test]
fn two_swapped_layers_are_noticed() {
    let shapes: Vec<_> = layers(&mut bundled()).iter().map(|conv| conv.weight.dim()).collect();
    let mut swaps = 0;
    for a in 0..shapes.len() {
        for b in a + 1..shapes.len() {
            if shapes[a] == shapes[b] {
                damage_is_noticed(&format!("layers {a} and {b} swapped"), |layers| {
                    let (low, high) = layers.split_at_mut(b);
                    std::mem::swap(low[a], high[0]);
                });
                swaps += 1;
            }
        }
    }
    // Three of 64 to 64 channels, three of 128 to 128, the first of both heads.
    assert_eq!(swaps, 3 + 3 + 1);
}

#[test]
fn one_changed_layer_is_noticed() {
    for layer in 0..12 {
        damage_is_noticed(&format!("layer {layer} zeroed"), |layers| layers[layer].weight.fill(0.0));
        damage_is_noticed(&format!("layer {layer} without bias"), |layers| layers[layer].bias.fill(0.0));
        damage_is_noticed(&format!("layer {layer} mirrored"), |layers| {
            // Convolution instead of cross-correlation; a 1x1 kernel is turned over by its channels.
            let axis = if layers[layer].weight.dim().2 == 1 { ndarray::Axis(1) } else { ndarray::Axis(3) };
            layers[layer].weight.invert_axis(axis);
        });
    }
}
