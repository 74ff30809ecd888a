//! The YAML file with parameters that the ROS node and the command line both read.

use std::cell::RefCell;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use serde::de::DeserializeOwned;
use tt_backend::{Options, Params};

use crate::channel::Channel;
use crate::http::Listen;
use crate::message::encoding::Range16;
use crate::message::keypoints::DescriptorType;

/// A parameter file has a few thousand bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What a configuration chooses for a detector and for its detections.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// How the detector is opened.
    pub options: Options,
    /// Parameters of each detection.
    pub params: Params,
    /// Which channel of a colour image is read.
    pub channel: Channel,
    /// What is black and white in 16-bit images of ROS messages.
    pub range_16bit: Range16,
    /// Number format of descriptors in ROS messages.
    pub descriptor_type: DescriptorType,
    /// Where an HTTP server listens.
    pub listen: Listen,
}

/// Parameters of the node that nothing else has.
const NODE_PARAMETERS: [&str; 13] = [
    "cameras",
    "http.enabled",
    "image_transport",
    "lazy",
    "mask",
    "max_rate_hz",
    "output_qos_depth",
    "output_qos_reliability",
    "overlay",
    "qos_depth",
    "qos_reliability",
    "start_type_description_service",
    "use_sim_time",
];

/// The parameters of one node in a ROS parameter file. Those that do not concern a detector are passed over.
struct RosParameters<'a> {
    values: &'a serde_yaml::Value,
    /// Names that were asked for.
    known: RefCell<Vec<&'static str>>,
}

impl Settings {
    /// Reads a ROS 2 parameter file: `ros__parameters` below the node's name, or below the wildcard `/**`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, has no such section, or holds a value of the wrong type or out of range.
    pub fn from_file(path: &Path) -> anyhow::Result<Self> {
        let read = || {
            let mut text = String::new();
            std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
            Ok::<_, std::io::Error>(text)
        };
        let text = read().with_context(|| format!("cannot read configuration {path:?}"))?;
        if text.len() as u64 > MAX_FILE_BYTES {
            bail!("configuration {path:?} has more than {MAX_FILE_BYTES} bytes: it is no parameter file");
        }
        Self::from_yaml(&text).with_context(|| format!("configuration {path:?}"))
    }

    fn from_yaml(text: &str) -> anyhow::Result<Self> {
        let nodes: serde_yaml::Mapping = serde_yaml::from_str(text)?;
        let mut settings = Self::default();
        let mut found = false;
        // Later sections win over earlier ones, as in rcl.
        for (name, section) in &nodes {
            let name = name.as_str().unwrap_or_default();
            if !matches!(name.trim_start_matches('/'), "superpoint" | "**" | "**/superpoint" | "*") {
                continue;
            }
            let Some(parameters) = section.get("ros__parameters") else { continue };
            if !parameters.is_mapping() {
                bail!("ros__parameters of {name:?} must be a mapping of names to values, as `nms_radius: 4`");
            }
            let parameters = RosParameters::new(parameters);
            parameters.apply(&mut settings)?;
            for unknown in parameters.unknown() {
                // No error: the section may be for other nodes too.
                tracing::warn!(
                    "the configuration has a parameter {unknown:?}, which is not known here and does nothing"
                );
            }
            found = true;
        }
        if !found {
            bail!("it has no section `/**:` or `superpoint:` with `ros__parameters:` in it");
        }
        settings.params.check()?;
        Ok(settings)
    }
}

impl<'a> RosParameters<'a> {
    fn new(values: &'a serde_yaml::Value) -> Self {
        Self { values, known: RefCell::new(NODE_PARAMETERS.to_vec()) }
    }

    /// The value of a parameter, if it is there. `a.b` may also stand as `b` below `a`.
    fn get<T: DeserializeOwned>(&self, name: &'static str) -> anyhow::Result<Option<T>> {
        self.known.borrow_mut().push(name);
        let nested = || name.split('.').try_fold(self.values, |value, part| value.get(part));
        let value = self.values.get(name).or_else(nested).cloned();
        value.map(serde_yaml::from_value).transpose().with_context(|| format!("parameter {name}"))
    }

    /// Names of parameters that nobody has asked for.
    fn unknown(&self) -> Vec<String> {
        let mut names = Vec::new();
        collect_names(self.values, "", &mut names);
        names.retain(|name| !self.known.borrow().contains(&name.as_str()) && !name.starts_with("qos_overrides."));
        names
    }

    /// A parameter that counts something.
    fn count(&self, name: &'static str) -> anyhow::Result<Option<usize>> {
        let number: Option<i64> = self.get(name)?;
        let count = number.map(usize::try_from).transpose();
        count.map_err(|_| anyhow!("{name} is {}, but must not be negative", number.unwrap_or_default()))
    }

    fn apply(&self, settings: &mut Settings) -> anyhow::Result<()> {
        let Settings { options, params, channel, range_16bit, descriptor_type, listen } = settings;
        if let Some(text) = self.get::<String>("backend")? {
            options.backend = text.parse()?;
        }
        if let Some(id) = self.count("device_id")? {
            let id = u8::try_from(id).with_context(|| format!("device_id is {id}, but must be 0 to 255"))?;
            options.device_id = id.into();
        }
        if let Some(text) = self.get::<String>("fallback")? {
            options.fallback = text.parse()?;
        }
        if let Some(path) = self.get::<String>("weights")? {
            options.weights = (!path.is_empty()).then(|| path.into());
        }
        if let Some(threads) = self.count("threads")? {
            options.threads = threads;
        }
        if let Some(number) = self.get("max_keypoints")? {
            params.max_keypoints = Params::max_keypoints_from(number)?;
        }
        if let Some(threshold) = self.get("keypoint_threshold")? {
            params.keypoint_threshold = threshold;
        }
        if let Some(radius) = self.count("nms_radius")? {
            params.nms_radius = radius;
        }
        if let Some(distance) = self.count("border_removal_distance")? {
            params.border_removal_distance = distance;
        }
        if let Some(yes) = self.get("return_descriptors")? {
            params.return_descriptors = yes;
        }
        if let Some(text) = self.get::<String>("postprocess")? {
            params.postprocess = text.parse()?;
        }
        if let Some(text) = self.get::<String>("channel")? {
            *channel = text.parse().map_err(anyhow::Error::msg)?;
        }
        if let Some([black, white]) = self.get::<[u16; 2]>("range_16bit")? {
            if black >= white {
                bail!("range_16bit is [{black}, {white}], but the lower value must come first");
            }
            *range_16bit = Range16 { black, white };
        }
        if let Some(text) = self.get::<String>("descriptor_type")? {
            *descriptor_type = text.parse().map_err(anyhow::Error::msg)?;
        }
        if let Some(host) = self.get("http.host")? {
            listen.host = host;
        }
        if let Some(port) = self.get("http.port")? {
            listen.port = port;
        }
        Ok(())
    }
}

/// Names of all parameters in a section, `a.b` for `b` below `a`.
fn collect_names(section: &serde_yaml::Value, above: &str, names: &mut Vec<String>) {
    for (name, value) in section.as_mapping().into_iter().flatten() {
        let name = format!("{above}{}", name.as_str().unwrap_or_default());
        if value.is_mapping() {
            collect_names(value, &format!("{name}."), names);
        } else {
            names.push(name);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tt_backend::{BackendChoice, Fallback};

    #[test]
    fn the_shipped_file_holds_the_defaults() {
        let settings = Settings::from_yaml(include_str!("../../config/superpoint.yaml")).unwrap();
        assert_eq!(settings.params, Params::default());
        assert_eq!(settings.options.backend, BackendChoice::Auto);
        assert_eq!((settings.options.device_id, settings.options.fallback), (0, Fallback::None));
        assert_eq!(settings.options.weights, None);
        assert_eq!(settings.channel, Channel::First);
    }

    fn unknown(section: &str) -> Vec<String> {
        let values = serde_yaml::from_str(section).unwrap();
        let parameters = RosParameters::new(&values);
        parameters.apply(&mut Settings::default()).unwrap();
        parameters.unknown()
    }

    #[test]
    fn names_that_mean_nothing_are_found() {
        let section = "{nms_radios: 3, nms_radius: 4, lazy: true, http: {port: 1, prot: 2}, http.host: h, \
                       qos_overrides: {a: {b: c}}}";
        assert_eq!(unknown(section), ["nms_radios", "http.prot"]);
        let file: serde_yaml::Value = serde_yaml::from_str(include_str!("../../config/superpoint.yaml")).unwrap();
        let sections = file.as_mapping().unwrap().values();
        for section in sections.map(|section| serde_yaml::to_string(&section["ros__parameters"]).unwrap()) {
            assert_eq!(unknown(&section), [""; 0]);
        }
    }

    #[test]
    fn values_reach_their_places() {
        let text = "superpoint:\n  ros__parameters: {max_keypoints: -1, nms_radius: 2, weights: a.safetensors, \
                    backend: p150, device_id: 3, fallback: cpu, \
                    channel: luma, postprocess: upstream, qos_depth: 3, range_16bit: [5, 4095], \
                     descriptor_type: float16, \
                    http: {port: 8080}, http.host: 0.0.0.0}\n";
        let settings = Settings::from_yaml(text).unwrap();
        assert_eq!(settings.params.max_keypoints, None);
        assert_eq!(settings.params.nms_radius, 2);
        assert_eq!(settings.params.postprocess, tt_backend::Postprocess::Upstream);
        assert_eq!((settings.options.backend, settings.options.device_id), (BackendChoice::P150, 3));
        assert_eq!(settings.options.fallback, Fallback::Cpu);
        assert_eq!(settings.options.weights.as_deref(), Some(Path::new("a.safetensors")));
        assert_eq!(settings.channel, Channel::Luma);
        assert_eq!(settings.range_16bit, Range16 { black: 5, white: 4095 });
        assert_eq!(settings.descriptor_type, DescriptorType::Float16);
        assert_eq!((settings.listen.host.as_str(), settings.listen.port), ("0.0.0.0", 8080));
    }

    #[test]
    fn bad_values_are_named() {
        for (text, expected) in [
            ("other:\n  ros__parameters: {nms_radius: 2}\n", "no section"),
            ("/**:\n  ros__parameters: {nms_radius: 99}\n", "nms_radius is 99"),
            ("/**:\n  ros__parameters: {nms_radius: -1}\n", "nms_radius is -1"),
            ("/**:\n  ros__parameters: {nms_radius: four}\n", "nms_radius"),
            ("/**:\n  ros__parameters: {max_keypoints: -2}\n", "max_keypoints is -2"),
            ("/**:\n  ros__parameters: {backend: gpu}\n", "backend is `gpu`"),
            ("/**:\n  ros__parameters: {fallback: gpu}\n", "fallback is `gpu`"),
            ("/**:\n  ros__parameters: {device_id: -1}\n", "device_id is -1"),
            ("/**:\n  ros__parameters: {device_id: 256}\n", "device_id is 256, but must be 0 to 255"),
            ("/**:\n  ros__parameters: {http: {port: 70000}}\n", "http.port"),
            ("/**:\n  ros__parameters: {range_16bit: [9, 9]}\n", "range_16bit is [9, 9]"),
            ("/**:\n  ros__parameters: {range_16bit: [0, 65536]}\n", "range_16bit"),
            ("/**:\n  ros__parameters: [nms_radius, 4]\n", "ros__parameters of \"/**\" must be a mapping"),
            ("- a\n- b\n", "sequence"),
        ] {
            let error = format!("{:#}", Settings::from_yaml(text).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
