//! All of a detection on a p150.

use std::any::Any;
use std::time::{Duration, Instant};

use half::bf16;
use tt_metal_sys::{Arch, DeviceOptions, Dispatch, LIBRARY_VARIABLE, Library, LoadError};

use super::device::DeviceError;
use super::resize;
use super::self_test;
use super::session::{Session, device_radius};
use super::suppress::RADII;
use super::ttnn::Ttnn;
use super::worker::{Deadlines, Job, Worker};
use crate::plane::Samples;
use crate::resize::Resizer;
use crate::team::{self, Team};
use crate::weights::Weights;
use crate::{Backend, Detections, Error, Params, Plane, Postprocess, ServingPath, Size, Timings};

/// Sizes that are prepared at the start: the network's own and those of common cameras.
const PREPARED_SIZES: [Size; 4] = [Size::NETWORK, Size::new(720, 1280), Size::new(900, 1600), Size::new(1080, 1920)];
/// The radius that is prepared at the start: the default.
const PREPARED_RADII: [usize; 1] = [4];

/// How a card is opened.
fn device_options(device_id: u32) -> DeviceOptions {
    DeviceOptions {
        device_id,
        queues: 1,
        dispatch: Dispatch::Worker,
        l1_small_bytes: 32 << 10,
        // Of 32 GB of DRAM: eight resizes, the network, eight radii and the sampling. The published port's one trace fits into
        // 32 MB; whether this suffices no card has shown.
        trace_region_bytes: 128 << 20,
    }
}

/// A card with the network on it.
#[derive(Debug)]
pub struct P150Backend {
    worker: Worker,
    name: String,
    /// Name of the weights.
    weights: String,
    size: Size,
    resizer: Resizer,
    /// Resizes what the card does not.
    team: Team,
    frame: Vec<f32>,
    /// What goes to the card and comes back, empty only while it is there.
    plane: Vec<u16>,
}

impl P150Backend {
    /// Opens card number `device_id`, brings the weights to it and prepares common image sizes. Compiles kernels on a first start,
    /// which takes minutes.
    ///
    /// # Errors
    ///
    /// [`Error::BackendUnavailable`] says what is missing and what to install or to do.
    pub fn open(weights: &Weights, size: Size, device_id: u32) -> Result<Self, Error> {
        let library = library()?;
        if size != Size::NETWORK {
            // What the memory of the cores was divided up for.
            return Err(unavailable(format!("its network frame is {}, not {size}", Size::NETWORK)));
        }
        let loaded = weights.clone();
        let open = move |step: &dyn Fn(), card: &mut _| open_session(&library, &loaded, size, device_id, step, card);
        let (worker, name) = Worker::start(Deadlines::default(), open).map_err(|error| match error {
            Error::Device { reason } => unavailable(reason),
            error => error,
        })?;
        Self::with_worker(worker, name, weights, size)
    }

    pub(super) fn with_worker(worker: Worker, name: String, weights: &Weights, size: Size) -> Result<Self, Error> {
        Ok(Self {
            team: Team::new(team::cores())?,
            worker,
            name,
            weights: weights.provenance.name.clone(),
            size,
            resizer: Resizer::new(size),
            frame: Vec::new(),
            plane: Vec::new(),
        })
    }

    /// Whether the card itself resizes this plane and suppresses with these parameters; if not, the error says what is left to
    /// the host, and why.
    ///
    /// # Errors
    ///
    /// A sentence.
    pub fn does_all_of(plane: &Plane<'_>, params: &Params) -> Result<(), String> {
        if plane.samples() != Samples::U8 {
            return Err("images of 16 bits are resized on the host".to_owned());
        }
        if !takes(plane) {
            let max = resize::MAX_SIDE;
            return Err(format!(
                "images of {} are resized on the host; the card takes sides up to {max}",
                plane.size()
            ));
        }
        if params.postprocess == Postprocess::Upstream {
            return Err("suppression of postprocess `upstream` runs on the host".to_owned());
        }
        if device_radius(params).is_none() {
            let (radius, last) = (params.nms_radius, RADII.end());
            return Err(format!("suppression with radius {radius} runs on the host; the card takes 1 to {last}"));
        }
        Ok(())
    }

    /// How long the card takes for `times` images of `size`, one right after the other, from the plane in its memory to the
    /// descriptors; nothing is uploaded or read. An image of this size and radius must have been detected before.
    ///
    /// # Errors
    ///
    /// When none has been, or the card fails; it is not used after that.
    pub fn replay(&mut self, size: Size, params: &Params, times: usize) -> Result<Duration, Error> {
        self.worker.replay(size, params, times)
    }

    /// Puts into `self.plane` what goes to the card, 0 to 255 in bf16 as bits; returns its size. What the card does not
    /// resize is resized here: large planes, and those of 16 bits, of which bf16 would lose half before they are resized.
    fn stage(&mut self, plane: &Plane<'_>) -> Size {
        self.plane.clear();
        if takes(plane) {
            // bf16 holds these exactly.
            let levels: [u16; 256] = std::array::from_fn(|level| bf16::from_f32(level as f32).to_bits());
            let rows = (0..plane.size().height).map(|y| plane.row_u8(y));
            rows.for_each(|row| self.plane.extend(row.map(|sample| levels[usize::from(sample)])));
            return plane.size();
        }
        self.resizer.resize(plane, &mut self.team, &mut self.frame);
        self.plane.extend(self.frame.iter().map(|&value| bf16::from_f32(255.0 * value).to_bits()));
        self.size
    }
}

/// Whether a plane goes to the card as it is.
fn takes(plane: &Plane<'_>) -> bool {
    plane.samples() == Samples::U8 && resize::covers(plane.size())
}

/// Whether there is a library to call. Cheap, and asks nothing of a card.
///
/// # Errors
///
/// [`Error::BackendUnavailable`].
pub(crate) fn library() -> Result<Library, Error> {
    Library::load().map_err(|error| {
        unavailable(match error {
            LoadError::Open { .. } => format!(
                "{error}; install TT-NN, build libttsp.so from tt_backend/tt-metal-sys/shim against it, and name the file in \
                 {LIBRARY_VARIABLE}"
            ),
            _ => format!("{error}; build it again from tt_backend/tt-metal-sys/shim"),
        })
    })
}

fn unavailable(reason: String) -> Error {
    Error::BackendUnavailable { backend: "p150", reason }
}

/// Opens the card and prepares it, and calls `step` after each step of that; errors are sentences.
fn open_session(
    library: &Library,
    weights: &Weights,
    size: Size,
    device_id: u32,
    step: &dyn Fn(),
    card: &mut Option<Box<dyn Any>>,
) -> Result<(Session<Ttnn>, String), String> {
    let device = library.open(&device_options(device_id)).map_err(|error| {
        if error.reason.contains("No chips detected") {
            return "no card is found: `tt-smi -ls` must list it; check that it sits in its slot and that the kernel driver \
                    tt-kmd is installed"
                .to_owned();
        }
        if error.reason.contains("Root Directory is not set") {
            return "TT-NN does not find its own files: set TT_METAL_RUNTIME_ROOT to the folder that has its tt_metal/, the \
                    source tree that it was built in"
                .to_owned();
        }
        format!("card {device_id} cannot be opened: {}; if another program has it, end that", error.reason)
    })?;
    *card = Some(Box::new(device.clone()));
    let info = device.info().map_err(|error| error.to_string())?;
    match info.arch {
        Arch::Blackhole => {}
        Arch::Wormhole => {
            return Err(format!("card {device_id} is a Wormhole card, and no Blackhole card such as the p150"));
        }
        _ => return Err(format!("card {device_id} is no Blackhole card such as the p150")),
    }
    let [columns, rows] = info.grid;
    let name = format!("p150, {columns}x{rows} cores, TT-NN {}", library.ttnn_version());
    let session = (|| {
        let device = Ttnn::new(device);
        step();
        self_test::run(&device, weights, size)?;
        step();
        let mut session = Session::new(device, weights, size)?;
        step();
        session.prepare(&PREPARED_SIZES, &PREPARED_RADII)?;
        step();
        self_test::replays(&mut session, weights, PREPARED_SIZES[PREPARED_SIZES.len() - 1], size)?;
        Ok(session)
    })();
    Ok((session.map_err(|error: DeviceError| error.to_string())?, name))
}

impl Backend for P150Backend {
    fn description(&self) -> String {
        self.name.clone()
    }

    fn serving_path(&self) -> ServingPath {
        ServingPath { traced: true, device_nms: true }
    }

    fn prepared(&self) -> Vec<Size> {
        PREPARED_SIZES.to_vec()
    }

    fn detect(&mut self, plane: &Plane<'_>, params: &Params, out: &mut Detections) -> Result<(), Error> {
        let start = Instant::now();
        let size = self.stage(plane);
        let staged = start.elapsed();
        let job =
            Job { size, plane: std::mem::take(&mut self.plane), params: params.clone(), out: std::mem::take(out) };
        let done = self.worker.run(job)?;
        self.plane = done.job.plane;
        *out = done.job.out;
        if !done.outcome.finite {
            return Err(Error::NotFinite { weights: self.weights.clone() });
        }
        out.network = self.size;
        out.original = plane.size();
        out.serving_path = ServingPath { traced: true, device_nms: done.outcome.device_nms };
        out.timings = Timings {
            resize: staged,
            network: done.elapsed.saturating_sub(done.outcome.keypoints),
            keypoints: done.outcome.keypoints,
        };
        Ok(())
    }
}
