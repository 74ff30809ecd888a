//! The network on the CPU.

mod backend;

pub use backend::CpuBackend;

use ndarray::{Array2, ArrayView2, linalg::general_mat_mul};
use rayon::prelude::*;

use crate::weights::{Conv, Weights};
use crate::{Error, Size, maps::Maps};

/// SuperPoint's network for one frame size.
#[derive(Debug)]
pub struct Network {
    size: Size,
    layers: Vec<Layer>,
    pool: rayon::ThreadPool,
}

/// A convolution as a matrix `[kh * kw * in, out]`.
#[derive(Debug)]
struct Layer {
    kernel: usize,
    matrix: Array2<f32>,
    bias: Vec<f32>,
}

impl Layer {
    fn new(conv: &Conv) -> Self {
        let (out, input, kh, kw) = conv.weight.dim();
        let matrix = Array2::from_shape_fn((kh * kw * input, out), |(row, o)| {
            let (tap, i) = (row / input, row % input);
            conv.weight[[o, i, tap / kw, tap % kw]]
        });
        Self { kernel: kh, matrix, bias: conv.bias.to_vec() }
    }

    /// Same-padded convolution of a channel-last map.
    fn run(&self, input: &[f32], size: Size, relu: bool) -> Vec<f32> {
        let (depth, out) = self.matrix.dim();
        let channels = depth / (self.kernel * self.kernel);
        let mut output = vec![0.0f32; size.area() * out];
        output.par_chunks_mut(size.width * out).enumerate().for_each(|(y, row)| {
            let half = self.kernel as isize / 2;
            let mut columns = vec![0.0f32; size.width * depth];
            for x in 0..size.width {
                for tap in 0..self.kernel * self.kernel {
                    let sy = y as isize + (tap / self.kernel) as isize - half;
                    let sx = x as isize + (tap % self.kernel) as isize - half;
                    if sy >= 0 && sx >= 0 && (sy as usize) < size.height && (sx as usize) < size.width {
                        let from = (sy as usize * size.width + sx as usize) * channels;
                        let to = x * depth + tap * channels;
                        columns[to..to + channels].copy_from_slice(&input[from..from + channels]);
                    }
                }
            }
            for pixel in row.chunks_exact_mut(out) {
                pixel.copy_from_slice(&self.bias);
            }
            let a = ArrayView2::from_shape((size.width, depth), &columns).expect("shape");
            let mut c = ndarray::ArrayViewMut2::from_shape((size.width, out), row).expect("shape");
            general_mat_mul(1.0, &a, &self.matrix, 1.0, &mut c);
            if relu {
                c.mapv_inplace(|v| v.max(0.0));
            }
        });
        output
    }
}

fn max_pool(input: &[f32], size: Size, channels: usize) -> (Vec<f32>, Size) {
    let half = Size::new(size.height / 2, size.width / 2);
    let mut output = vec![0.0f32; half.area() * channels];
    output.par_chunks_mut(channels).enumerate().for_each(|(i, pixel)| {
        let (y, x) = (i / half.width, i % half.width);
        for (c, v) in pixel.iter_mut().enumerate() {
            let at = |dy: usize, dx: usize| input[((2 * y + dy) * size.width + 2 * x + dx) * channels + c];
            *v = at(0, 0).max(at(0, 1)).max(at(1, 0).max(at(1, 1)));
        }
    });
    (output, half)
}

impl Network {
    /// Prepares the network for frames of `size` on `threads` threads; 0 is one for each core.
    pub fn new(weights: &Weights, size: Size, threads: usize) -> Result<Self, Error> {
        if !size.height.is_multiple_of(8) || !size.width.is_multiple_of(8) || size.height < 16 || size.width < 16 {
            return Err(Error::NetworkSize(size));
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|error| Error::System {
            action: "starting the network's threads",
            source: std::io::Error::other(error),
        })?;
        let layers = weights.encoder.iter().chain(&weights.score).chain(&weights.descriptor).map(Layer::new).collect();
        Ok(Self { size, layers, pool })
    }

    /// Threads that the network runs on.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs the network on a frame of `height * width` values in `[0, 1]`.
    ///
    /// # Panics
    ///
    /// When the frame is not of the network's size.
    pub fn forward(&mut self, frame: &[f32], descriptors: bool, maps: &mut Maps) {
        assert_eq!(frame.len(), self.size.area(), "frame of another size than the network's");
        let layers = &self.layers;
        let size = self.size;
        self.pool.install(|| {
            let mut map = frame.to_vec();
            let mut at = size;
            for (i, layer) in layers[..8].iter().enumerate() {
                map = layer.run(&map, at, true);
                if matches!(i, 1 | 3 | 5) {
                    (map, at) = max_pool(&map, at, layer.bias.len());
                }
            }
            let logits = layers[9].run(&layers[8].run(&map, at, true), at, false);
            maps.size = size;
            maps.scores.resize(size.area(), 0.0);
            for (cell, logits) in logits.chunks_exact(65).enumerate() {
                let max = logits.iter().copied().fold(f32::MIN, f32::max);
                let sum: f32 = logits.iter().map(|l| (l - max).exp()).sum();
                for (k, l) in logits[..64].iter().enumerate() {
                    let (y, x) = (8 * (cell / at.width) + k / 8, 8 * (cell % at.width) + k % 8);
                    maps.scores[y * size.width + x] = (l - max).exp() / sum;
                }
            }
            if descriptors {
                maps.descriptors = layers[11].run(&layers[10].run(&map, at, true), at, false);
                for d in maps.descriptors.chunks_exact_mut(Maps::DESCRIPTOR_DIM) {
                    let norm = d.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-12);
                    d.iter_mut().for_each(|v| *v /= norm);
                }
            }
        });
    }
}
