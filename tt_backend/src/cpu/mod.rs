//! The network on the CPU.
//!
//! ```text
//! frame -> [conv1a] conv1b pool -> conv2a conv2b pool -> conv3a conv3b pool -> conv4a conv4b -> heads a -> heads b
//! ```
//!
//! Each name after an arrow is one stage, cut into tasks that the threads take one by one; conv1a is computed inside
//! conv1b, and the 3x3 layers of the two heads are one layer of 512 channels, so that they share their input transform.
//!
//! - `conv`: a 3x3 layer by Winograd's algorithm, tile block by tile block (`winograd`: the transforms)
//! - `first_layer`: conv1a, computed where conv1b reads it
//! - `heads`: 1x1 layers, softmax, L2 norm
//! - `gemm`: the matrix product under all of them
//! - `nearest`: matching, which is a matrix product too
//! - `simd`: the three instruction sets, and the choice between them
//! - `buffer`: aligned memory, and memory that threads share
//!
//! Maps are channel-last (`[row][column][channel]`), so that transforms and products run over channels in whole vectors.
//! Two buffers are enough for all of them: a layer reads one and writes the other.
//!
//! The result does not depend on the number of threads: every value is computed by the same operations in the same order
//! whichever task it falls in. It does depend, in the last bits, on the instruction set.

mod backend;
mod buffer;
mod conv;
mod first_layer;
mod gemm;
mod heads;
mod nearest;
mod simd;
mod winograd;

pub use backend::CpuBackend;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::team::{self, Team};
use crate::weights::{Conv, Weights};
use crate::{Error, Size, maps::Maps};

use buffer::{Buffer, Shared};
use conv::{Block, Layer, Layout, MapSource, Scratch, Source, Tiles};
use first_layer::{FirstLayer, FrameSource, PaddedFrame};
use heads::{Descriptors, Hidden, Pointwise, Scores};
pub use nearest::{Descriptor, Nearest, nearest};
pub use simd::InstructionSet;

/// SuperPoint's network for frames of one size.
///
/// Owns its weights in the form the kernels read, its threads and all memory a frame needs: [`forward`](Self::forward)
/// allocates nothing once the maps it fills have been filled for the first time.
#[derive(Debug)]
pub struct Network {
    size: Size,
    instructions: InstructionSet,
    first: FirstLayer,
    /// conv1b to conv4b, then the 3x3 layers of both heads as one.
    layers: Vec<Layer>,
    score: Pointwise,
    descriptor: Pointwise,
    frame: PaddedFrame,
    /// Output of the layers with even and odd number.
    maps: [Buffer; 2],
    /// One for each thread.
    scratch: Vec<Mutex<Workspace>>,
    team: Team,
}

/// What a thread needs to itself.
#[derive(Debug)]
struct Workspace {
    conv: Scratch,
    logits: Buffer,
}

/// Names of the stages, in order.
const STAGES: [&str; 10] =
    ["conv1a+conv1b", "conv2a", "conv2b", "conv3a", "conv3b", "conv4a", "conv4b", "heads_a", "score_b", "descriptor_b"];

/// Stages with a 2x2 max-pool at their end.
const POOLED: [bool; 8] = [true, false, true, false, true, false, false, false];

/// Time and work of one stage of a frame.
#[derive(Clone, Debug)]
pub struct StageProfile {
    /// Name of the layers it computes.
    pub name: &'static str,
    /// From its beginning to the end of its last task.
    pub time: Duration,
    /// Multiply-adds that its convolutions are defined by (the usual way to count a network's work).
    pub nominal_macs: u64,
    /// Multiply-adds in its matrix products, which Winograd's algorithm makes fewer.
    pub product_macs: u64,
}

impl Network {
    /// Prepares the network for frames of `size` on `threads` threads, the caller's included; 0 is one for each
    /// available core.
    ///
    /// # Errors
    ///
    /// [`Error::NetworkSize`] for a size that is not a multiple of 8 from 16 to 4096 in both directions,
    /// [`Error::System`] when a thread cannot be started.
    pub fn new(weights: &Weights, size: Size, threads: usize) -> Result<Self, Error> {
        Self::with_instructions(weights, size, threads, InstructionSet::detect())
    }

    /// [`new`](Self::new) with a chosen instruction set instead of the machine's best.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_instructions(
        weights: &Weights,
        size: Size,
        threads: usize,
        instructions: InstructionSet,
    ) -> Result<Self, Error> {
        Self::check_size(size)?;
        let threads = match threads {
            0 => team::cores(),
            n => n,
        };
        let mut team = Team::new(threads)?;
        let lanes = instructions.lanes();
        let [conv1a, encoder @ ..] = &weights.encoder;
        let mut layer = |convs: &[&Conv], pool| Layer::new(convs, pool, lanes, &mut team);
        let mut layers: Vec<Layer> = encoder.iter().zip(POOLED).map(|(conv, pool)| layer(&[conv], pool)).collect();
        layers.push(layer(&[&weights.score[0], &weights.descriptor[0]], false));
        let widest = layers.iter().map(|layer| layer.inputs).max().unwrap_or(0);
        let score = Pointwise::new(&weights.score[1], heads::NO_CHANNEL, lanes);
        let descriptor = Pointwise::new(&weights.descriptor[1], 0.0, lanes);
        let workspace = || {
            let logits = Buffer::new(heads::CELLS * score.columns());
            Mutex::new(Workspace { conv: Scratch::new(widest, lanes), logits })
        };
        let scratch = (0..team.size()).map(|_| workspace()).collect();
        let mut lens = [0, 0];
        let mut at = size;
        for (index, layer) in layers.iter().enumerate() {
            let layout = output_layout(layer, &mut at, index);
            lens[index % 2] = lens[index % 2].max(layout.bordered_len());
        }
        Ok(Self {
            size,
            instructions,
            first: FirstLayer::new(conv1a),
            score,
            descriptor,
            frame: PaddedFrame::new(size),
            maps: lens.map(Buffer::new),
            scratch,
            team,
            layers,
        })
    }

    /// Whether there can be a network for frames of `size`.
    ///
    /// # Errors
    ///
    /// [`Error::NetworkSize`] for a size that is not a multiple of 8 from 16 to 4096 in both directions.
    pub fn check_size(size: Size) -> Result<(), Error> {
        let sane = |n: usize| n.is_multiple_of(8) && (16..=4096).contains(&n);
        if sane(size.height) && sane(size.width) { Ok(()) } else { Err(Error::NetworkSize(size)) }
    }

    /// Frame size.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.team.size()
    }

    /// The threads, for what comes before and after the network.
    pub fn team(&mut self) -> &mut Team {
        &mut self.team
    }

    /// The instruction set in use.
    pub fn instructions(&self) -> InstructionSet {
        self.instructions
    }

    /// Runs the network on a frame of `height * width` values in `[0, 1]`, row-major. Without `descriptors` their head
    /// does not run and `maps.descriptors` is left alone.
    ///
    /// # Panics
    ///
    /// When the frame is not of the network's size.
    pub fn forward(&mut self, frame: &[f32], descriptors: bool, maps: &mut Maps) {
        self.run(frame, descriptors, maps, None);
    }

    /// [`forward`](Self::forward), and how long each stage took.
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_profiled(&mut self, frame: &[f32], descriptors: bool, maps: &mut Maps) -> Vec<StageProfile> {
        let mut profile = Vec::with_capacity(STAGES.len());
        self.run(frame, descriptors, maps, Some(&mut profile));
        profile
    }

    fn run(&mut self, frame: &[f32], descriptors: bool, maps: &mut Maps, mut profile: Option<&mut Vec<StageProfile>>) {
        assert_eq!(frame.len(), self.size.area(), "frame of another size than the network's");
        let mut clock = profile.is_some().then(Instant::now);
        let mut record = |stage: usize, nominal: usize, product: usize| {
            if let (Some(profile), Some(clock)) = (&mut profile, &mut clock) {
                let now = Instant::now();
                profile.push(StageProfile {
                    name: STAGES[stage],
                    time: now - std::mem::replace(clock, now),
                    nominal_macs: nominal as u64,
                    product_macs: product as u64,
                });
            }
        };

        self.frame.fill(frame);
        let mut input = None;
        let mut at = self.size;
        for (index, layer) in self.layers.iter().enumerate() {
            let tiles = Tiles::of(at);
            let pixels = at.area();
            let output_layout = output_layout(layer, &mut at, index);
            let [even, odd] = &mut self.maps;
            let (to, from) = if index.is_multiple_of(2) { (even, odd) } else { (odd, even) };
            let last = index + 1 == self.layers.len();
            if !last {
                output_layout.clear_border(to.as_mut_slice());
            }
            let outputs = if last && !descriptors { layer.outputs / 2 } else { layer.outputs };
            let stage = Stage { layer, tiles, panels: layer.panels_for(outputs), output_layout };
            let (team, scratch, instructions) = (&mut self.team, &self.scratch, self.instructions);
            let mut nominal = pixels * 9 * layer.inputs * outputs;
            match input {
                None => {
                    nominal += pixels * 9 * self.first.channels;
                    let source = FrameSource { layer: &self.first, frame: &self.frame };
                    stage.run(source, to.as_mut_slice(), team, scratch, instructions);
                }
                Some(layout) => {
                    let source = MapSource::new(from.as_slice(), layout);
                    stage.run(source, to.as_mut_slice(), team, scratch, instructions);
                }
            }
            input = Some(output_layout);
            record(index, nominal, tiles.count() * winograd::POSITIONS * layer.inputs * outputs);
        }

        maps.size = self.size;
        maps.scores.resize(self.size.area(), 0.0);
        let hidden = self.maps[(self.layers.len() - 1) % 2].as_slice();
        let stride = self.layers.last().map_or(0, |layer| layer.outputs);
        let (cells, size, instructions) = (at.area(), self.size, self.instructions);
        let tasks = cells.div_ceil(heads::CELLS);
        let part = |offset: usize, task: usize| {
            let first = task * heads::CELLS;
            Hidden { map: hidden, stride, offset, first, count: heads::CELLS.min(cells - first) }
        };
        let (layer, scratch) = (&self.score, &self.scratch);
        let scores = Shared::new(&mut maps.scores);
        self.team.run(tasks, &|worker, task| {
            let mut workspace = scratch[worker].lock().unwrap_or_else(PoisonError::into_inner);
            let logits = workspace.logits.as_mut_slice();
            instructions.run(Scores { layer, hidden: part(0, task), logits, size, scores });
        });
        record(8, cells * layer.macs(), cells * layer.macs());
        if descriptors {
            maps.descriptors.resize(cells * Maps::DESCRIPTOR_DIM, 0.0);
            let layer = &self.descriptor;
            let descriptors = Shared::new(&mut maps.descriptors);
            self.team.run(tasks, &|_, task| {
                instructions.run(Descriptors { layer, hidden: part(stride / 2, task), descriptors });
            });
            record(9, cells * layer.macs(), cells * layer.macs());
        }
    }
}

/// Where layer `index` writes its output, and in `at` the size of the map from its input to its output.
fn output_layout(layer: &Layer, at: &mut Size, index: usize) -> Layout {
    if layer.pool {
        *at = Size::new(at.height / 2, at.width / 2);
    }
    if index + 1 == POOLED.len() { Layout::dense(*at, layer.outputs) } else { Layout::bordered(*at, layer.outputs) }
}

/// A 3x3 layer on maps of one size.
struct Stage<'a> {
    layer: &'a Layer,
    tiles: Tiles,
    panels: usize,
    output_layout: Layout,
}

impl Stage<'_> {
    fn run(
        &self,
        source: impl Source + Sync,
        output: &mut [f32],
        team: &mut Team,
        scratch: &[Mutex<Workspace>],
        instructions: InstructionSet,
    ) {
        let Self { layer, tiles, panels, output_layout } = *self;
        let block = conv::BLOCK;
        let output = Shared::new(output);
        team.run(tiles.count().div_ceil(block), &|worker, task| {
            let mut workspace = scratch[worker].lock().unwrap_or_else(PoisonError::into_inner);
            let first = task * block;
            instructions.run(Block {
                layer,
                source,
                tiles,
                first,
                count: block.min(tiles.count() - first),
                panels,
                output,
                output_layout,
                scratch: &mut workspace.conv,
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernels in the shape they have with AVX-512 give what they give in the portable one.
    #[test]
    fn wide_vectors_compute_the_same() {
        let weights = Weights::bundled().unwrap();
        let size = Size::new(56, 88);
        let frame: Vec<f32> = (0..size.area()).map(|i| (i * 7919 % 256) as f32 / 255.0).collect();
        let run = |instructions| {
            let mut maps = Maps::new(size);
            let mut network = Network::with_instructions(&weights, size, 2, instructions).unwrap();
            network.forward(&frame, true, &mut maps);
            maps
        };
        let (narrow, wide) = (run(InstructionSet::PORTABLE), run(InstructionSet::WIDE));
        let differs = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Sums over channels are split into lanes differently, nothing else.
        assert!(differs(&narrow.scores, &wide.scores) < 1e-6);
        assert!(differs(&narrow.descriptors, &wide.descriptors) < 1e-6);
    }
}
