//! Whether the card moves data as the graph means it, asked once when it is opened.
//!
//! Folding, suppression and the list only move and compare, so what they give is known to the bit. That finds a TT-NN with a
//! fault in one of the operations under them, as there have been in row-major reshapes, before it costs anybody a keypoint.

use tt_metal_sys::{DType, Layout, Memory, Spec};

use super::device::{Device, DeviceError, Result};
use super::list;
use super::network::fold;
use super::suppress::{PER_COLUMN, survivors};
use crate::keypoints::Extractor;
use crate::maps::Maps;
use crate::ranking::Ranking;
use crate::{Detections, Params, Size};

/// Channels of a cell: 64 pixels and the dustbin.
const CHANNELS: usize = 65;

/// Folds, suppresses and lists a known map of `frame`'s size, and compares with the host.
///
/// # Errors
///
/// When the card fails, or gives something else.
pub(super) fn run<D: Device>(device: &D, frame: Size) -> Result<()> {
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
        let device = Emulation::default();
        run(&device, Size::new(64, 96)).unwrap();
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
            let error = run(&device, Size::new(64, 96)).unwrap_err();
            assert_eq!(error.operation, "self test", "{error}");
            assert!(error.reason.contains(noticed), "{operation}: {error}");
        }
    }
}
