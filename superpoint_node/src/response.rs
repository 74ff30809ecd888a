//! The answer to one image as JSON: that of `/predict`, and a line of `superpoint detect --json`.

use std::time::Duration;

use half::f16;
use half::slice::HalfFloatSliceExt as _;
use serde::Serialize;
use tt_backend::{Detections, Params, Size};
use utoipa::ToSchema;

use crate::channel::Channel;
use crate::npz::{Npz, TooLarge};

/// Field names, nesting and types of the published model package's server.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Response {
    /// Number of keypoints, N.
    pub num_keypoints: usize,
    /// `[x, y]` in pixels of the original image: the position in the network frame times `scale`.
    pub keypoints: Vec<[f64; 2]>,
    /// N scores, descending.
    pub scores: Vec<f32>,
    /// Size of the image that was sent.
    pub original_size: ImageSize,
    /// Size of the network frame.
    pub image_size: ImageSize,
    /// Pixels of the original image for each pixel of the network frame.
    pub scale: Scale,
    /// The parameters that were applied.
    pub params: AppliedParams,
    /// Which steps ran where.
    pub serving_path: ServingPath,
    /// How long the steps took.
    pub timing_ms: TimingMs,
    /// Left out when `return_descriptors` is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptors: Option<Descriptors>,
}

/// Height and width in pixels.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct ImageSize {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl From<Size> for ImageSize {
    fn from(size: Size) -> Self {
        Self { height: size.height, width: size.width }
    }
}

/// Ratio of two sizes along each axis.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Scale {
    /// Widths.
    pub x: f64,
    /// Heights.
    pub y: f64,
}

/// The parameters of a detection, as users write them.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct AppliedParams {
    /// -1 is all.
    pub max_keypoints: i64,
    /// Scores are above this.
    pub keypoint_threshold: f64,
    /// In pixels of the network frame.
    pub nms_radius: usize,
    /// In pixels of the network frame.
    pub border_removal_distance: usize,
}

impl From<&Params> for AppliedParams {
    fn from(params: &Params) -> Self {
        Self {
            max_keypoints: params.max_keypoints_number(),
            keypoint_threshold: decimal(params.keypoint_threshold),
            nms_radius: params.nms_radius,
            border_removal_distance: params.border_removal_distance,
        }
    }
}

/// What a detection is made with where nobody says otherwise.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Defaults {
    /// The parameters.
    #[serde(flatten)]
    pub params: AppliedParams,
    /// Whether descriptors are computed.
    pub return_descriptors: bool,
    /// How keypoints are taken from the score map: `package` or `upstream`.
    pub postprocess: &'static str,
    /// What is read of a colour picture: `first` or `luma`.
    pub channel: &'static str,
}

impl Defaults {
    /// As users write them.
    pub fn new(params: &Params, channel: Channel) -> Self {
        Self {
            params: params.into(),
            return_descriptors: params.return_descriptors,
            postprocess: params.postprocess.name(),
            channel: channel.name(),
        }
    }
}

/// Which steps ran where.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct ServingPath {
    /// The network was replayed from a trace on the device.
    pub traced: bool,
    /// Suppression ran on the device.
    pub device_nms: bool,
}

impl From<tt_backend::ServingPath> for ServingPath {
    fn from(path: tt_backend::ServingPath) -> Self {
        Self { traced: path.traced, device_nms: path.device_nms }
    }
}

/// Milliseconds of each stage.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct TimingMs {
    /// Decoding and resizing on the host.
    pub preprocess: f64,
    /// The network; on a device with upload and read-back.
    pub device_forward: f64,
    /// Keypoints and descriptors on the host.
    pub postprocess: f64,
    /// From the request's first byte of work to the last.
    pub total: f64,
}

/// Descriptors as a base64 npz: `np.load(io.BytesIO(base64.b64decode(data)))[key]`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Descriptors {
    /// `npz`.
    pub format: &'static str,
    /// Name of the array in the npz.
    pub key: &'static str,
    /// `float16`.
    pub dtype: &'static str,
    /// `[N, 256]`.
    pub shape: [usize; 2],
    /// The file, base64.
    #[schema(value_type = String)]
    pub data: Base64,
}

/// Bytes that become base64 in JSON.
#[derive(Clone, Debug)]
pub struct Base64(Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base64_simd::STANDARD.encode_to_string(&self.0))
    }
}

impl Response {
    /// The answer for `detections` that were made with `params`; `decode` is the time before the detector.
    ///
    /// # Errors
    ///
    /// If the descriptors do not fit into an npz; no network frame has that many pixels.
    pub fn new(detections: &Detections, params: &Params, decode: Duration) -> Result<Self, TooLarge> {
        let (x, y) = detections.scale();
        let timings = detections.timings;
        let milliseconds = |duration: Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
        Ok(Self {
            num_keypoints: detections.len(),
            keypoints: detections.points.iter().map(|&[px, py]| [f64::from(px) * x, f64::from(py) * y]).collect(),
            scores: detections.scores.clone(),
            original_size: detections.original.into(),
            image_size: detections.network.into(),
            scale: Scale { x, y },
            params: params.into(),
            serving_path: detections.serving_path.into(),
            timing_ms: TimingMs {
                preprocess: milliseconds(decode + timings.resize),
                device_forward: milliseconds(timings.network),
                postprocess: milliseconds(timings.keypoints),
                total: milliseconds(decode + timings.resize + timings.network + timings.keypoints),
            },
            descriptors: Descriptors::of(detections)?,
        })
    }
}

impl Response {
    /// The answer as JSON.
    ///
    /// Nearly all of it is the descriptors' text. They come last, so that it is written straight to its place, and not
    /// made a string, looked through for characters to escape, and copied.
    ///
    /// # Errors
    ///
    /// None: every field becomes JSON.
    pub fn to_json(mut self) -> serde_json::Result<Vec<u8>> {
        const HEAD: usize = 512;
        const KEYPOINT: usize = 64;
        const END: &[u8] = b"\"}}";
        let npz = self.descriptors.as_mut().map(|descriptors| std::mem::take(&mut descriptors.data.0));
        let text = npz.as_ref().map_or(0, |npz| base64_simd::STANDARD.encoded_length(npz.len()));
        let mut json = Vec::with_capacity(HEAD + KEYPOINT * self.num_keypoints + text);
        serde_json::to_writer(&mut json, &self)?;
        if let Some(npz) = npz {
            json.truncate(json.len() - END.len());
            base64_simd::STANDARD.encode_append(npz, &mut json);
            json.extend_from_slice(END);
        }
        Ok(json)
    }
}

impl Descriptors {
    fn of(detections: &Detections) -> Result<Option<Self>, TooLarge> {
        let Some(descriptors) = detections.descriptors() else { return Ok(None) };
        let (rows, columns) = descriptors.dim();
        let mut npz = Npz::default();
        npz.add("descriptors", &[rows, columns], &halves(descriptors.as_slice().unwrap_or_default()));
        Ok(Some(Self {
            format: "npz",
            key: "descriptors",
            dtype: "float16",
            shape: [rows, columns],
            data: Base64(npz.finish()?),
        }))
    }
}

/// Half precision, rounded to nearest, by whole vectors.
pub(crate) fn halves(values: &[f32]) -> Vec<f16> {
    let mut halves = vec![f16::ZERO; values.len()];
    halves.convert_from_f32_slice(values);
    halves
}

/// The double that prints as the float does: 0.005 rather than 0.004999999888241291.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tt_backend::Timings;

    use super::*;

    #[test]
    fn the_quick_way_to_json_gives_the_same() {
        let empty = Response::new(&Detections::default(), &Params::default(), Duration::ZERO).unwrap();
        let response = Response { num_keypoints: 2, keypoints: vec![[1.0, 2.5]; 2], scores: vec![0.5, 0.25], ..empty };
        let descriptors = Descriptors {
            format: "npz",
            key: "descriptors",
            dtype: "float16",
            shape: [2, 256],
            data: Base64((0..=255).collect()),
        };
        for descriptors in [None, Some(descriptors)] {
            let response = Response { descriptors, ..response.clone() };
            assert_eq!(response.clone().to_json().unwrap(), serde_json::to_vec(&response).unwrap());
        }
    }

    #[test]
    fn each_step_counts_once() {
        let milliseconds = Duration::from_millis;
        let mut detections = Detections::default();
        detections.timings = Timings { resize: milliseconds(2), network: milliseconds(4), keypoints: milliseconds(8) };
        let TimingMs { preprocess, device_forward, postprocess, total } =
            Response::new(&detections, &Params::default(), milliseconds(1)).unwrap().timing_ms;
        assert_eq!((preprocess, device_forward, postprocess, total), (3.0, 4.0, 8.0, 15.0));
    }

    #[test]
    fn thresholds_come_back_as_they_were_written() {
        for value in [0.005, 0.1, 0.0, 1.0, 0.015] {
            assert_eq!(decimal(value as f32), value);
        }
    }
}
