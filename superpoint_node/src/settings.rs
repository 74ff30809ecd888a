//! The YAML file with parameters that the ROS node and the command line both read.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tt_backend::{BackendChoice, Options, Params, Size};

use crate::channel::Channel;

/// What a configuration chooses for a detector and for its detections.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// How the detector is opened.
    pub options: Options,
    /// Parameters of each detection.
    pub params: Params,
    /// Which channel of a colour image is read.
    pub channel: Channel,
}

/// The parameters of the node that concern a detector, as they stand in a ROS parameter file. All others belong
/// to the node alone and are passed over.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RosParameters {
    backend: Option<String>,
    weights: Option<String>,
    threads: Option<i64>,
    max_keypoints: Option<i64>,
    keypoint_threshold: Option<f64>,
    nms_radius: Option<i64>,
    border_removal_distance: Option<i64>,
    return_descriptors: Option<bool>,
    postprocess: Option<String>,
    channel: Option<String>,
}

impl Settings {
    /// Reads a ROS 2 parameter file: `ros__parameters` below the node's name, or below the wildcard `/**`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, has no such section, or holds a value of the wrong type or out of range.
    pub fn from_file(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read configuration {path:?}"))?;
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
            let parameters: RosParameters = serde_yaml::from_value(parameters.clone())?;
            parameters.apply(&mut settings)?;
            found = true;
        }
        if !found {
            bail!("it has no section `/**:` or `superpoint:` with `ros__parameters:` in it");
        }
        settings.params.check()?;
        Ok(settings)
    }
}

impl RosParameters {
    fn apply(self, settings: &mut Settings) -> anyhow::Result<()> {
        let Settings { options, params, channel } = settings;
        let whole = |name: &'static str, number: i64| {
            usize::try_from(number).map_err(|_| anyhow::anyhow!("{name} is {number}, but must not be negative"))
        };
        if let Some(text) = self.backend {
            options.backend = text.parse::<BackendChoice>()?;
        }
        if let Some(path) = self.weights {
            options.weights = (!path.is_empty()).then(|| path.into());
        }
        if let Some(number) = self.threads {
            options.threads = whole("threads", number)?;
        }
        if let Some(number) = self.max_keypoints {
            params.max_keypoints = Params::max_keypoints_from(number)?;
        }
        if let Some(number) = self.keypoint_threshold {
            params.keypoint_threshold = number as f32;
        }
        if let Some(number) = self.nms_radius {
            params.nms_radius = whole("nms_radius", number)?;
        }
        if let Some(number) = self.border_removal_distance {
            params.border_removal_distance = whole("border_removal_distance", number)?;
        }
        if let Some(yes) = self.return_descriptors {
            params.return_descriptors = yes;
        }
        if let Some(text) = self.postprocess {
            params.postprocess = text.parse()?;
        }
        if let Some(text) = self.channel {
            *channel = text.parse().map_err(anyhow::Error::msg)?;
        }
        options.network = Size::NETWORK;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_holds_the_defaults() {
        let settings = Settings::from_yaml(include_str!("../../config/superpoint.yaml")).unwrap();
        assert_eq!(settings.params, Params::default());
        assert_eq!(settings.options.backend, BackendChoice::Auto);
        assert_eq!(settings.options.weights, None);
        assert_eq!(settings.channel, Channel::First);
    }

    #[test]
    fn values_reach_their_places() {
        let text = "superpoint:\n  ros__parameters: {max_keypoints: -1, nms_radius: 2, weights: a.safetensors, \
                    channel: luma, postprocess: upstream, qos_depth: 3}\n";
        let settings = Settings::from_yaml(text).unwrap();
        assert_eq!(settings.params.max_keypoints, None);
        assert_eq!(settings.params.nms_radius, 2);
        assert_eq!(settings.params.postprocess, tt_backend::Postprocess::Upstream);
        assert_eq!(settings.options.weights.as_deref(), Some(Path::new("a.safetensors")));
        assert_eq!(settings.channel, Channel::Luma);
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
            ("- a\n- b\n", "sequence"),
        ] {
            let error = format!("{:#}", Settings::from_yaml(text).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
