//! Whether the card does what the graph means, asked once when it is opened.
//!
//! Folding, suppression and the list only move and compare, so what they give is known to the bit. That finds a TT-NN with a
//! fault in one of the operations under them, as there have been in row-major reshapes, before it costs anybody a keypoint.
//! The network rounds, so its maps are only held against the CPU's: where weights and a convolution disagree about how the
//! map is cut, TT-NN says nothing and gives noise.

use half::bf16;
use tt_metal_sys::{DType, Layout, Memory, Spec};

use super::device::{Device, DeviceError, Result};
use super::list;
use super::network::{Network, fold};
use super::resize::plane_spec;
use super::suppress::{PER_COLUMN, survivors};
use crate::keypoints::Extractor;
use crate::maps::Maps;
use crate::ranking::Ranking;
use crate::weights::Weights;
use crate::{Detections, Params, Size, cpu};

/// Channels of a cell: 64 pixels and the dustbin.
const CHANNELS: usize = 65;

/// The least correlation of the card's maps with the CPU's. The port that is published for this card measured 0.997 and
/// 0.999; noise has none.
const LEAST: f64 = 0.97;

/// Runs all of it on a frame of this size.
///
/// # Errors
///
/// When the card fails, or gives something else than the host.
pub(super) fn run<D: Device>(device: &D, weights: &Weights, frame: Size) -> Result<()> {
    moves(device, frame)?;
    computes(device, weights, frame)
}

/// Runs the network on a picture of squares and noise, and compares with the CPU.
fn computes<D: Device>(device: &D, weights: &Weights, frame: Size) -> Result<()> {
    let levels: Vec<f32> = (0..frame.area())
        .map(|index| {
            let (y, x) = (index / frame.width, index % frame.width);
            let square = if (x / 13).wrapping_add(y / 11) % 2 == 0 { 190 } else { 20 };
            (square + index * 7919 % 61) as f32
        })
        .collect();
    let mut maps = Maps::new(frame);
    let grey: Vec<f32> = levels.iter().map(|level| level / 255.0).collect();
    let network = cpu::Network::new(weights, frame, 0);
    let mut network = network.map_err(|error| DeviceError { operation: "self test", reason: error.to_string() })?;
    network.forward(&grey, true, &mut maps);

    let input = device.allocate(plane_spec(frame, frame))?;
    let levels: Vec<u16> = levels.iter().map(|&level| bf16::from_f32(level).to_bits()).collect();
    device.write(&input, &levels)?;
    let outputs = Network::new(device, weights, frame)?.run(device, &input)?;
    let mut scores = vec![0.0; frame.area()];
    device.read_f32(&outputs.scores, &mut scores)?;
    let mut descriptors = vec![0; maps.descriptors.len()];
    device.read(&outputs.descriptors, &mut descriptors)?;
    let descriptors: Vec<f32> = descriptors.into_iter().map(|bits| bf16::from_bits(bits).to_f32()).collect();
    for (what, card, host) in [("scores", &scores, &maps.scores), ("descriptors", &descriptors, &maps.descriptors)] {
        let correlation = correlation(card, host);
        if correlation.is_nan() || correlation < LEAST {
            return Err(fault(format!("the network's {what} correlate with the CPU's by {correlation:.3} only")));
        }
    }
    Ok(())
}

/// Pearson's correlation; NaN where one does not vary.
pub(super) fn correlation(a: &[f32], b: &[f32]) -> f64 {
    let mean = |values: &[f32]| values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (&a, &b) in a.iter().zip(b) {
        let (a, b) = (f64::from(a) - mean_a, f64::from(b) - mean_b);
        (ab, aa, bb) = (ab + a * b, aa + a * a, bb + b * b);
    }
    ab / (aa * bb).sqrt()
}

/// Folds, suppresses and lists a known map of `frame`'s size, and compares with the host.
fn moves<D: Device>(device: &D, frame: Size) -> Result<()> {
    let cells = frame.cells();
    // Multiples of 1/256 are exact in bf16. Many are equal, and 7919 is a prime, so that neighbours differ.
    let value = |index: usize| (index * 7919 % 251) as f32 / 256.0;
    let probabilities: Vec<f32> = (0..cells.area() * CHANNELS).map(value).collect();
    let spec =
        Spec { shape: [1, 1, cells.area(), CHANNELS], dtype: DType::Bf16, layout: Layout::Tile, memory: Memory::Dram };
    let probabilities = device.typecast(&device.constant(spec, &probabilities)?, DType::F32)?;
    let scores = fold(device, &probabilities, frame)?;

    let mut maps = Maps::new(frame);
    for (index, score) in maps.scores.iter_mut().enumerate() {
        let (y, x) = (index / frame.width, index % frame.width);
        *score = value((y / 8 * cells.width + x / 8) * CHANNELS + y % 8 * 8 + x % 8);
    }
    let mut folded = vec![0.0; frame.area()];
    device.read_f32(&scores, &mut folded)?;
    if let Some(index) = folded.iter().zip(&maps.scores).position(|(folded, score)| folded != score) {
        return Err(fault(format!("the score of pixel {index} is folded to another place")));
    }

    // So high that no column has more survivors than the list holds.
    let params = Params { keypoint_threshold: 0.97, max_keypoints: None, nms_radius: 4, ..Params::default() };
    let listed = survivors(device, &scores, frame, params.nms_radius)?;
    let (mut best, mut rows) = (vec![0.0; frame.width * PER_COLUMN], vec![0; frame.width * PER_COLUMN]);
    device.read_f32(&listed.scores, &mut best)?;
    device.read(&listed.rows, &mut rows)?;
    let (mut ranking, mut found, mut expected) = (Ranking::default(), Detections::default(), Detections::default());
    let complete = list::rank(&best, &rows, frame, &params, &mut Vec::new(), &mut ranking);
    ranking.best(None, frame, &mut found);
    Extractor::default().find(&maps, &params, &mut expected);
    if !complete || found.points != expected.points || found.scores != expected.scores {
        return Err(fault(format!("suppression finds {} keypoints, not {}", found.len(), expected.len())));
    }
    Ok(())
}

fn fault(reason: String) -> DeviceError {
    let reason =
        format!("{reason}; this TT-NN has a fault in an operation that the graph needs, install another version");
    DeviceError { operation: "self test", reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::p150::emulation::Emulation;

    #[test]
    fn passes_where_nothing_is_wrong_and_notices_what_is() {
        let (device, weights, frame) = (Emulation::default(), Weights::bundled().unwrap(), Size::new(64, 96));
        run(&device, &weights, frame).unwrap();
        for (operation, noticed) in [
            ("slice", "folded"),
            ("reshape", "folded"),
            ("permute", "folded"),
            ("max_pool2d", "suppression"),
            ("eq", "suppression"),
            ("multiply", "suppression"),
            ("topk", "suppression"),
            ("gather", "suppression"),
        ] {
            device.fault.set(Some(operation));
            let error = moves(&device, frame).unwrap_err();
            assert_eq!(error.operation, "self test", "{error}");
            assert!(error.reason.contains(noticed), "{operation}: {error}");
        }
        for operation in ["conv2d", "max_pool2d"] {
            device.fault.set(Some(operation));
            let error = computes(&device, &weights, frame).unwrap_err();
            assert_eq!(error.operation, "self test", "{error}");
            assert!(error.reason.contains("correlate"), "{operation}: {error}");
        }
    }
}
