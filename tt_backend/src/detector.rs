//! The one entry of this crate: planes in, detections out.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cpu::CpuBackend;
use crate::p150::{self, P150Backend};
use crate::weights::{Provenance, Weights};
use crate::{Detections, Error, Params, Plane, ServingPath, Size};

/// Something that can run SuperPoint on a plane.
///
/// A backend does all of a detection, because a device may do all of it: resizing, the network, suppression,
/// the choice of keypoints and the sampling of descriptors. What it leaves to the host it takes from this
/// crate ([`crate::resize`], [`crate::keypoints`]).
pub trait Backend: fmt::Debug + Send {
    /// What runs where, for people: `cpu, 2 threads`.
    fn description(&self) -> String;

    /// The way that an image of a prepared size takes with default parameters.
    fn serving_path(&self) -> ServingPath;

    /// Image sizes that need no preparation at their first image.
    fn prepared(&self) -> Vec<Size>;

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

/// What to do when the card fails in the middle of its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Every detection from then on is an error.
    #[default]
    None,
    /// Go on with the CPU.
    Cpu,
}

impl Fallback {
    /// The name in every interface of the product.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cpu => "cpu",
        }
    }
}

impl FromStr for Fallback {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        [Self::None, Self::Cpu].into_iter().find(|fallback| fallback.name() == text).ok_or_else(|| Error::Param {
            name: "fallback",
            value: format!("`{text}`"),
            expected: "`none` or `cpu`",
        })
    }
}

/// How to open a [`Detector`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which backend.
    pub backend: BackendChoice,
    /// Number of the card, as `tt-smi -ls` counts them.
    pub device_id: u32,
    /// What to do when the card fails in the middle of its work.
    pub fallback: Fallback,
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
    /// Whether this is what took the place of a card that failed.
    pub is_fallback: bool,
    /// The way that an image of a prepared size takes with default parameters.
    pub serving_path: ServingPath,
    /// Image sizes that were prepared at the start. A card keeps the eight that were used last.
    pub prepared: Vec<Size>,
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
    watch: Watch,
    model: Arc<Model>,
    /// What the CPU backend needs, where it is to take over from the card.
    reserve: Option<Reserve>,
}

#[derive(Debug)]
struct Reserve {
    weights: Weights,
    threads: usize,
}

/// What others may see of a detector while its thread works with it. Clones see the same detector.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Mutex<Seen>>);

#[derive(Debug)]
struct Seen {
    model: Arc<Model>,
    failure: Option<String>,
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        // Each field is written whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Detector::model`]. It changes when the CPU takes over from a card.
    pub fn model(&self) -> Arc<Model> {
        Arc::clone(&self.lock().model)
    }

    /// Why the last detection failed, if it did and not by its parameters.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }
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
        let card = || P150Backend::open(weights, options.network, options.device_id);
        let (card, reason) = match options.backend {
            BackendChoice::P150 => (Some(card()?), None),
            BackendChoice::Cpu => (None, None),
            BackendChoice::Auto => match card() {
                Ok(card) => (Some(card), None),
                Err(error) => (None, Some(error.to_string())),
            },
        };
        let Some(card) = card else {
            let backend = CpuBackend::new(weights, options.network, options.threads)?;
            let model = Model { reason, ..cpu_model(&backend, weights, options.network) };
            return Ok(Self::with_backend(Box::new(backend), model));
        };
        let model = model(BackendChoice::P150, &card, weights, options.network);
        let mut detector = Self::with_backend(Box::new(card), model);
        if options.fallback == Fallback::Cpu {
            detector.reserve = Some(Reserve { weights: weights.clone(), threads: options.threads });
        }
        Ok(detector)
    }

    /// A detector with a backend of the caller's own.
    pub fn with_backend(backend: Box<dyn Backend>, model: Model) -> Self {
        let model = Arc::new(model);
        let watch = Watch(Arc::new(Mutex::new(Seen { model: Arc::clone(&model), failure: None })));
        Self { backend, watch, model, reserve: None }
    }

    /// Which backend and which weights this is.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The view for other threads.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
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
        let mut result = self.backend.detect(plane, params, out);
        if let Err(Error::Device { reason }) = &result
            && let Some(reserve) = self.reserve.take()
        {
            result = self.fall_back(reserve, reason).and_then(|()| self.backend.detect(plane, params, out));
        }
        self.watch.lock().failure = result.as_ref().err().map(ToString::to_string);
        result
    }

    /// Puts the CPU into the card's place.
    fn fall_back(&mut self, Reserve { weights, threads }: Reserve, reason: &str) -> Result<(), Error> {
        let backend = CpuBackend::new(&weights, self.model.network, threads)?;
        let reason = Some(format!("the p150 failed: {reason}"));
        let model = cpu_model(&backend, &weights, self.model.network);
        self.model = Arc::new(Model { reason, is_fallback: true, ..model });
        self.watch.lock().model = Arc::clone(&self.model);
        self.backend = Box::new(backend);
        Ok(())
    }
}

/// What is known of a backend that was asked for.
fn model(name: BackendChoice, backend: &dyn Backend, weights: &Weights, network: Size) -> Model {
    Model {
        backend: name,
        description: backend.description(),
        threads: 0,
        reason: None,
        is_fallback: false,
        serving_path: backend.serving_path(),
        prepared: backend.prepared(),
        weights: weights.provenance.clone(),
        network,
    }
}

fn cpu_model(backend: &CpuBackend, weights: &Weights, network: Size) -> Model {
    Model { threads: backend.threads(), ..model(BackendChoice::Cpu, backend, weights, network) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timings;

    /// A card that answers `good` times and then is lost.
    #[derive(Debug)]
    struct Card {
        good: usize,
        reason: fn() -> Error,
    }

    fn lost() -> Error {
        Error::Device { reason: "it is lost".into() }
    }

    impl Backend for Card {
        fn description(&self) -> String {
            "a card".into()
        }

        fn serving_path(&self) -> ServingPath {
            ServingPath { traced: true, device_nms: true }
        }

        fn prepared(&self) -> Vec<Size> {
            vec![Size::NETWORK]
        }

        fn detect(&mut self, plane: &Plane<'_>, _: &Params, out: &mut Detections) -> Result<(), Error> {
            self.good = self.good.checked_sub(1).ok_or_else(self.reason)?;
            *out = Detections { original: plane.size(), serving_path: self.serving_path(), ..Detections::default() };
            out.timings = Timings::default();
            Ok(())
        }
    }

    fn detector(reason: fn() -> Error, fallback: Fallback) -> Detector {
        let weights = Weights::bundled().expect("bundled");
        let card = Card { good: 1, reason };
        let model = model(BackendChoice::P150, &card, &weights, Size::new(16, 16));
        let mut detector = Detector::with_backend(Box::new(card), model);
        if fallback == Fallback::Cpu {
            detector.reserve = Some(Reserve { weights, threads: 1 });
        }
        detector
    }

    fn detect(detector: &mut Detector) -> Result<Detections, Error> {
        detector.detect(&Plane::contiguous(&[128; 256], Size::new(16, 16))?, &Params::default())
    }

    #[test]
    fn a_card_that_is_lost_is_seen_from_outside() -> Result<(), Error> {
        let mut detector = detector(lost, Fallback::None);
        let watch = detector.watch();
        detect(&mut detector)?;
        assert_eq!((watch.model().backend, watch.failure()), (BackendChoice::P150, None));
        for _ in 0..2 {
            assert!(detect(&mut detector).is_err());
            assert_eq!(watch.failure().as_deref(), Some("the p150 failed: it is lost"));
        }
        let wrong = Params { nms_radius: 99, ..Params::default() };
        assert!(detector.detect(&Plane::contiguous(&[0; 4], Size::new(2, 2))?, &wrong).is_err());
        assert_eq!(watch.failure().as_deref(), Some("the p150 failed: it is lost"), "a wrong parameter says nothing");
        Ok(())
    }

    #[test]
    fn the_cpu_takes_over_where_it_may() -> Result<(), Error> {
        let mut detector = detector(lost, Fallback::Cpu);
        let watch = detector.watch();
        assert!(detect(&mut detector)?.serving_path.traced);
        for _ in 0..2 {
            let found = detect(&mut detector)?;
            assert_eq!((found.serving_path, found.network), (ServingPath::default(), Size::new(16, 16)));
        }
        let model = watch.model();
        assert_eq!((model.backend, model.is_fallback, model.threads), (BackendChoice::Cpu, true, 1));
        assert_eq!(model.reason.as_deref(), Some("the p150 failed: it is lost"));
        assert_eq!((watch.failure(), detector.model().backend), (None, BackendChoice::Cpu));
        Ok(())
    }

    /// Weights that overflow on the card overflow on the CPU.
    #[test]
    fn only_the_cards_own_failures_bring_in_the_cpu() -> Result<(), Error> {
        let mut detector = detector(|| Error::NotFinite { weights: "odd".into() }, Fallback::Cpu);
        detect(&mut detector)?;
        assert!(matches!(detect(&mut detector), Err(Error::NotFinite { .. })));
        assert_eq!(detector.model().backend, BackendChoice::P150);
        Ok(())
    }

    #[test]
    fn names_are_read_back() -> Result<(), Error> {
        for fallback in [Fallback::None, Fallback::Cpu] {
            assert_eq!(fallback.name().parse::<Fallback>()?, fallback);
        }
        assert!("gpu".parse::<Fallback>().expect_err("no fallback").to_string().contains("`gpu`"));
        Ok(())
    }
}
