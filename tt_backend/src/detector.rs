//! The one entry of this crate: planes in, detections out.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::cpu::CpuBackend;
use crate::p150::{self, P150Backend};
use crate::weights::{Provenance, Weights};
use crate::{Detections, Error, Params, Plane, Size};

/// Something that can run SuperPoint on a plane.
///
/// A backend does all of a detection, because a device may do all of it: resizing, the network, suppression,
/// the choice of keypoints and the sampling of descriptors. What it leaves to the host it takes from this
/// crate ([`crate::resize`], [`crate::keypoints`]).
pub trait Backend: fmt::Debug + Send {
    /// What runs where, for people: `cpu, 2 threads`.
    fn description(&self) -> String;

    /// Replaces `out` by the keypoints of `plane`. `params` are in range.
    ///
    /// # Errors
    ///
    /// When the device fails; never because of what is on the image.
    fn detect(&mut self, plane: &Plane<'_>, params: &Params, out: &mut Detections) -> Result<(), Error>;
}

/// Which backend to open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// A p150 where there is one, else the CPU.
    #[default]
    Auto,
    /// The p150, or an error that says what is missing.
    P150,
    /// The CPU.
    Cpu,
}

impl BackendChoice {
    /// The name in every interface of the product.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::P150 => "p150",
            Self::Cpu => "cpu",
        }
    }
}

impl FromStr for BackendChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        [Self::Auto, Self::P150, Self::Cpu].into_iter().find(|choice| choice.name() == text).ok_or_else(|| {
            Error::Param { name: "backend", value: format!("`{text}`"), expected: "`auto`, `p150` or `cpu`" }
        })
    }
}

/// How to open a [`Detector`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which backend.
    pub backend: BackendChoice,
    /// A weights file; `None` searches as [`Weights::locate`] says.
    pub weights: Option<PathBuf>,
    /// Threads of the CPU backend; 0 is one for each core.
    pub threads: usize,
    /// Size of the network frame.
    pub network: Size,
}

/// Which backend and which weights a detector has.
#[derive(Clone, Debug)]
pub struct Model {
    /// `p150` or `cpu`.
    pub backend: BackendChoice,
    /// What runs where, for people.
    pub description: String,
    /// Threads of the CPU backend; 0 on a card.
    pub threads: usize,
    /// Why this backend and not the other, when that was not the caller's choice.
    pub reason: Option<String>,
    /// Where the weights came from.
    pub weights: Provenance,
    /// Size of the network frame.
    pub network: Size,
}

/// Finds keypoints. Blocking; owned by one thread at a time.
///
/// ```no_run
/// use tt_backend::{Detector, Options, Params, Plane, Size};
///
/// let mut detector = Detector::open(&Options::default())?;
/// let pixels = vec![0u8; 480 * 640];
/// let plane = Plane::contiguous(&pixels, Size::new(480, 640))?;
/// let detections = detector.detect(&plane, &Params::default())?;
/// for ([x, y], score) in detections.points.iter().zip(&detections.scores) {
///     println!("{x} {y} {score}");
/// }
/// # Ok::<(), tt_backend::Error>(())
/// ```
#[derive(Debug)]
pub struct Detector {
    backend: Box<dyn Backend>,
    model: Model,
}

impl Options {
    /// More threads than any machine that this runs on has cores.
    pub const MAX_THREADS: usize = 1024;

    fn check(&self) -> Result<(), Error> {
        if self.threads > Self::MAX_THREADS {
            return Err(Error::Param {
                name: "threads",
                value: self.threads.to_string(),
                expected: "0 (one for each core) to 1024",
            });
        }
        Ok(())
    }
}

impl Detector {
    /// Finds and loads the weights and opens the backend.
    ///
    /// # Errors
    ///
    /// When the weights cannot be loaded, when the backend asked for is not to be had, or when the network
    /// size is not supported.
    pub fn open(options: &Options) -> Result<Self, Error> {
        options.check()?;
        if options.backend == BackendChoice::P150 {
            // Said before the weights are read: what is not installed is the cheaper thing to find out.
            p150::library()?;
        }
        Self::with_weights(&Weights::find(options.weights.as_deref())?, options)
    }

    /// As [`Detector::open`] with weights that are already in memory; `options.weights` is not looked at.
    ///
    /// # Errors
    ///
    /// As [`Detector::open`].
    pub fn with_weights(weights: &Weights, options: &Options) -> Result<Self, Error> {
        options.check()?;
        let (backend, name, threads, reason): Opened = match options.backend {
            BackendChoice::P150 => {
                (Box::new(P150Backend::open(weights, options.network)?), BackendChoice::P150, 0, None)
            }
            BackendChoice::Cpu => cpu(weights, options, None)?,
            BackendChoice::Auto => match P150Backend::open(weights, options.network) {
                Ok(backend) => (Box::new(backend), BackendChoice::P150, 0, None),
                Err(error) => cpu(weights, options, Some(error.to_string()))?,
            },
        };
        let model = Model {
            backend: name,
            description: backend.description(),
            threads,
            reason,
            weights: weights.provenance.clone(),
            network: options.network,
        };
        Ok(Self { backend, model })
    }

    /// Which backend and which weights this is.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Keypoints of one plane.
    ///
    /// # Errors
    ///
    /// When a parameter is out of range or the device fails. No keypoints are no error.
    pub fn detect(&mut self, plane: &Plane<'_>, params: &Params) -> Result<Detections, Error> {
        let mut detections = Detections::default();
        self.detect_into(plane, params, &mut detections)?;
        Ok(detections)
    }

    /// As [`Detector::detect`], into detections that are used again: a stream of images then allocates nothing.
    ///
    /// # Errors
    ///
    /// As [`Detector::detect`]; `out` is then of no use.
    pub fn detect_into(&mut self, plane: &Plane<'_>, params: &Params, out: &mut Detections) -> Result<(), Error> {
        params.check()?;
        self.backend.detect(plane, params, out)
    }
}

type Opened = (Box<dyn Backend>, BackendChoice, usize, Option<String>);

/// The CPU backend, and why it was chosen.
fn cpu(weights: &Weights, options: &Options, reason: Option<String>) -> Result<Opened, Error> {
    let backend = CpuBackend::new(weights, options.network, options.threads)?;
    let threads = backend.threads();
    Ok((Box::new(backend), BackendChoice::Cpu, threads, reason))
}
