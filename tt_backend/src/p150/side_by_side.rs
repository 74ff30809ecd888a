//! A card, or a simulator of one, and the emulation side by side: the same graph on both, compared after every operation.
//!
//! The emulation runs twice. `checked` takes each operation's inputs from the card, so that what differs is the
//! operation's own; `free` goes its own way from the frame on, so that what differs has added up.
//!
//! A simulator knows slow dispatch only, and so neither traces nor a second queue: stages run as they come.

use std::cell::RefCell;
use std::time::Instant;

use tt_metal_sys::{Compute, Conv2dOptions, DType, DeviceOptions, Layout, Library, MaxPool2dOptions, Spec};

use super::device::{Device, Result};
use super::emulation::{self, Emulation, compute};
use super::list;
use super::network::{Network, Outputs};
use super::resize::{Resize, plane_spec};
use super::sample::{BATCH, Sampler};
use super::self_test::correlation;
use super::suppress::{PER_COLUMN, suppress, survivors};
use super::tests::{bits, photo, resized_by_the_host, weights};
use super::ttnn::Ttnn;
use crate::keypoints::{DESCRIPTOR_DIM, Extractor};
use crate::maps::Maps;
use crate::nms::Suppression;
use crate::ranking::Ranking;
use crate::weights::Conv;
use crate::{Detections, Params, Plane, Size, cpu};

/// Both devices.
struct SideBySide {
    card: Ttnn,
    handle: tt_metal_sys::Device,
    emulation: Emulation,
    /// Operations whose outputs differ where they must not.
    wrong: RefCell<Vec<String>>,
    /// Input of the last softmax: of the card, and of the emulation on its own.
    logits: RefCell<Option<[Vec<f32>; 2]>>,
}

#[derive(Clone, Debug)]
struct Tensor {
    card: tt_metal_sys::Tensor,
    checked: emulation::Tensor,
    free: emulation::Tensor,
}

#[derive(Debug)]
struct Convolution {
    card: <Ttnn as Device>::Conv,
    emulated: <Emulation as Device>::Conv,
}

/// What an operation's output must have in common with the emulation's.
#[derive(Clone, Copy, PartialEq)]
enum Due {
    Equal,
    Correlation,
    /// Equal values in any order: where they are is not compared.
    Nothing,
}

/// The least correlation of an operation's output with the emulation's.
const LEAST: f64 = 0.999_999;

impl SideBySide {
    fn new(handle: tt_metal_sys::Device) -> Self {
        Self {
            card: Ttnn::new(handle.clone()),
            handle,
            emulation: Emulation::default(),
            wrong: RefCell::default(),
            logits: RefCell::default(),
        }
    }

    /// Compares what an operation gave, says how it compares, and gives the card's values to `checked`.
    fn compare(&self, operation: &str, due: Due, tensor: Tensor) -> Result<Tensor> {
        let spec = tensor.card.spec();
        let emulated = self.emulation.spec(&tensor.checked);
        assert_eq!((spec.shape, spec.dtype, spec.layout), (emulated.shape, emulated.dtype, emulated.layout));
        let start = Instant::now();
        let card = self.handle.values(&tensor.card)?;
        let checked = self.emulation.values(&tensor.checked)?;
        let free = self.emulation.values(&tensor.free)?;
        let differ = card.iter().zip(&checked).filter(|(a, b)| a != b && !(a.is_nan() && b.is_nan())).count();
        let worst = card.iter().zip(&checked).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let pcc = if differ == 0 { 1.0 } else { correlation(&card, &checked) };
        let holds = match due {
            Due::Equal => differ == 0,
            Due::Correlation => pcc >= LEAST,
            Due::Nothing => true,
        };
        let line = format!(
            "{operation:<12} {:<22} {:?} {:?}: PCC {pcc:.7}, {differ} of {} differ, by {worst:.3e} at most; free {:.6}",
            format!("{:?}", spec.shape),
            spec.dtype,
            spec.memory,
            card.len(),
            correlation(&card, &free),
        );
        eprintln!("{}{line} ({:.1} s)", if holds { "  " } else { "! " }, start.elapsed().as_secs_f32());
        if !holds {
            self.wrong.borrow_mut().push(line);
        }
        self.emulation.overwrite(&tensor.checked, &card);
        Ok(tensor)
    }

    /// An operation with one output on all three.
    fn both(
        &self,
        operation: &'static str,
        due: Due,
        card: Result<tt_metal_sys::Tensor>,
        emulated: impl Fn(fn(&Tensor) -> &emulation::Tensor) -> Result<emulation::Tensor>,
    ) -> Result<Tensor> {
        let tensor =
            Tensor { card: card?, checked: emulated(|input| &input.checked)?, free: emulated(|input| &input.free)? };
        self.compare(operation, due, tensor)
    }
}

impl Device for SideBySide {
    type Tensor = Tensor;
    type Conv = Convolution;
    type Trace = ();

    fn spec(&self, tensor: &Tensor) -> Spec {
        self.card.spec(&tensor.card)
    }

    fn allocate(&self, spec: Spec) -> Result<Tensor> {
        let emulated = || self.emulation.allocate(spec);
        Ok(Tensor { card: self.card.allocate(spec)?, checked: emulated()?, free: emulated()? })
    }

    fn constant(&self, spec: Spec, values: &[f32]) -> Result<Tensor> {
        self.both("constant", Due::Equal, self.card.constant(spec, values), |_| self.emulation.constant(spec, values))
    }

    fn write(&self, to: &Tensor, data: &[u16]) -> Result<()> {
        self.card.write(&to.card, data)?;
        self.emulation.write(&to.checked, data)?;
        self.emulation.write(&to.free, data)
    }

    fn write_u32(&self, to: &Tensor, data: &[u32]) -> Result<()> {
        self.card.write_u32(&to.card, data)?;
        self.emulation.write_u32(&to.checked, data)?;
        self.emulation.write_u32(&to.free, data)
    }

    fn read(&self, from: &Tensor, data: &mut [u16]) -> Result<()> {
        self.card.read(&from.card, data)
    }

    fn read_f32(&self, from: &Tensor, data: &mut [f32]) -> Result<()> {
        self.card.read_f32(&from.card, data)
    }

    fn synchronize(&self) -> Result<()> {
        self.card.synchronize()
    }

    fn record<T>(&self, _: impl FnOnce() -> Result<T>) -> Result<((), T)> {
        Err(emulation::refuse("begin trace", "slow dispatch has no traces"))
    }

    fn replay(&self, (): &()) -> Result<()> {
        Err(emulation::refuse("replay trace", "slow dispatch has no traces"))
    }

    fn prepare_conv2d(&self, options: &Conv2dOptions, weights: &[f32], bias: &[f32]) -> Result<Convolution> {
        Ok(Convolution {
            card: self.card.prepare_conv2d(options, weights, bias)?,
            emulated: self.emulation.prepare_conv2d(options, weights, bias)?,
        })
    }

    fn conv2d(&self, conv: &Convolution, input: &Tensor) -> Result<Tensor> {
        self.both("conv2d", Due::Correlation, self.card.conv2d(&conv.card, &input.card), |of| {
            self.emulation.conv2d(&conv.emulated, of(input))
        })
    }

    fn max_pool2d(&self, input: &Tensor, options: &MaxPool2dOptions) -> Result<Tensor> {
        self.both("max_pool2d", Due::Equal, self.card.max_pool2d(&input.card, options), |of| {
            self.emulation.max_pool2d(of(input), options)
        })
    }

    fn matmul(&self, a: &Tensor, b: &Tensor, compute: Compute, dtype: DType) -> Result<Tensor> {
        self.both("matmul", Due::Correlation, self.card.matmul(&a.card, &b.card, compute, dtype), |of| {
            self.emulation.matmul(of(a), of(b), compute, dtype)
        })
    }

    fn softmax(&self, input: &Tensor, compute: Compute) -> Result<Tensor> {
        *self.logits.borrow_mut() = Some([self.handle.values(&input.card)?, self.emulation.values(&input.free)?]);
        self.both("softmax", Due::Correlation, self.card.softmax(&input.card, compute), |of| {
            self.emulation.softmax(of(input), compute)
        })
    }

    fn rms_norm(&self, input: &Tensor, gamma: &Tensor, epsilon: f32, compute: Compute) -> Result<Tensor> {
        let card = self.card.rms_norm(&input.card, &gamma.card, epsilon, compute);
        self.both("rms_norm", Due::Correlation, card, |of| {
            self.emulation.rms_norm(of(input), of(gamma), epsilon, compute)
        })
    }

    fn slice(&self, input: &Tensor, begin: [usize; 4], end: [usize; 4]) -> Result<Tensor> {
        self.both("slice", Due::Equal, self.card.slice(&input.card, begin, end), |of| {
            self.emulation.slice(of(input), begin, end)
        })
    }

    fn reshape(&self, input: &Tensor, shape: [usize; 4]) -> Result<Tensor> {
        self.both("reshape", Due::Equal, self.card.reshape(&input.card, shape), |of| {
            self.emulation.reshape(of(input), shape)
        })
    }

    fn permute(&self, input: &Tensor, order: [usize; 4]) -> Result<Tensor> {
        self.both("permute", Due::Equal, self.card.permute(&input.card, order), |of| {
            self.emulation.permute(of(input), order)
        })
    }

    fn to_layout(&self, input: &Tensor, layout: Layout) -> Result<Tensor> {
        self.both("to_layout", Due::Equal, self.card.to_layout(&input.card, layout), |of| {
            self.emulation.to_layout(of(input), layout)
        })
    }

    fn typecast(&self, input: &Tensor, dtype: DType) -> Result<Tensor> {
        self.both("typecast", Due::Equal, self.card.typecast(&input.card, dtype), |of| {
            self.emulation.typecast(of(input), dtype)
        })
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.both("add", Due::Correlation, self.card.add(&a.card, &b.card), |of| self.emulation.add(of(a), of(b)))
    }

    fn add_scalar(&self, input: &Tensor, value: f32) -> Result<Tensor> {
        self.both("add_scalar", Due::Correlation, self.card.add_scalar(&input.card, value), |of| {
            self.emulation.add_scalar(of(input), value)
        })
    }

    fn floor(&self, input: &Tensor) -> Result<Tensor> {
        self.both("floor", Due::Equal, self.card.floor(&input.card), |of| self.emulation.floor(of(input)))
    }

    fn eq(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.both("eq", Due::Equal, self.card.eq(&a.card, &b.card), |of| self.emulation.eq(of(a), of(b)))
    }

    /// Exact in this graph, which multiplies by 0 or 1.
    fn multiply(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.both("multiply", Due::Equal, self.card.multiply(&a.card, &b.card), |of| {
            self.emulation.multiply(of(a), of(b))
        })
    }

    fn topk(&self, input: &Tensor, k: usize) -> Result<(Tensor, Tensor)> {
        let (values, indices) = self.card.topk(&input.card, k)?;
        let checked = self.emulation.topk(&input.checked, k)?;
        let free = self.emulation.topk(&input.free, k)?;
        let values = Tensor { card: values, checked: checked.0, free: free.0 };
        let indices = Tensor { card: indices, checked: checked.1, free: free.1 };
        Ok((self.compare("topk", Due::Equal, values)?, self.compare("topk indices", Due::Nothing, indices)?))
    }

    fn gather(&self, input: &Tensor, indices: &Tensor) -> Result<Tensor> {
        self.both("gather", Due::Equal, self.card.gather(&input.card, &indices.card), |of| {
            self.emulation.gather(of(input), of(indices))
        })
    }

    fn embedding(&self, indices: &Tensor, table: &Tensor) -> Result<Tensor> {
        self.both("embedding", Due::Equal, self.card.embedding(&indices.card, &table.card), |of| {
            self.emulation.embedding(of(indices), of(table))
        })
    }

    fn copy(&self, from: &Tensor, to: &Tensor) -> Result<()> {
        self.card.copy(&from.card, &to.card)?;
        self.emulation.copy(&from.checked, &to.checked)?;
        self.emulation.copy(&from.free, &to.free)?;
        self.compare("copy", Due::Equal, to.clone()).map(drop)
    }
}

/// The score head's output in fp32, `[cells][65]`, of a frame of 0 to 1.
fn logits_in_fp32(frame: &[f32], size: Size) -> Vec<f32> {
    let weights = weights();
    let conv = |layer: &Conv, map: &[f32], size: Size, relu: bool| {
        let (out_channels, in_channels, rows, columns) = layer.weight.dim();
        let mut packed = vec![0.0; layer.weight.len()];
        for ((o, i, y, x), &weight) in layer.weight.indexed_iter() {
            packed[((y * columns + x) * in_channels + i) * out_channels + o] = weight;
        }
        let options = Conv2dOptions {
            height: size.height,
            width: size.width,
            in_channels,
            out_channels,
            kernel: [rows, columns],
            padding: [rows / 2, columns / 2],
            relu,
            ..super::tests::CONV
        };
        compute::conv2d(&options, &packed, layer.bias.as_slice().unwrap(), map, |sum, bias| sum + bias)
    };
    let (mut map, mut size) = (frame.to_vec(), size);
    for (index, layer) in weights.encoder.iter().enumerate() {
        map = conv(layer, &map, size, true);
        if matches!(index, 1 | 3 | 5) {
            let options = MaxPool2dOptions {
                height: size.height,
                width: size.width,
                channels: layer.weight.dim().0,
                kernel: [2, 2],
                stride: [2, 2],
                padding: [0, 0],
                ..super::tests::POOL
            };
            map = compute::max_pool2d(&options, &map);
            size = Size::new(size.height / 2, size.width / 2);
        }
    }
    let [first, last] = &weights.score;
    conv(last, &conv(first, &map, size, true), size, false)
}

/// An 8-bit picture of `size` out of a photo: its middle, or all of it where that is the size.
fn picture(size: Size) -> Vec<u8> {
    let (whole, pixels) = photo("astronaut_640x480.png");
    let (top, left) = ((whole.height - size.height) / 4, (whole.width - size.width) / 2);
    (top..top + size.height).flat_map(|y| pixels[y * whole.width + left..][..size.width].to_vec()).collect()
}

/// The whole graph on pictures of `image`, in a frame of `frame`.
fn run(device: &SideBySide, image: Size, frame: Size, radii: &[usize]) {
    let pixels = picture(image);
    let plane = Plane::contiguous(&pixels, image).unwrap();
    let host_frame = resized_by_the_host(&plane, frame);
    let mut maps = Maps::new(frame);
    cpu::Network::new(&weights(), frame, 0).unwrap().forward(&host_frame, true, &mut maps);

    let levels: Vec<f32> = pixels.iter().map(|&level| f32::from(level)).collect();
    let upload = device.allocate(plane_spec(image, frame)).unwrap();
    let input = device.allocate(plane_spec(frame, frame)).unwrap();
    device.write(&upload, &bits(&levels)).unwrap();
    Resize::new(device, image, frame).unwrap().run(device, &upload, &input).unwrap();
    let on_card = device.handle.values(&input.card).unwrap();
    let levels_off = on_card.iter().zip(&host_frame).filter(|(card, host)| **card != (255.0 * **host).round()).count();

    let Outputs { scores, descriptors } = Network::new(device, &weights(), frame).unwrap().run(device, &input).unwrap();
    let [card_logits, free_logits] = device.logits.borrow_mut().take().unwrap();
    let mut card_maps = Maps::new(frame);
    card_maps.scores = device.handle.values(&scores.card).unwrap();
    card_maps.descriptors = device.handle.values(&descriptors.card).unwrap();
    let free = |tensor: &Tensor| device.emulation.values(&tensor.free).unwrap();
    let summary = format!(
        "{image} in {frame}: {levels_off} of {} levels are not the host's\n\
         against fp32: logits {:.5}, scores {:.5}, descriptors {:.5}\n\
         against the emulation on its own: logits {:.5}, scores {:.5}, descriptors {:.5}",
        frame.area(),
        correlation(&card_logits, &logits_in_fp32(&host_frame, frame)),
        correlation(&card_maps.scores, &maps.scores),
        correlation(&card_maps.descriptors, &maps.descriptors),
        correlation(&card_logits, &free_logits),
        correlation(&card_maps.scores, &free(&scores)),
        correlation(&card_maps.descriptors, &free(&descriptors)),
    );
    eprintln!("{summary}");

    for &radius in radii {
        let params = Params { nms_radius: radius, ..Params::default() };
        let found = keypoints(device, &scores, &card_maps.scores, frame, &params);
        let mut expected = Detections::default();
        Extractor::default().find(&maps, &params, &mut expected);
        let near = |limit: i32| {
            let within =
                |a: [u16; 2], b: [u16; 2]| (0..2).all(|axis| (i32::from(a[axis]) - i32::from(b[axis])).abs() <= limit);
            expected.points.iter().filter(|&&point| found.points.iter().any(|&other| within(point, other))).count()
        };
        eprintln!(
            "{image} in {frame}, radius {radius}: {} keypoints; of {} in fp32 {} exact, {} within 1 pixel",
            found.points.len(),
            expected.points.len(),
            near(0),
            near(1)
        );
        if radius == 4 {
            descriptors_of(device, &descriptors, &card_maps, &maps, frame, &found);
        }
    }
}

/// Suppression and list of the card, held against the host's of the card's own scores.
fn keypoints(device: &SideBySide, scores: &Tensor, card: &[f32], frame: Size, params: &Params) -> Detections {
    let radius = params.nms_radius;
    let kept = suppress(device, scores, frame, radius).unwrap();
    let kept = device.handle.values(&kept.card).unwrap();
    let rounded = device.typecast(scores, DType::Bf16).unwrap();
    let rounded = device.handle.values(&rounded.card).unwrap();
    let mut other = 0;
    Suppression::default().single_pass(&rounded, frame, radius, 0..frame.height, |y, bars| {
        for (x, bar) in bars.iter().enumerate() {
            let index = y * frame.width + x;
            let survives = if rounded[index] == *bar { card[index] } else { 0.0 };
            other += usize::from(kept[x * frame.height + y] != survives);
        }
    });
    let listed = survivors(device, scores, frame, radius).unwrap();
    let mut best = vec![0.0; frame.width * PER_COLUMN];
    let mut rows = vec![0; frame.width * PER_COLUMN];
    device.read_f32(&listed.scores, &mut best).unwrap();
    device.read(&listed.rows, &mut rows).unwrap();
    let (mut ranking, mut found) = (Ranking::default(), Detections::default());
    let complete = list::rank(&best, &rows, frame, params, &mut Vec::new(), &mut ranking);
    ranking.best(params.max_keypoints, frame, &mut found);

    let mut expected = Detections::default();
    let maps = Maps { scores: card.to_vec(), ..Maps::new(frame) };
    Extractor::default().find(&maps, params, &mut expected);
    let unlike = found.points.iter().filter(|point| !expected.points.contains(point)).count();
    eprintln!(
        "{frame}, radius {radius}: {other} of {} pixels are suppressed otherwise than by the host; list complete: {complete}, \
         {unlike} of {} keypoints are not those of suppression in fp32",
        frame.area(),
        found.points.len()
    );
    assert!(other == 0 && complete, "radius {radius}");
    found
}

/// Sampling of the card, held against the host's of the card's own map, and of the map in fp32.
fn descriptors_of(device: &SideBySide, map: &Tensor, card: &Maps, in_fp32: &Maps, frame: Size, found: &Detections) {
    let points = &found.points[..found.points.len().min(BATCH)];
    let mut sampler = Sampler::new(device, frame).unwrap();
    sampler.write(device, points).unwrap();
    let sampled = sampler.run(device, map).unwrap();
    let sampled = device.handle.values(&sampled.card).unwrap();
    let by_the_host = |maps: &Maps| {
        let mut rows = Vec::new();
        for &point in points {
            let mut row = vec![0.0; DESCRIPTOR_DIM];
            for (weight, cell) in crate::keypoints::corners(frame.cells(), point) {
                let values = &maps.descriptors[cell * DESCRIPTOR_DIM..][..DESCRIPTOR_DIM];
                row.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
            }
            let norm = row.iter().map(|value| value * value).sum::<f32>().sqrt();
            rows.extend(row.iter().map(|value| value / norm));
        }
        rows
    };
    let cosines = |host: &[f32]| {
        let rows = sampled.chunks_exact(DESCRIPTOR_DIM).zip(host.chunks_exact(DESCRIPTOR_DIM));
        rows.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>()).fold(f32::INFINITY, f32::min)
    };
    let (own, fp32) = (by_the_host(card), by_the_host(in_fp32));
    eprintln!(
        "{frame}: {} descriptors sampled; against the host's sampling of the card's map PCC {:.6}, least cosine {:.5}; of the \
         map in fp32 PCC {:.6}, least cosine {:.5}",
        points.len(),
        correlation(&sampled[..own.len()], &own),
        cosines(&own),
        correlation(&sampled[..fp32.len()], &fp32),
        cosines(&fp32)
    );
}

/// By hand, in a process of its own, with `TT_METAL_SIMULATOR` and `TT_METAL_SLOW_DISPATCH_MODE=1` as docs/p150.md says:
/// `SIDE_BY_SIDE=image:frame:radii cargo test -p tt_backend side_by_side -- --ignored --nocapture`.
#[test]
#[ignore = "needs TT-NN, libttsp.so and a card or a simulator"]
fn a_card_gives_what_the_emulation_gives() {
    let side = |text: &str| {
        let (height, width) = text.split_once('x').unwrap();
        Size::new(height.parse().unwrap(), width.parse().unwrap())
    };
    let asked = std::env::var("SIDE_BY_SIDE").unwrap_or_else(|_| "64x64:64x64:1,4,8".into());
    let device = Library::load().unwrap().open(&DeviceOptions::default()).unwrap();
    let device = SideBySide::new(device);
    for case in asked.split_whitespace() {
        let [image, frame, radii] = case.split(':').collect::<Vec<_>>()[..] else { panic!("{case}") };
        let radii: Vec<usize> = radii.split(',').map(|radius| radius.parse().unwrap()).collect();
        run(&device, side(image), side(frame), &radii);
    }
    let wrong = device.wrong.borrow();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
