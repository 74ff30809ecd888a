//! The node's parameters: their names, defaults, ranges and what they say of themselves.
//!
//! r2r's derive macro cannot validate, so its trait is implemented by hand over one table.

use std::path::PathBuf;

use r2r::indexmap::IndexMap;
use r2r::{Parameter, ParameterValue, RosParams};
use tt_backend::{BackendChoice, Options, Params, Postprocess, Size};

use super::keypoints_message::DescriptorType;
use crate::channel::Channel;

/// Every parameter of the node.
#[derive(Clone, Debug)]
pub(super) struct NodeParameters {
    /// What the next frame is processed with.
    pub(super) live: Live,
    /// What is read once, at start.
    pub(super) fixed: Fixed,
    /// Parameters that the command line or a file gave and that do not exist here.
    pub(super) unknown: Vec<String>,
    running: bool,
}

/// Parameters that take effect on the next frame.
#[derive(Clone, Debug, Default)]
pub(super) struct Live {
    pub(super) detection: Params,
    pub(super) descriptor_type: DescriptorType,
    pub(super) channel: Channel,
}

/// Parameters that are read at start and cannot be changed after.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
    pub(super) backend: BackendChoice,
    pub(super) weights: String,
    pub(super) threads: usize,
    pub(super) reliable_input: bool,
    pub(super) input_depth: usize,
}

impl Fixed {
    /// What the detector is opened with.
    pub(super) fn detector_options(&self) -> Options {
        Options {
            backend: self.backend,
            weights: (!self.weights.is_empty()).then(|| PathBuf::from(&self.weights)),
            threads: self.threads,
            network: Size::NETWORK,
        }
    }
}

impl Default for NodeParameters {
    fn default() -> Self {
        Self {
            live: Live::default(),
            fixed: Fixed {
                backend: BackendChoice::Auto,
                weights: String::new(),
                threads: 0,
                reliable_input: false,
                input_depth: 5,
            },
            unknown: Vec::new(),
            running: false,
        }
    }
}

/// One line of the table: name, what `ros2 param describe` shows (r2r passes on no ranges and no read-only flag, so
/// the text says them), and whether it is read at start only.
struct Entry {
    name: &'static str,
    description: &'static str,
    at_start_only: bool,
}

const fn live(name: &'static str, description: &'static str) -> Entry {
    Entry { name, description, at_start_only: false }
}

const fn fixed(name: &'static str, description: &'static str) -> Entry {
    Entry { name, description, at_start_only: true }
}

const TABLE: &[Entry] = &[
    fixed("backend", "What runs the network: auto (a p150 if there is one, else the CPU), p150 or cpu. Read-only."),
    fixed(
        "weights",
        "Weights file (safetensors); empty: the Hugging Face cache if it holds SuperPoint, else the bundled ones. Read-only.",
    ),
    live("max_keypoints", "The best so many keypoints are kept, 0 to 307200; -1 keeps all."),
    live("keypoint_threshold", "Keypoints must score above this, 0.0 to 1.0."),
    live("nms_radius", "Radius of non-maximum suppression in network pixels, 0 (none) to 32."),
    live("border_removal_distance", "Keypoints closer than this to a border are dropped, in network pixels, 0 to 240."),
    live("return_descriptors", "Whether messages carry descriptors."),
    live("descriptor_type", "Number format of the descriptors: float32 or float16."),
    live("channel", "What the network reads of a colour image: first (R) or luma."),
    live("postprocess", "How keypoints are picked: package, or upstream (as the transformers library does)."),
    fixed("qos_reliability", "Reliability of the image subscription: best_effort or reliable. Read-only."),
    fixed("qos_depth", "History depth of the image subscription, 1 to 1000. Read-only."),
    fixed("threads", "CPU threads of the cpu backend; 0: one per core. Read-only."),
];

/// Parameters that ROS itself gives to any node.
fn belongs_to_ros(name: &str) -> bool {
    name == "use_sim_time" || name == "start_type_description_service" || name.starts_with("qos_overrides.")
}

impl NodeParameters {
    /// From here on, parameters that are read at start are refused.
    pub(super) fn started(&mut self) {
        self.running = true;
    }

    fn value_of(&self, name: &str) -> Option<ParameterValue> {
        use ParameterValue as V;
        let Live { detection, descriptor_type, channel } = &self.live;
        let integer = |value: usize| V::Integer(i64::try_from(value).unwrap_or(i64::MAX));
        Some(match name {
            "backend" => V::String(self.fixed.backend.name().into()),
            "weights" => V::String(self.fixed.weights.clone()),
            "max_keypoints" => V::Integer(detection.max_keypoints_number()),
            "keypoint_threshold" => V::Double(shortest_f64(detection.keypoint_threshold)),
            "nms_radius" => integer(detection.nms_radius),
            "border_removal_distance" => integer(detection.border_removal_distance),
            "return_descriptors" => V::Bool(detection.return_descriptors),
            "descriptor_type" => V::String(descriptor_type.name().into()),
            "channel" => V::String(match channel {
                Channel::First => "first".into(),
                Channel::Luma => "luma".into(),
            }),
            "postprocess" => V::String(match detection.postprocess {
                Postprocess::Package => "package".into(),
                Postprocess::Upstream => "upstream".into(),
            }),
            "qos_reliability" => V::String(if self.fixed.reliable_input { "reliable" } else { "best_effort" }.into()),
            "qos_depth" => integer(self.fixed.input_depth),
            "threads" => integer(self.fixed.threads),
            _ => return None,
        })
    }

    /// Takes a value, or says in one sentence why not.
    fn set(&mut self, name: &str, value: &ParameterValue) -> Result<(), String> {
        let Some(entry) = TABLE.iter().find(|entry| entry.name == name) else {
            return Err(format!("there is no parameter {name}"));
        };
        if self.running && entry.at_start_only {
            return Err(format!("{name} is read at start only; restart the node with the new value"));
        }

        // A copy is changed and checked as a whole, so that a refused value leaves nothing behind.
        let mut changed = self.clone();
        let detection = &mut changed.live.detection;
        match name {
            "backend" => {
                changed.fixed.backend =
                    text(name, value)?.parse::<BackendChoice>().map_err(|error| error.to_string())?;
            }
            "weights" => changed.fixed.weights = text(name, value)?.into(),
            "max_keypoints" => {
                let number = integer(name, value, i64::MIN..=i64::MAX)?;
                detection.max_keypoints = Params::max_keypoints_from(number).map_err(|error| error.to_string())?;
            }
            "keypoint_threshold" => match value {
                ParameterValue::Double(threshold) => detection.keypoint_threshold = *threshold as f32,
                other => return Err(wrong_type(name, other, "a double (with a decimal point, such as 0.01)")),
            },
            "nms_radius" => detection.nms_radius = count(name, value)?,
            "border_removal_distance" => detection.border_removal_distance = count(name, value)?,
            "return_descriptors" => match value {
                ParameterValue::Bool(wanted) => detection.return_descriptors = *wanted,
                other => return Err(wrong_type(name, other, "a boolean")),
            },
            "descriptor_type" => changed.live.descriptor_type = text(name, value)?.parse()?,
            "channel" => changed.live.channel = text(name, value)?.parse()?,
            "postprocess" => {
                detection.postprocess = text(name, value)?.parse::<Postprocess>().map_err(|error| error.to_string())?;
            }
            "qos_reliability" => {
                changed.fixed.reliable_input = one_of(name, value, &["best_effort", "reliable"])? == "reliable";
            }
            "qos_depth" => {
                let depth = integer(name, value, 1..=1000)?;
                changed.fixed.input_depth = usize::try_from(depth).map_err(|error| error.to_string())?;
            }
            "threads" => {
                let threads = integer(name, value, 0..=1024)?;
                changed.fixed.threads = usize::try_from(threads).map_err(|error| error.to_string())?;
            }
            _ => return Err(format!("there is no parameter {name}")),
        }
        changed.live.detection.check().map_err(|error| error.to_string())?;
        *self = changed;
        Ok(())
    }
}

/// 0.005_f32 is 0.005 to its user, not 0.004999999888241291.
fn shortest_f64(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn wrong_type(name: &str, value: &ParameterValue, expected: &str) -> String {
    format!("{name} must be {expected}, not {}", value.type_name())
}

fn text<'a>(name: &str, value: &'a ParameterValue) -> Result<&'a str, String> {
    match value {
        ParameterValue::String(text) => Ok(text),
        other => Err(wrong_type(name, other, "a string")),
    }
}

fn one_of<'a>(name: &str, value: &'a ParameterValue, choices: &[&str]) -> Result<&'a str, String> {
    let text = text(name, value)?;
    if choices.contains(&text) {
        Ok(text)
    } else {
        Err(format!("{name} is `{text}`, but must be one of {}", choices.join(", ")))
    }
}

fn integer(name: &str, value: &ParameterValue, range: std::ops::RangeInclusive<i64>) -> Result<i64, String> {
    match value {
        ParameterValue::Integer(number) if range.contains(number) => Ok(*number),
        ParameterValue::Integer(number) => {
            Err(format!("{name} is {number}, but must be {} to {}", range.start(), range.end()))
        }
        other => Err(wrong_type(name, other, "an integer")),
    }
}

/// A count whose upper bound `Params::check` knows.
fn count(name: &str, value: &ParameterValue) -> Result<usize, String> {
    let number = integer(name, value, i64::MIN..=i64::MAX)?;
    usize::try_from(number).map_err(|_| format!("{name} is {number}, but must not be negative"))
}

/// r2r has no error that carries a bare reason; this one prints name and reason.
fn refused(name: &str, reason: String) -> r2r::Error {
    r2r::Error::ParameterValueConv { name: name.into(), msg: reason }
}

/// The reason alone, for errors that come back from r2r.
pub(super) fn reason_of(error: r2r::Error) -> String {
    match error {
        r2r::Error::ParameterValueConv { msg, .. } => msg,
        other => other.to_string(),
    }
}

impl RosParams for NodeParameters {
    fn register_parameters(
        &mut self,
        _prefix: &str,
        _parameter: Option<Parameter>,
        parameters: &mut IndexMap<String, Parameter>,
    ) -> r2r::Result<()> {
        for entry in TABLE {
            if let Some(given) = parameters.shift_remove(entry.name) {
                self.set(entry.name, &given.value).map_err(|reason| refused(entry.name, reason))?;
            }
        }
        self.unknown = parameters.keys().filter(|name| !belongs_to_ros(name)).cloned().collect();
        for entry in TABLE {
            let value = self.value_of(entry.name).unwrap_or(ParameterValue::NotSet);
            parameters.insert(entry.name.into(), Parameter { value, description: entry.description });
        }
        Ok(())
    }

    fn get_parameter(&mut self, name: &str) -> r2r::Result<ParameterValue> {
        self.value_of(name).ok_or_else(|| r2r::Error::InvalidParameterName { name: name.into() })
    }

    fn set_parameter(&mut self, name: &str, value: &ParameterValue) -> r2r::Result<()> {
        self.set(name, value).map_err(|reason| refused(name, reason))
    }

    fn check_parameter(&self, name: &str, value: &ParameterValue) -> r2r::Result<()> {
        self.clone().set(name, value).map_err(|reason| refused(name, reason))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

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
    fn refusals_name_parameter_and_value_and_change_nothing() {
        let mut parameters = NodeParameters::default();
        for (name, value, text) in [
            ("keypoint_threshold", ParameterValue::Double(1.5), "1.5"),
            ("keypoint_threshold", ParameterValue::Double(f64::NAN), "NaN"),
            ("keypoint_threshold", ParameterValue::Integer(0), "a double"),
            ("nms_radius", ParameterValue::Integer(-1), "-1"),
            ("nms_radius", ParameterValue::Integer(33), "33"),
            ("max_keypoints", ParameterValue::Integer(-2), "-2"),
            ("max_keypoints", ParameterValue::String("many".into()), "an integer"),
            ("qos_depth", ParameterValue::Integer(0), "1 to 1000"),
            ("backend", ParameterValue::String("gpu".into()), "gpu"),
            ("descriptor_type", ParameterValue::String("int8".into()), "int8"),
            ("channel", ParameterValue::String("green".into()), "green"),
            ("postprocess", ParameterValue::String("mine".into()), "mine"),
            ("return_descriptors", ParameterValue::NotSet, "not set"),
        ] {
            let before = parameters.value_of(name);
            let reason = parameters.set(name, &value).unwrap_err();
            assert!(reason.contains(name) && reason.contains(text), "{reason}");
            assert_eq!(parameters.value_of(name), before);
        }
        assert!(parameters.set("max_keypoint", &ParameterValue::Integer(1)).unwrap_err().contains("max_keypoint"));
    }

    #[test]
    fn what_is_read_at_start_is_refused_later() {
        let mut parameters = NodeParameters::default();
        let weights = ParameterValue::String("/w.safetensors".into());
        parameters.set("weights", &weights).unwrap();
        parameters.started();
        assert!(parameters.set("weights", &weights).unwrap_err().contains("restart"));
        parameters.set("nms_radius", &ParameterValue::Integer(2)).unwrap();
        assert_eq!(parameters.live.detection.nms_radius, 2);
    }

    #[test]
    fn overrides_are_applied_and_strangers_are_kept_apart() {
        let mut given = IndexMap::new();
        for (name, value) in [
            ("max_keypoints", ParameterValue::Integer(7)),
            ("max_keypoint", ParameterValue::Integer(8)),
            ("use_sim_time", ParameterValue::Bool(true)),
        ] {
            given.insert(name.to_string(), Parameter::new(value));
        }
        let mut parameters = NodeParameters::default();
        parameters.register_parameters("", None, &mut given).unwrap();
        assert_eq!(parameters.live.detection.max_keypoints, Some(7));
        assert_eq!(parameters.unknown, ["max_keypoint"]);
        assert_eq!(given.len(), TABLE.len() + 2);
    }
}
