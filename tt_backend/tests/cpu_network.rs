//! The CPU network against a plain convolution in f64, for every instruction set of this machine.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use ndarray::Array4;
use tt_backend::cpu::{InstructionSet, Network};
use tt_backend::maps::Maps;
use tt_backend::weights::{Conv, Weights};
use tt_backend::{Error, Size};

/// A map `[channel][row][column]`.
struct Map {
    channels: usize,
    size: Size,
    values: Vec<f64>,
}

/// Same-padded convolution by its definition.
fn convolve(input: &Map, conv: &Conv, relu: bool) -> Map {
    let (outputs, inputs, kernel, _) = conv.weight.dim();
    assert_eq!(inputs, input.channels);
    let Size { height, width } = input.size;
    let half = kernel / 2;
    let mut values = Vec::with_capacity(outputs * height * width);
    for o in 0..outputs {
        let mut plane = vec![f64::from(conv.bias[o]); height * width];
        for i in 0..inputs {
            let from = &input.values[i * height * width..][..height * width];
            for ky in 0..kernel {
                for kx in 0..kernel {
                    let weight = f64::from(conv.weight[[o, i, ky, kx]]);
                    for y in half.saturating_sub(ky)..(height + half - ky).min(height) {
                        let (first, last) = (half.saturating_sub(kx), (width + half - kx).min(width));
                        let source = &from[(y + ky - half) * width..][first + kx - half..last + kx - half];
                        for (to, from) in plane[y * width..][first..last].iter_mut().zip(source) {
                            *to += weight * from;
                        }
                    }
                }
            }
        }
        values.extend(plane.into_iter().map(|v| if relu { v.max(0.0) } else { v }));
    }
    Map { channels: outputs, size: input.size, values }
}

fn max_pool(input: &Map) -> Map {
    let size = Size::new(input.size.height / 2, input.size.width / 2);
    let mut values = Vec::new();
    for plane in input.values.chunks_exact(input.size.height * input.size.width) {
        for y in 0..size.height {
            for x in 0..size.width {
                let at = |dy: usize, dx: usize| plane[(2 * y + dy) * input.size.width + 2 * x + dx];
                values.push(at(0, 0).max(at(0, 1)).max(at(1, 0)).max(at(1, 1)));
            }
        }
    }
    Map { channels: input.channels, size, values }
}

/// Scores and descriptors of the whole network, laid out as in [`Maps`].
fn reference(weights: &Weights, frame: &[f32], size: Size) -> (Vec<f64>, Vec<f64>) {
    let mut map = Map { channels: 1, size, values: frame.iter().map(|&v| f64::from(v)).collect() };
    for (index, conv) in weights.encoder.iter().enumerate() {
        map = convolve(&map, conv, true);
        if matches!(index, 1 | 3 | 5) {
            map = max_pool(&map);
        }
    }
    let head = |convs: &[Conv; 2]| convolve(&convolve(&map, &convs[0], true), &convs[1], false);
    let (logits, raw) = (head(&weights.score), head(&weights.descriptor));
    let cells = map.size.height * map.size.width;
    let mut scores = vec![0.0; size.height * size.width];
    let mut descriptors = vec![0.0; cells * 256];
    for cell in 0..cells {
        let column: Vec<f64> = (0..65).map(|k| logits.values[k * cells + cell].exp()).collect();
        let sum: f64 = column.iter().sum();
        let (cy, cx) = (cell / map.size.width, cell % map.size.width);
        for (k, value) in column[..64].iter().enumerate() {
            scores[(8 * cy + k / 8) * size.width + 8 * cx + k % 8] = value / sum;
        }
        let column: Vec<f64> = (0..256).map(|c| raw.values[c * cells + cell]).collect();
        let norm = column.iter().map(|v| v * v).sum::<f64>().sqrt();
        for (c, value) in column.iter().enumerate() {
            descriptors[cell * 256 + c] = value / norm;
        }
    }
    (scores, descriptors)
}

/// Largest score error and smallest cosine.
fn compare(maps: &Maps, scores: &[f64], descriptors: &[f64]) -> (f64, f64) {
    assert_eq!((maps.scores.len(), maps.descriptors.len()), (scores.len(), descriptors.len()));
    let error = maps.scores.iter().zip(scores).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
    let cosine = |(a, b): (&[f32], &[f64])| {
        let dot: f64 = a.iter().zip(b).map(|(&a, b)| f64::from(a) * b).sum();
        let norm: f64 = a.iter().map(|&a| f64::from(a).powi(2)).sum::<f64>().sqrt();
        assert!((norm - 1.0).abs() < 1e-6, "norm {norm}");
        dot / norm
    };
    let cosines = maps.descriptors.chunks_exact(256).zip(descriptors.chunks_exact(256)).map(cosine);
    (error, cosines.fold(1.0, f64::min))
}

/// Smooth shapes with edges and some noise, repeatable.
fn picture(size: Size) -> Vec<f32> {
    let mut state = 1u32;
    (0..size.height * size.width)
        .map(|i| {
            let (y, x) = ((i / size.width) as f32, (i % size.width) as f32);
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = (state >> 8) as f32 / (1u32 << 24) as f32;
            let square = if (x / 13.0) as u32 % 2 == (y / 17.0) as u32 % 2 { 0.7 } else { 0.1 };
            (square + 0.2 * (x * 0.05 + y * 0.03).sin().abs() + 0.1 * noise).clamp(0.0, 1.0)
        })
        .collect()
}

/// The bundled weights' shapes with noise in them, scaled so that activations keep their size.
fn random_weights() -> Weights {
    let mut weights = Weights::bundled().unwrap();
    let mut state = 7u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let heads = weights.score.iter_mut().chain(&mut weights.descriptor);
    for conv in weights.encoder.iter_mut().chain(heads) {
        let (outputs, inputs, height, width) = conv.weight.dim();
        let scale = (6.0 / (inputs * height * width) as f32).sqrt();
        conv.weight = Array4::from_shape_fn((outputs, inputs, height, width), |_| scale * noise());
        conv.bias.mapv_inplace(|_| 0.1 * noise());
    }
    weights
}

fn run(weights: &Weights, frame: &[f32], size: Size, threads: usize, instructions: InstructionSet) -> Maps {
    let mut maps = Maps::new(size);
    Network::with_instructions(weights, size, threads, instructions).unwrap().forward(frame, true, &mut maps);
    maps
}

#[test]
fn every_instruction_set_agrees_with_f64() {
    // Cell counts that are odd, smaller than a tile, and neither a multiple of a tile nor of a block.
    let sizes = [Size::new(16, 16), Size::new(24, 40), Size::new(56, 136), Size::new(120, 160)];
    for (name, weights) in [("bundled", Weights::bundled().unwrap()), ("random", random_weights())] {
        for size in sizes {
            let frame = picture(size);
            let (scores, descriptors) = reference(&weights, &frame, size);
            for instructions in InstructionSet::available() {
                let maps = run(&weights, &frame, size, 2, instructions);
                let (error, cosine) = compare(&maps, &scores, &descriptors);
                let case = format!("{name} weights, {size}, {}", instructions.name());
                println!("{case}: score error {error:.1e}, 1 - cosine {:.1e}", 1.0 - cosine);
                assert!(error <= 2e-5, "{case}: score error {error}");
                assert!(cosine >= 0.99999, "{case}: cosine {cosine}");
            }
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let weights = Weights::bundled().unwrap();
    let size = Size::new(120, 168);
    let frame = picture(size);
    for instructions in InstructionSet::available() {
        let one = run(&weights, &frame, size, 1, instructions);
        for threads in [2, 3, 5] {
            let more = run(&weights, &frame, size, threads, instructions);
            assert!(one.scores == more.scores && one.descriptors == more.descriptors, "{threads} threads");
        }
    }
}

#[test]
fn frames_do_not_leave_traces() {
    let weights = Weights::bundled().unwrap();
    let size = Size::new(72, 104);
    let (first, second) = (picture(size), vec![0.5; size.height * size.width]);
    let mut network = Network::new(&weights, size, 2).unwrap();
    let mut maps = Maps::new(size);
    network.forward(&first, true, &mut maps);
    network.forward(&second, true, &mut maps);
    let fresh = run(&weights, &second, size, 2, network.instructions());
    assert!(maps.scores == fresh.scores && maps.descriptors == fresh.descriptors);
}

#[test]
fn descriptors_are_left_alone_when_not_asked_for() {
    let weights = Weights::bundled().unwrap();
    let size = Size::new(64, 64);
    let frame = picture(size);
    let mut network = Network::new(&weights, size, 1).unwrap();
    let (mut with, mut without) = (Maps::new(size), Maps::new(size));
    network.forward(&frame, true, &mut with);
    network.forward(&frame, false, &mut without);
    assert_eq!(with.scores, without.scores);
    assert!(without.descriptors.is_empty());
}

#[test]
fn profile_names_every_stage_once() {
    let weights = Weights::bundled().unwrap();
    let size = Size::new(64, 64);
    let frame = picture(size);
    let mut network = Network::new(&weights, size, 2).unwrap();
    let mut maps = Maps::new(size);
    let profile = network.forward_profiled(&frame, true, &mut maps);
    let nominal: u64 = profile.iter().map(|stage| stage.nominal_macs).sum();
    assert_eq!(profile.len(), 10);
    // 26.05 G multiply-adds for 480 x 640 by the layers' shapes, in proportion.
    assert_eq!(nominal, 26_051_788_800 / (480 * 640 / (64 * 64)));
    assert_eq!(network.forward_profiled(&frame, false, &mut maps).len(), 9);
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let weights = Weights::bundled().unwrap();
    for size in [Size::new(0, 64), Size::new(8, 64), Size::new(64, 60), Size::new(64, 4104)] {
        assert!(matches!(Network::new(&weights, size, 1), Err(Error::NetworkSize(refused)) if refused == size));
    }
}
