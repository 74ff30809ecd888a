//! The graph without a card: TT-NN's own checks and plans on a mock p150.
//!
//! A mock card runs TT-NN's host code, so it says whether every operation is accepted with its
//! shapes, layouts and memory, how much L1 it takes, and whether a second pass compiles anything, which a trace must not.
//! It computes nothing, and cannot record traces.

use tt_metal_sys::{DeviceInfo, DeviceOptions, Library, Spec, Usage};

use super::device::{self, Device, DeviceError};
use super::network::Network;
use super::resize::{Resize, plane_spec};
use super::sample::Sampler;
use super::session::scores_spec;
use super::suppress::survivors;
use super::ttnn::Ttnn;
use crate::keypoints::DESCRIPTOR_DIM;
use crate::weights::Weights;
use crate::{Error, Size};

/// What a rehearsal found.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    /// The device.
    pub device: DeviceInfo,
    /// Peak use of each stage, in the order of an image's way.
    pub stages: Vec<(String, Usage)>,
}

/// All stages with everything they need on the device.
struct Stages {
    device: Ttnn,
    handle: tt_metal_sys::Device,
    size: Size,
    network: Network<Ttnn>,
    sampler: Sampler<Ttnn>,
    frame: tt_metal_sys::Tensor,
    scores: tt_metal_sys::Tensor,
    map: tt_metal_sys::Tensor,
    resizes: Vec<(Size, Resize<Ttnn>, tt_metal_sys::Tensor)>,
    radii: Vec<usize>,
}

impl Stages {
    fn new(library: &Library, weights: &Weights, sizes: &[Size], radii: &[usize]) -> device::Result<Self> {
        library.mock()?;
        let handle = library.open(&DeviceOptions::default())?;
        let device = Ttnn::new(handle.clone());
        let size = Size::NETWORK;
        let resizes = sizes
            .iter()
            .map(|&image| Ok((image, Resize::new(&device, image, size)?, device.allocate(plane_spec(image, size))?)));
        let frame = plane_spec(size, size);
        let map = Spec { shape: [1, 1, size.cells().area(), DESCRIPTOR_DIM], ..frame };
        Ok(Self {
            network: Network::new(&device, weights, size)?,
            sampler: Sampler::new(&device, size)?,
            frame: device.allocate(frame)?,
            scores: device.allocate(scores_spec(size))?,
            map: device.allocate(map)?,
            resizes: resizes.collect::<device::Result<_>>()?,
            radii: radii.to_vec(),
            size,
            device,
            handle,
        })
    }

    /// Runs every stage through `run`, which is given its name.
    fn each(
        &self,
        mut run: impl FnMut(String, &dyn Fn() -> device::Result<()>) -> device::Result<()>,
    ) -> device::Result<()> {
        let device = &self.device;
        for (size, resize, plane) in &self.resizes {
            run(format!("resize {size}"), &|| resize.run(device, plane, &self.frame))?;
        }
        run("network".into(), &|| self.network.run(device, &self.frame).map(drop))?;
        for &radius in &self.radii {
            run(format!("suppress {radius}"), &|| survivors(device, &self.scores, self.size, radius).map(drop))?;
        }
        run("sample".into(), &|| self.sampler.run(device, &self.map).map(drop))
    }
}

/// Plans every stage without running anything. Needs fast dispatch, the default.
///
/// # Errors
///
/// The first operation that TT-NN refuses.
pub fn plan(library: &Library, weights: &Weights, sizes: &[Size], radii: &[usize]) -> Result<Rehearsal, Error> {
    let plan = || {
        let stages = Stages::new(library, weights, sizes, radii)?;
        let mut found = Vec::new();
        stages.each(|name, run| {
            let (usage, ()) = stages.handle.dry_run(run).map_err(|error| DeviceError {
                operation: error.operation,
                reason: format!("in stage {name}: {}", error.reason),
            })?;
            found.push((name, usage));
            Ok(())
        })?;
        Ok(Rehearsal { device: stages.handle.info()?, stages: found })
    };
    plan().map_err(|error: DeviceError| Error::Device { reason: error.to_string() })
}

/// Runs every stage `passes` times, and says how many programs are in TT-NN's cache after each pass: a trace may be recorded
/// only if the second pass adds none. Needs slow dispatch (`TT_METAL_SLOW_DISPATCH_MODE=1`).
///
/// # Errors
///
/// The first operation that TT-NN refuses.
pub fn run(
    library: &Library,
    weights: &Weights,
    sizes: &[Size],
    radii: &[usize],
    passes: usize,
) -> Result<Vec<u64>, Error> {
    let run = || {
        let stages = Stages::new(library, weights, sizes, radii)?;
        let passes = (0..passes).map(|_| {
            stages.each(|_, run| run())?;
            Ok(stages.handle.info()?.cached_programs)
        });
        passes.collect::<device::Result<Vec<u64>>>()
    };
    run().map_err(|error: DeviceError| Error::Device { reason: error.to_string() })
}
