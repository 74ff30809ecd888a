//! The node's parameters: their names, defaults, ranges and what they say of themselves.
//!
//! `parameter_services` shows this table to ROS; what a value must be is checked here, whoever sets it.

use std::path::PathBuf;
use std::sync::Arc;

use r2r::{ParameterValue, QosProfile};
use tt_backend::{BackendChoice, Fallback, Options, Params, Size};

use super::mask::Mask;
use crate::channel::Channel;
use crate::http::Listen;
use crate::message::encoding::Range16;
use crate::message::keypoints::DescriptorType;

/// Every parameter of the node.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeParameters {
    /// What the next frame is processed with.
    pub(super) live: Live,
    /// What is read once, at start.
    pub(super) fixed: Fixed,
    running: bool,
}

/// Parameters that take effect on the next frame.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) detection: Params,
    pub(super) descriptor_type: DescriptorType,
    pub(super) channel: Channel,
    pub(super) range_16bit: Range16,
    /// Where keypoints are wanted; the text is the parameter that it was made of.
    pub(super) mask: Masks,
    /// Frames of each camera in a second at most; 0 is no limit.
    pub(super) max_rate_hz: f64,
    pub(super) lazy: bool,
    pub(super) overlay: bool,
    pub(super) use_sim_time: bool,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            detection: Params::default(),
            descriptor_type: DescriptorType::default(),
            channel: Channel::default(),
            range_16bit: Range16::default(),
            mask: Masks::default(),
            max_rate_hz: 0.0,
            lazy: false,
            overlay: true,
            use_sim_time: false,
        }
    }
}

/// The parameter `mask` and what it names: a mask for each camera, in the cameras' order.
#[derive(Clone, Debug, Default)]
pub(super) struct Masks {
    path: String,
    of_cameras: Vec<Arc<Mask>>,
}

impl Masks {
    /// What a camera's place in `mask` is called.
    const PLACEHOLDER: &str = "{camera}";

    fn load(path: &str, cameras: &[String]) -> Result<Self, String> {
        let of_cameras = if path.is_empty() {
            Vec::new()
        } else {
            let names = if cameras.is_empty() { &[String::new()] } else { cameras };
            let masks = names.iter().map(|name| {
                let file = path.replace(Self::PLACEHOLDER, name.trim_matches('/'));
                Mask::load(&PathBuf::from(file)).map(Arc::new)
            });
            masks.collect::<Result<_, _>>()?
        };
        Ok(Self { path: path.to_owned(), of_cameras })
    }

    /// The mask of the camera of this index.
    pub(super) fn of(&self, camera: usize) -> Option<&Mask> {
        self.of_cameras.get(camera).map(Arc::as_ref)
    }
}

/// How images arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Transport {
    /// `sensor_msgs/Image`.
    #[default]
    Raw,
    /// `sensor_msgs/CompressedImage`.
    Compressed,
}

/// Quality of service of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quality {
    pub(super) reliable: bool,
    pub(super) depth: usize,
}

impl Quality {
    pub(super) fn profile(self) -> QosProfile {
        let profile = QosProfile::default().keep_last(self.depth);
        if self.reliable { profile.reliable() } else { profile.best_effort() }
    }

    /// The name in parameters and in the log.
    pub(super) fn reliability(self) -> &'static str {
        if self.reliable { "reliable" } else { "best_effort" }
    }
}

/// Parameters that are read at start and cannot be changed after.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
    pub(super) backend: BackendChoice,
    pub(super) device_id: u32,
    pub(super) fallback: Fallback,
    pub(super) weights: String,
    pub(super) threads: usize,
    /// Namespaces; none means one camera, in the node's own.
    pub(super) cameras: Vec<String>,
    pub(super) transport: Transport,
    pub(super) input: Quality,
    pub(super) output: Quality,
    /// The HTTP server, where it is wanted.
    pub(super) http_enabled: bool,
    pub(super) http: Listen,
}

impl Default for Fixed {
    fn default() -> Self {
        Self {
            backend: BackendChoice::Auto,
            device_id: 0,
            fallback: Fallback::None,
            weights: String::new(),
            threads: 0,
            cameras: Vec::new(),
            transport: Transport::Raw,
            input: Quality { reliable: false, depth: 5 },
            output: Quality { reliable: true, depth: 10 },
            http_enabled: false,
            http: Listen::default(),
        }
    }
}

impl Fixed {
    /// What the detector is opened with.
    pub(super) fn detector_options(&self) -> Options {
        Options {
            backend: self.backend,
            device_id: self.device_id,
            fallback: self.fallback,
            weights: (!self.weights.is_empty()).then(|| PathBuf::from(&self.weights)),
            threads: self.threads,
            network: Size::NETWORK,
        }
    }
}

/// What values a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Bool,
    /// Both ends belong to the range.
    Integer(i64, i64),
    Double(f64, f64),
    Text,
    OneOf(&'static [&'static str]),
    Texts,
    Integers,
}

/// One line of the table.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) description: &'static str,
    /// Read at start, and refused after.
    pub(super) read_only: bool,
}

const fn live(name: &'static str, kind: Kind, description: &'static str) -> Entry {
    Entry { name, kind, description, read_only: false }
}

const fn fixed(name: &'static str, kind: Kind, description: &'static str) -> Entry {
    Entry { name, kind, description, read_only: true }
}

const RELIABILITY: Kind = Kind::OneOf(&["best_effort", "reliable"]);

pub(super) const TABLE: &[Entry] = &[
    fixed(
        "backend",
        Kind::OneOf(&["auto", "p150", "cpu"]),
        "What runs the network: auto (a p150 if there is one, else the CPU), p150 or cpu.",
    ),
    fixed("device_id", Kind::Integer(0, 255), "Number of the p150, as `tt-smi -ls` counts them."),
    fixed(
        "fallback",
        Kind::OneOf(&["none", "cpu"]),
        "When the p150 fails in the middle of its work: none (frames are rejected from then on) or cpu.",
    ),
    fixed(
        "weights",
        Kind::Text,
        "Weights file (safetensors); empty: the Hugging Face cache if it holds SuperPoint, else the bundled ones.",
    ),
    fixed("threads", Kind::Integer(0, 1024), "CPU threads of the cpu backend; 0: one per core."),
    live(
        "max_keypoints",
        Kind::Integer(-1, Params::MAX_KEYPOINTS as i64),
        "The best so many keypoints of a frame are kept; -1 keeps all.",
    ),
    live("keypoint_threshold", Kind::Double(0.0, 1.0), "Keypoints must score above this."),
    live(
        "nms_radius",
        Kind::Integer(0, Params::MAX_NMS_RADIUS as i64),
        "Radius of non-maximum suppression in network pixels; 0: none.",
    ),
    live(
        "border_removal_distance",
        Kind::Integer(0, Params::MAX_BORDER as i64),
        "Keypoints closer than this to a border are dropped, in network pixels.",
    ),
    live(
        "postprocess",
        Kind::OneOf(&["package", "upstream"]),
        "How keypoints are picked: package, or upstream (as the transformers library does).",
    ),
    live("return_descriptors", Kind::Bool, "Whether messages carry descriptors."),
    live("descriptor_type", Kind::OneOf(&["float32", "float16"]), "Number format of the descriptors."),
    live(
        "channel",
        Kind::OneOf(&["first", "luma"]),
        "What the network reads of a colour image: first (R) or luma. Of YUV images both are Y.",
    ),
    live(
        "range_16bit",
        Kind::Integers,
        "Two values of 0 to 65535, the lower one first: what is black and what is white in 16-bit images.",
    ),
    live(
        "mask",
        Kind::Text,
        "Image file that is stretched over the camera image; keypoints on its zero pixels are dropped. {camera} in it \
         stands for the camera's name. Empty: no mask.",
    ),
    fixed(
        "cameras",
        Kind::Texts,
        "Namespaces of cameras that share the device, each with its own image and keypoints. Empty: one camera, in \
         the node's namespace.",
    ),
    fixed(
        "image_transport",
        Kind::OneOf(&["raw", "compressed"]),
        "raw subscribes to image (sensor_msgs/Image), compressed to image/compressed (sensor_msgs/CompressedImage).",
    ),
    fixed(
        "qos_reliability",
        RELIABILITY,
        "Reliability of the image subscription. best_effort receives from every publisher, reliable only from reliable ones.",
    ),
    fixed("qos_depth", Kind::Integer(1, 1000), "History depth of the image subscription."),
    fixed("output_qos_reliability", RELIABILITY, "Reliability of keypoints."),
    fixed("output_qos_depth", Kind::Integer(1, 1000), "History depth of keypoints."),
    live(
        "max_rate_hz",
        Kind::Double(0.0, 1000.0),
        "At most so many frames of each camera are processed in a second; 0: no limit.",
    ),
    live("lazy", Kind::Bool, "Whether frames are passed over while nobody subscribes to keypoints or overlay."),
    live("overlay", Kind::Bool, "Whether ~/overlay is drawn while somebody subscribes to it."),
    fixed("http.enabled", Kind::Bool, "Whether to serve HTTP too, as `superpoint serve` does, on the same detector."),
    fixed("http.host", Kind::Text, "Interface that HTTP is served on; 0.0.0.0 lets everyone in."),
    fixed("http.port", Kind::Integer(0, 65_535), "Port of the HTTP server; 0 takes any."),
    live("use_sim_time", Kind::Bool, "Whether ROS time comes from /clock."),
];

/// A parameter that the command line or a file gave and that has no effect here; `None` if it is nothing to speak of.
pub(super) fn why_unknown(name: &str) -> Option<String> {
    if name.starts_with("qos_overrides.") {
        Some(format!(
            "parameter {name} has no effect: set qos_reliability, qos_depth, output_qos_reliability or output_qos_depth"
        ))
    } else if name == "start_type_description_service" || TABLE.iter().any(|entry| entry.name == name) {
        None
    } else {
        Some(format!("parameter {name} is not known and has no effect"))
    }
}

impl NodeParameters {
    /// From here on, parameters that are read at start are refused.
    pub(super) fn started(&mut self) {
        self.running = true;
    }

    /// The value of the parameter of this name, if there is one.
    pub(super) fn value_of(&self, name: &str) -> Option<ParameterValue> {
        use ParameterValue as V;
        let Live { detection, .. } = &self.live;
        let integer = |value: usize| V::Integer(i64::try_from(value).unwrap_or(i64::MAX));
        let text = |value: &str| V::String(value.to_owned());
        Some(match name {
            "backend" => text(self.fixed.backend.name()),
            "device_id" => V::Integer(self.fixed.device_id.into()),
            "fallback" => text(self.fixed.fallback.name()),
            "weights" => text(&self.fixed.weights),
            "threads" => integer(self.fixed.threads),
            "max_keypoints" => V::Integer(detection.max_keypoints_number()),
            "keypoint_threshold" => V::Double(shortest_f64(detection.keypoint_threshold)),
            "nms_radius" => integer(detection.nms_radius),
            "border_removal_distance" => integer(detection.border_removal_distance),
            "postprocess" => text(detection.postprocess.name()),
            "return_descriptors" => V::Bool(detection.return_descriptors),
            "descriptor_type" => text(self.live.descriptor_type.name()),
            "channel" => text(self.live.channel.name()),
            "range_16bit" => {
                let Range16 { black, white } = self.live.range_16bit;
                V::IntegerArray(vec![black.into(), white.into()])
            }
            "mask" => text(&self.live.mask.path),
            "cameras" => V::StringArray(self.fixed.cameras.clone()),
            "image_transport" => text(match self.fixed.transport {
                Transport::Raw => "raw",
                Transport::Compressed => "compressed",
            }),
            "qos_reliability" => text(self.fixed.input.reliability()),
            "qos_depth" => integer(self.fixed.input.depth),
            "output_qos_reliability" => text(self.fixed.output.reliability()),
            "output_qos_depth" => integer(self.fixed.output.depth),
            "max_rate_hz" => V::Double(self.live.max_rate_hz),
            "lazy" => V::Bool(self.live.lazy),
            "overlay" => V::Bool(self.live.overlay),
            "http.enabled" => V::Bool(self.fixed.http_enabled),
            "http.host" => text(&self.fixed.http.host),
            "http.port" => V::Integer(self.fixed.http.port.into()),
            "use_sim_time" => V::Bool(self.live.use_sim_time),
            _ => return None,
        })
    }

    /// Sets parameters all at once, or none of them.
    ///
    /// # Errors
    ///
    /// A sentence that names the parameter, its value and what it must be.
    pub(super) fn set_all<'a>(
        &mut self,
        values: impl IntoIterator<Item = (&'a str, &'a ParameterValue)>,
    ) -> Result<(), String> {
        // A copy is changed and checked as a whole, so that a refused value leaves nothing behind.
        let mut changed = self.clone();
        for (name, value) in values {
            changed.set_one(name, value)?;
        }
        changed.live.detection.check().map_err(|error| error.to_string())?;
        // Files are read once all names are known.
        let cameras = &changed.fixed.cameras;
        if changed.live.mask.path != self.live.mask.path || *cameras != self.fixed.cameras {
            changed.live.mask = Masks::load(&changed.live.mask.path, cameras)?;
        }
        *self = changed;
        Ok(())
    }

    fn set_one(&mut self, name: &str, value: &ParameterValue) -> Result<(), String> {
        let Some(entry) = TABLE.iter().find(|entry| entry.name == name) else {
            return Err(format!("there is no parameter {name}"));
        };
        if self.running && entry.read_only {
            return Err(format!("{name} is read at start only; restart the node with the new value"));
        }
        entry.check(value)?;

        let Self { live, fixed, .. } = self;
        let detection = &mut live.detection;
        let reason = |error: tt_backend::Error| error.to_string();
        match name {
            "backend" => fixed.backend = text(value).parse::<BackendChoice>().map_err(reason)?,
            "device_id" => fixed.device_id = u32::try_from(integer(value)).map_err(|error| error.to_string())?,
            "fallback" => fixed.fallback = text(value).parse().map_err(reason)?,
            "weights" => fixed.weights = text(value).to_owned(),
            "threads" => fixed.threads = count(value),
            "max_keypoints" => {
                detection.max_keypoints = Params::max_keypoints_from(integer(value)).map_err(reason)?;
            }
            "keypoint_threshold" => detection.keypoint_threshold = double(value) as f32,
            "nms_radius" => detection.nms_radius = count(value),
            "border_removal_distance" => detection.border_removal_distance = count(value),
            "postprocess" => detection.postprocess = text(value).parse().map_err(reason)?,
            "return_descriptors" => detection.return_descriptors = yes(value),
            "descriptor_type" => live.descriptor_type = text(value).parse()?,
            "channel" => live.channel = text(value).parse()?,
            "range_16bit" => live.range_16bit = range_16bit(value)?,
            "mask" => live.mask.path = text(value).to_owned(),
            "cameras" => fixed.cameras = cameras(value)?,
            "image_transport" => {
                fixed.transport = if text(value) == "raw" { Transport::Raw } else { Transport::Compressed };
            }
            "qos_reliability" => fixed.input.reliable = text(value) == "reliable",
            "qos_depth" => fixed.input.depth = count(value),
            "output_qos_reliability" => fixed.output.reliable = text(value) == "reliable",
            "output_qos_depth" => fixed.output.depth = count(value),
            "max_rate_hz" => live.max_rate_hz = double(value),
            "lazy" => live.lazy = yes(value),
            "overlay" => live.overlay = yes(value),
            "http.enabled" => fixed.http_enabled = yes(value),
            "http.host" => fixed.http.host = text(value).to_owned(),
            "http.port" => fixed.http.port = u16::try_from(integer(value)).map_err(|error| error.to_string())?,
            "use_sim_time" => live.use_sim_time = yes(value),
            _ => return Err(format!("there is no parameter {name}")),
        }
        Ok(())
    }
}

impl Entry {
    /// Whether a value has the type and lies in the range that the table gives.
    fn check(&self, value: &ParameterValue) -> Result<(), String> {
        use ParameterValue as V;
        let name = self.name;
        let must_be = |expected: &str| Err(format!("{name} must be {expected}, not {}", value.type_name()));
        match (self.kind, value) {
            (Kind::Bool, V::Bool(_)) | (Kind::Text, V::String(_)) => Ok(()),
            (Kind::Texts, V::StringArray(_)) | (Kind::Integers, V::IntegerArray(_)) => Ok(()),
            // An empty list in a file has no type.
            (Kind::Texts, V::NotSet) => Ok(()),
            (Kind::Integer(from, to), V::Integer(number)) => {
                if (from..=to).contains(number) {
                    return Ok(());
                }
                Err(format!("{name} is {number}, but must be {from} to {to}"))
            }
            (Kind::Double(from, to), V::Double(number)) => {
                // Written so that NaN is refused too.
                if (from..=to).contains(number) {
                    return Ok(());
                }
                Err(format!("{name} is {number}, but must be {from} to {to}"))
            }
            (Kind::OneOf(choices), V::String(text)) => {
                if choices.contains(&text.as_str()) {
                    return Ok(());
                }
                Err(format!("{name} is `{text}`, but must be {}", alternatives(choices)))
            }
            (Kind::Bool, _) => must_be("a boolean"),
            (Kind::Integer(..), _) => must_be("an integer"),
            (Kind::Double(..), _) => must_be("a double (with a decimal point, such as 0.01)"),
            (Kind::Text | Kind::OneOf(_), _) => must_be("a string"),
            (Kind::Texts, _) => must_be("a list of strings"),
            (Kind::Integers, _) => must_be("a list of integers"),
        }
    }
}

/// `a, b or c`.
pub(super) fn alternatives(choices: &[&str]) -> String {
    match choices {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

// What `Entry::check` has let through. Its types are known, so the other arms are never taken.

fn yes(value: &ParameterValue) -> bool {
    matches!(value, ParameterValue::Bool(true))
}

fn integer(value: &ParameterValue) -> i64 {
    if let ParameterValue::Integer(number) = value { *number } else { 0 }
}

fn count(value: &ParameterValue) -> usize {
    usize::try_from(integer(value)).unwrap_or(0)
}

fn double(value: &ParameterValue) -> f64 {
    if let ParameterValue::Double(number) = value { *number } else { 0.0 }
}

fn text(value: &ParameterValue) -> &str {
    if let ParameterValue::String(text) = value { text } else { "" }
}

fn range_16bit(value: &ParameterValue) -> Result<Range16, String> {
    let ParameterValue::IntegerArray(numbers) = value else { return Ok(Range16::default()) };
    if let [low, high] = numbers[..]
        && let (Ok(black), Ok(white)) = (u16::try_from(low), u16::try_from(high))
        && black < white
    {
        return Ok(Range16 { black, white });
    }
    Err(format!("range_16bit is {numbers:?}, but must be two values of 0 to 65535, the lower one first"))
}

fn cameras(value: &ParameterValue) -> Result<Vec<String>, String> {
    let ParameterValue::StringArray(names) = value else { return Ok(Vec::new()) };
    // A list with one empty text is how a file says "no list".
    let names: Vec<String> = names.iter().filter(|name| !name.is_empty()).cloned().collect();
    for (index, name) in names.iter().enumerate() {
        let token = |token: &str| {
            !token.is_empty()
                && !token.starts_with(|first: char| first.is_ascii_digit())
                && token.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !name.strip_prefix('/').unwrap_or(name).split('/').all(token) {
            return Err(format!("cameras has `{}`, which is no namespace", name.escape_default()));
        }
        if names[..index].iter().any(|other| other.trim_matches('/') == name.trim_matches('/')) {
            return Err(format!("cameras has `{name}` twice"));
        }
    }
    Ok(names)
}

/// 0.005_f32 is 0.005 to its user, not 0.004999999888241291.
fn shortest_f64(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ParameterValue as V;

    use super::*;

    impl NodeParameters {
        fn set(&mut self, name: &str, value: &V) -> Result<(), String> {
            self.set_all([(name, value)])
        }
    }

    #[test]
    fn every_entry_has_a_value_that_it_accepts_itself() {
        let mut parameters = NodeParameters::default();
        for entry in TABLE {
            let value = parameters.value_of(entry.name).unwrap();
            parameters.set(entry.name, &value).unwrap();
            assert_eq!(parameters.value_of(entry.name), Some(value), "{}", entry.name);
        }
    }

    #[test]
    fn every_accepted_value_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let mask = folder.path().join("mask.png");
        image::GrayImage::new(2, 2).save(&mask).unwrap();
        let text = |value: &str| V::String(value.to_owned());
        let mut parameters = NodeParameters::default();
        for entry in TABLE {
            let other = |choices: &[&str]| {
                let texts = choices.iter().map(|choice| text(choice));
                texts.into_iter().find(|choice| parameters.value_of(entry.name).as_ref() != Some(choice)).unwrap()
            };
            let value = match entry.kind {
                Kind::Bool => V::Bool(parameters.value_of(entry.name) == Some(V::Bool(false))),
                Kind::Integer(_, to) => V::Integer(to),
                Kind::Double(_, to) => V::Double(to),
                Kind::OneOf(choices) => other(choices),
                Kind::Text if entry.name == "mask" => text(&mask.display().to_string()),
                Kind::Text => text("/some/file"),
                Kind::Texts => V::StringArray(vec!["left".into(), "/rig/right".into()]),
                Kind::Integers => V::IntegerArray(vec![5, 900]),
            };
            assert_ne!(parameters.value_of(entry.name), Some(value.clone()), "{} is not the default", entry.name);
            parameters.set(entry.name, &value).unwrap();
            assert_eq!(parameters.value_of(entry.name), Some(value), "{}", entry.name);
        }
        assert!(parameters.live.mask.of(1).is_some() && parameters.live.mask.of(2).is_none());
    }

    #[test]
    fn refusals_name_parameter_and_value_and_change_nothing() {
        let mut parameters = NodeParameters::default();
        let text = |value: &str| V::String(value.to_owned());
        let texts = |values: &[&str]| V::StringArray(values.iter().map(|&value| value.to_owned()).collect());
        for (name, value, expected) in [
            ("keypoint_threshold", V::Double(1.5), "1.5"),
            ("keypoint_threshold", V::Double(f64::NAN), "NaN"),
            ("keypoint_threshold", V::Integer(0), "a double"),
            ("nms_radius", V::Integer(-1), "-1"),
            ("nms_radius", V::Integer(33), "33"),
            ("max_keypoints", V::Integer(-2), "-2"),
            ("max_keypoints", V::Integer(307_201), "307201"),
            ("max_keypoints", text("many"), "an integer"),
            ("qos_depth", V::Integer(0), "1 to 1000"),
            ("backend", text("gpu"), "gpu"),
            ("device_id", V::Integer(-1), "-1"),
            ("fallback", text("gpu"), "none or cpu"),
            ("descriptor_type", text("int8"), "int8"),
            ("channel", text("green"), "first or luma"),
            ("postprocess", text("mine"), "mine"),
            ("return_descriptors", V::NotSet, "not set"),
            ("range_16bit", V::IntegerArray(vec![5]), "[5]"),
            ("range_16bit", V::IntegerArray(vec![5, 5]), "[5, 5]"),
            ("range_16bit", V::IntegerArray(vec![-1, 5]), "[-1, 5]"),
            ("range_16bit", V::IntegerArray(vec![0, 65_536]), "65536"),
            ("range_16bit", V::DoubleArray(vec![0.0, 1.0]), "a list of integers"),
            ("cameras", texts(&["left", "/left"]), "twice"),
            ("cameras", texts(&["a//b"]), "a//b"),
            ("cameras", texts(&["1st"]), "1st"),
            ("cameras", texts(&["left image"]), "left image"),
            ("mask", text("/nonexistent/mask.png"), "/nonexistent/mask.png"),
            ("max_rate_hz", V::Double(-1.0), "-1"),
            ("image_transport", text("theora"), "raw or compressed"),
        ] {
            let before = parameters.value_of(name);
            let reason = parameters.set(name, &value).unwrap_err();
            assert!(reason.contains(name) && reason.contains(expected), "{reason}");
            assert_eq!(parameters.value_of(name), before);
        }
        assert!(parameters.set("max_keypoint", &V::Integer(1)).unwrap_err().contains("max_keypoint"));
    }

    #[test]
    fn a_set_is_taken_as_a_whole_or_not_at_all() {
        let mut parameters = NodeParameters::default();
        let (good, bad) = (V::Integer(7), V::Integer(99));
        parameters.set_all([("max_keypoints", &good), ("nms_radius", &bad)]).unwrap_err();
        assert_eq!(parameters.live.detection, Params::default());
        parameters.set_all([("max_keypoints", &good), ("nms_radius", &good)]).unwrap();
        assert_eq!((parameters.live.detection.max_keypoints, parameters.live.detection.nms_radius), (Some(7), 7));
    }

    #[test]
    fn what_is_read_at_start_is_refused_later() {
        let mut parameters = NodeParameters::default();
        let weights = V::String("/w.safetensors".into());
        parameters.set("weights", &weights).unwrap();
        parameters.started();
        assert!(parameters.set("weights", &weights).unwrap_err().contains("restart"));
        parameters.set("nms_radius", &V::Integer(2)).unwrap();
        assert_eq!(parameters.live.detection.nms_radius, 2);
    }

    #[test]
    fn strangers_are_told_from_what_ros_gives_to_every_node() {
        assert!(why_unknown("max_keypoint").unwrap().contains("max_keypoint is not known"));
        assert!(why_unknown("qos_overrides./image.subscription.depth").unwrap().contains("qos_depth"));
        assert_eq!(why_unknown("start_type_description_service"), None);
        assert_eq!(why_unknown("use_sim_time"), None);
    }

    #[test]
    fn quality_of_service_is_what_the_parameters_say() {
        let mut parameters = NodeParameters::default();
        for (name, value) in [("qos_depth", V::Integer(7)), ("output_qos_depth", V::Integer(3))] {
            parameters.set(name, &value).unwrap();
        }
        let Fixed { input, output, .. } = parameters.fixed;
        assert_eq!((input.profile().depth, output.profile().depth), (7, 3));
        assert_eq!(input.profile().reliability, r2r::qos::ReliabilityPolicy::BestEffort);
        assert_eq!(output.profile().reliability, r2r::qos::ReliabilityPolicy::Reliable);
    }

    #[test]
    fn no_cameras_can_be_said_in_a_file() {
        let mut parameters = NodeParameters::default();
        for nothing in [V::NotSet, V::StringArray(vec![]), V::StringArray(vec![String::new()])] {
            parameters.set("cameras", &nothing).unwrap();
            assert!(parameters.fixed.cameras.is_empty());
        }
    }
}
