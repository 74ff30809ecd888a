//! The graph on one device, recorded stage by stage, and the way of an image through it.
//!
//! ```text
//! plane -> [resize, one for each image size] -> frame -> [network] -> scores, map of descriptors
//!       -> [suppress, one for each radius] -> survivors -> host: threshold, border, order, best k
//!       -> [sample] -> descriptors
//! ```
//!
//! Each bracket is a trace of its own, so that image sizes and radii add up instead of multiplying, and a new radius
//! compiles only its own few programs. The host takes part between suppression and sampling because TT-NN leaves the order
//! of equal values open and sorts bf16 only, in which scores often are equal, and keypoints have an order; what it looks at is
//! small.
//!
//! Memory: a trace replays on the addresses that it was recorded with, and what it used in between may have been given to
//! somebody else since. So all traces are recorded in one go after everything else is allocated, in the order in which an
//! image passes them, and their outputs are kept. A stage then overwrites nothing but what later stages of the same image
//! write anew. To prepare another size or radius all traces are released, the new programs run once outside of any trace
//! (which compiles them and writes their configuration), and everything is recorded again; that takes no compiling.

use std::time::{Duration, Instant};

use half::bf16;
use tt_metal_sys::{DType, Layout, Memory, Spec};

use super::device::{Device, Result};
use super::list;
use super::network::{Network, Outputs, PAGE};
use super::resize::{Resize, plane_spec};
use super::sample::{BATCH, Sampler};
use super::suppress::{PER_COLUMN, RADII, Survivors, survivors};
use crate::keypoints::{DESCRIPTOR_DIM, Extractor};
use crate::maps::{Maps, all_finite};
use crate::ranking::Ranking;
use crate::weights::Weights;
use crate::{Detections, Params, Postprocess, Size};

/// Image sizes that are kept prepared. The one that was not used for longest goes.
pub(super) const MAX_SIZES: usize = 8;

/// The graph, and what it needs between images.
#[derive(Debug)]
pub(super) struct Session<D: Device> {
    device: D,
    size: Size,
    network: Network<D>,
    sampler: Sampler<D>,
    /// The network's input, `[1, 1, HW / 32, 32]`.
    frame: D::Tensor,
    /// The most recently used last.
    sizes: Vec<Prepared<D>>,
    radii: Vec<usize>,
    recorded: Option<Recorded<D>>,
    host: Host,
}

/// One image size.
#[derive(Debug)]
struct Prepared<D: Device> {
    size: Size,
    resize: Resize<D>,
    plane: D::Tensor,
    /// From the plane to the frame.
    trace: Option<D::Trace>,
}

/// The stages that do not depend on the image's size.
#[derive(Debug)]
struct Recorded<D: Device> {
    network: D::Trace,
    outputs: Outputs<D::Tensor>,
    suppress: Vec<(usize, D::Trace, Survivors<D::Tensor>)>,
    sample: D::Trace,
    descriptors: D::Tensor,
}

/// Memory of the host's part.
#[derive(Debug)]
struct Host {
    scores: Vec<f32>,
    rows: Vec<u16>,
    reached: Vec<usize>,
    descriptors: Vec<u16>,
    ranking: Ranking,
    extractor: Extractor,
    maps: Maps,
}

/// What an image gave beside its keypoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Whether suppression ran on the device.
    pub(super) device_nms: bool,
    /// Whether all values were finite.
    pub(super) finite: bool,
    /// From the survivors or scores on the host to the descriptors.
    pub(super) keypoints: Duration,
}

/// The radius that the device suppresses with for these parameters, if it does.
pub(super) fn device_radius(params: &Params) -> Option<usize> {
    (params.postprocess == Postprocess::Package && RADII.contains(&params.nms_radius)).then_some(params.nms_radius)
}

impl<D: Device> Session<D> {
    /// Brings the weights to the device, runs the network once, and prepares nothing else yet.
    pub(super) fn new(device: D, weights: &Weights, size: Size) -> Result<Self> {
        let network = Network::new(&device, weights, size)?;
        let sampler = Sampler::new(&device, size)?;
        let frame = device.allocate(plane_spec(size, size))?;
        let outputs = network.run(&device, &frame)?;
        sampler.run(&device, &outputs.descriptors)?;
        device.synchronize()?;
        let host = Host {
            scores: Vec::new(),
            rows: Vec::new(),
            reached: Vec::new(),
            descriptors: vec![0; BATCH * DESCRIPTOR_DIM],
            ranking: Ranking::default(),
            extractor: Extractor::default(),
            maps: Maps::new(size),
        };
        Ok(Self { device, size, network, sampler, frame, sizes: Vec::new(), radii: Vec::new(), recorded: None, host })
    }

    /// Whether planes of `size` can be run with `params` without preparing anything.
    pub(super) fn is_prepared(&self, size: Size, params: &Params) -> bool {
        self.recorded.is_some()
            && self.sizes.iter().any(|prepared| prepared.size == size)
            && device_radius(params).is_none_or(|radius| self.radii.contains(&radius))
    }

    /// Prepares sizes and radii that are new.
    pub(super) fn prepare(&mut self, sizes: &[Size], radii: &[usize]) -> Result<()> {
        self.recorded = None;
        for prepared in &mut self.sizes {
            prepared.trace = None;
        }
        for &radius in radii {
            if !self.radii.contains(&radius) {
                let scores = self.device.allocate(scores_spec(self.size))?;
                survivors(&self.device, &scores, self.size, radius)?;
                self.radii.push(radius);
            }
        }
        for &size in sizes {
            if !self.touch(size) {
                let prepared = self.prepare_size(size)?;
                if self.sizes.len() == MAX_SIZES {
                    self.sizes.remove(0);
                }
                self.sizes.push(prepared);
            }
        }
        self.device.synchronize()?;
        self.record()
    }

    fn prepare_size(&self, size: Size) -> Result<Prepared<D>> {
        let resize = Resize::new(&self.device, size, self.size)?;
        let plane = self.device.allocate(plane_spec(size, self.size))?;
        resize.run(&self.device, &plane, &self.frame)?;
        Ok(Prepared { size, resize, plane, trace: None })
    }

    /// Makes `size` the most recently used; says whether it is prepared.
    fn touch(&mut self, size: Size) -> bool {
        let Some(position) = self.sizes.iter().position(|prepared| prepared.size == size) else {
            return false;
        };
        let prepared = self.sizes.remove(position);
        self.sizes.push(prepared);
        true
    }

    /// Records all stages, in the order of an image's way.
    fn record(&mut self) -> Result<()> {
        let Self { device, frame, .. } = self;
        for Prepared { resize, plane, trace, .. } in &mut self.sizes {
            *trace = Some(device.record(|| resize.run(device, plane, frame))?.0);
        }
        let (network, outputs) = device.record(|| self.network.run(device, frame))?;
        let suppress = self.radii.iter().map(|&radius| {
            let (trace, survivors) = device.record(|| survivors(device, &outputs.scores, self.size, radius))?;
            Ok((radius, trace, survivors))
        });
        let suppress = suppress.collect::<Result<_>>()?;
        let (sample, descriptors) = device.record(|| self.sampler.run(device, &outputs.descriptors))?;
        self.recorded = Some(Recorded { network, outputs, suppress, sample, descriptors });
        Ok(())
    }

    /// How long the device takes for all stages of an image, from its plane to descriptors, `times` times one right after the
    /// other. Size and radius must be prepared, and an image of the size have been through.
    pub(super) fn replay(&mut self, size: Size, params: &Params, times: usize) -> Result<Duration> {
        let prepared = self.sizes.iter().find(|prepared| prepared.size == size);
        let resize = prepared.and_then(|prepared| prepared.trace.as_ref()).ok_or_else(|| unprepared(size))?;
        let recorded = self.recorded.as_ref().ok_or_else(|| unprepared(size))?;
        let suppress = recorded.suppress.iter().find(|(radius, ..)| Some(*radius) == device_radius(params));
        let (_, suppress, _) = suppress.ok_or_else(|| unprepared(size))?;
        self.device.synchronize()?;
        let start = Instant::now();
        for _ in 0..times {
            for trace in [resize, &recorded.network, suppress, &recorded.sample] {
                self.device.replay(trace)?;
            }
        }
        self.device.synchronize()?;
        Ok(start.elapsed())
    }

    /// Replaces the keypoints in `out` by those of a plane of 0 to 255 in bf16 (as bits), row-major. Its size and the radius
    /// must be prepared.
    pub(super) fn detect(
        &mut self,
        size: Size,
        plane: &[u16],
        params: &Params,
        out: &mut Detections,
    ) -> Result<Outcome> {
        self.touch(size);
        let prepared = self.sizes.last().filter(|prepared| prepared.size == size).ok_or_else(|| unprepared(size))?;
        let resize = prepared.trace.as_ref().ok_or_else(|| unprepared(size))?;
        let recorded = self.recorded.as_ref().ok_or_else(|| unprepared(size))?;
        self.device.write(&prepared.plane, plane)?;
        self.device.replay(resize)?;
        self.device.replay(&recorded.network)?;

        let host = &mut self.host;
        let radius = device_radius(params);
        let suppress = recorded.suppress.iter().find(|(prepared, ..)| Some(*prepared) == radius);
        let mut outcome = Outcome { device_nms: false, finite: true, keypoints: Duration::ZERO };
        let mut read = Instant::now();
        if let Some((_, trace, survivors)) = suppress {
            self.device.replay(trace)?;
            host.scores.resize(self.size.width * PER_COLUMN, 0.0);
            host.rows.resize(self.size.width * PER_COLUMN, 0);
            self.device.read_f32(&survivors.scores, &mut host.scores)?;
            self.device.read(&survivors.rows, &mut host.rows)?;
            read = Instant::now();
            let Host { scores, rows, reached, ranking, .. } = host;
            outcome.device_nms = list::rank(scores, rows, self.size, params, reached, ranking);
        }
        if outcome.device_nms {
            outcome.finite = all_finite(&host.scores);
            host.ranking.best(params.max_keypoints, self.size, out);
        } else {
            self.device.read_f32(&recorded.outputs.scores, &mut host.maps.scores)?;
            read = Instant::now();
            outcome.finite = all_finite(&host.maps.scores);
            host.extractor.find(&host.maps, params, out);
        }

        out.descriptors.clear();
        out.has_descriptors = params.return_descriptors;
        if params.return_descriptors {
            for points in out.points.chunks(BATCH) {
                self.sampler.write(&self.device, points)?;
                self.device.replay(&recorded.sample)?;
                self.device.read(&recorded.descriptors, &mut host.descriptors)?;
                let sampled = &host.descriptors[..points.len() * DESCRIPTOR_DIM];
                out.descriptors.extend(sampled.iter().map(|&bits| bf16::from_bits(bits).to_f32()));
            }
            outcome.finite &= all_finite(&out.descriptors);
        }
        outcome.keypoints = read.elapsed();
        Ok(outcome)
    }
}

#[cfg(test)]
impl<D: Device> Session<D> {
    pub(super) fn device(&self) -> &D {
        &self.device
    }

    /// Sizes that are prepared, the most recently used last.
    pub(super) fn sizes(&self) -> Vec<Size> {
        self.sizes.iter().map(|prepared| prepared.size).collect()
    }

    /// Score map and map of descriptors of the last image.
    pub(super) fn maps(&self) -> Result<Maps> {
        let recorded = self.recorded.as_ref().ok_or_else(|| unprepared(self.size))?;
        let mut maps = Maps::new(self.size);
        self.device.read_f32(&recorded.outputs.scores, &mut maps.scores)?;
        let mut descriptors = vec![0; self.device.spec(&recorded.outputs.descriptors).volume()];
        self.device.read(&recorded.outputs.descriptors, &mut descriptors)?;
        maps.descriptors = descriptors.into_iter().map(|bits| bf16::from_bits(bits).to_f32()).collect();
        Ok(maps)
    }
}

/// Spec of the score map.
pub(super) fn scores_spec(frame: Size) -> Spec {
    Spec { shape: [1, 1, frame.area() / PAGE, PAGE], dtype: DType::F32, layout: Layout::RowMajor, memory: Memory::Dram }
}

/// The caller's mistake, told as what it is.
fn unprepared(size: Size) -> super::device::DeviceError {
    super::device::DeviceError { operation: "replay", reason: format!("images of {size} are not prepared") }
}
