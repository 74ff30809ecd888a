//! One frame's way through the node: serialized image in, keypoints and overlay published.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use image::RgbImage;
use r2r::builtin_interfaces::msg::Time;
use r2r::sensor_msgs::msg::Image;
use r2r::std_msgs::msg::Header;
use r2r::{Publisher, PublisherUntyped};
use tt_backend::{Detections, Detector, Plane};

use super::latency::{Latency, Times};
use super::parameters::{Live, NodeParameters, Transport};
use super::tally::{Rejection, Tally};
use crate::decode::{self, DecodeError, Samples};
use crate::message::cdr::Malformed;
use crate::message::encoding::{Pixels, Unusable};
use crate::message::image::{CompressedView, HeaderView, ImageView};
use crate::message::keypoints;
use crate::overlay;

/// Everything that a camera's frames need on the detector's thread.
pub(super) struct Pipeline {
    pub(super) logger: String,
    /// Which camera, and how the log calls it: `left: ` or nothing.
    pub(super) camera: usize,
    pub(super) prefix: String,
    pub(super) transport: Transport,
    pub(super) parameters: Arc<Mutex<NodeParameters>>,
    pub(super) tally: Tally,
    pub(super) latency: Latency,
    pub(super) output: Output,
    /// Overlays published; drawn only while somebody subscribes.
    pub(super) overlays: AtomicU64,
    /// Kept from frame to frame for its memory.
    pub(super) found: Mutex<Detections>,
}

/// The output topics, until they are closed.
pub(super) struct Output(Mutex<Option<Publishers>>);

pub(super) struct Publishers {
    /// Untyped, because its messages come serialized: the typed way copies the descriptors twice more.
    pub(super) keypoints: PublisherUntyped,
    pub(super) overlay: Publisher<Image>,
}

impl Output {
    pub(super) fn new(publishers: Publishers) -> Self {
        Self(Mutex::new(Some(publishers)))
    }

    /// Waits for a message that is just being published; after that, none is. What belongs to ROS can then be taken
    /// down while the detector is still busy with a frame.
    pub(super) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Does something with the publishers; `None` when the output is closed.
    fn with<T>(&self, act: impl FnOnce(&Publishers) -> T) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(act)
    }

    /// How many subscribers keypoints and overlay have.
    pub(super) fn subscribers(&self) -> (usize, usize) {
        self.with(|publishers| {
            // A count that cannot be had is no reason to stop working.
            let keypoints = publishers.keypoints.get_inter_process_subscription_count().unwrap_or(1);
            let overlay = publishers.overlay.get_inter_process_subscription_count().unwrap_or(0);
            (keypoints, overlay)
        })
        .unwrap_or_default()
    }
}

impl Pipeline {
    pub(super) fn live(&self) -> Live {
        self.parameters.lock().unwrap_or_else(PoisonError::into_inner).live.clone()
    }

    /// Whether a message is an image that can be used; if not, it is counted, and logged when it is the first of its
    /// kind. Asked when a message arrives, so that a broken one takes no other's place. Of a compressed image it is
    /// found out later, by decoding it.
    pub(super) fn admits(&self, message: &[u8]) -> bool {
        let checked = match self.transport {
            Transport::Raw => ImageView::parse(message)
                .map_err(malformed)
                .and_then(|image| Pixels::of(&image).map(drop).map_err(unusable)),
            Transport::Compressed => CompressedView::parse(message).map(drop).map_err(malformed),
        };
        checked.map_err(|rejected| self.reject(rejected)).is_ok()
    }

    /// Detects and publishes. `arrived` is when the message came.
    pub(super) fn run(&self, message: &[u8], arrived: Instant, detector: &mut Detector) {
        let _counted = CountedWhenPanicking(self);
        if let Err(rejected) = self.try_run(message, arrived, detector) {
            self.reject(rejected);
        }
    }

    fn reject(&self, (kind, reason): Rejected) {
        if self.tally.rejected(kind) {
            r2r::log_warn!(
                &self.logger,
                "{}frame rejected: {reason} (said once; further ones are counted)",
                self.prefix
            );
        }
    }

    fn try_run(&self, message: &[u8], arrived: Instant, detector: &mut Detector) -> Result<(), Rejected> {
        let waiting = arrived.elapsed();
        let live = self.live();
        let failed = |error: tt_backend::Error| (Rejection::Detection, error.to_string());
        match self.transport {
            Transport::Raw => {
                let image = ImageView::parse(message).map_err(malformed)?;
                let pixels = Pixels::of(&image).map_err(unusable)?;
                let samples = pixels.samples(live.channel, live.range_16bit);
                let frame = Frame { header: image.header, plane: samples.plane().map_err(failed)?, arrived, waiting };
                self.detect(&frame, &live, || pixels.to_rgb8(live.range_16bit), detector)
            }
            Transport::Compressed => {
                let image = CompressedView::parse(message).map_err(malformed)?;
                let samples = Samples::decode(image.data, live.channel).map_err(undecodable)?;
                let range = live.range_16bit;
                let plane = samples.plane().and_then(|plane| plane.with_range_16bit(range.black, range.white));
                let plane = plane.map_err(|error| undecodable(error.into()))?;
                let frame = Frame { header: image.header, plane, arrived, waiting };
                // It was decoded once, so this gives a picture too.
                let colors = || decode::colors(image.data, range).unwrap_or_default();
                self.detect(&frame, &live, colors, detector)
            }
        }
    }

    fn detect(
        &self,
        frame: &Frame<'_>,
        live: &Live,
        to_rgb8: impl FnOnce() -> RgbImage,
        detector: &mut Detector,
    ) -> Result<(), Rejected> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let before = Instant::now();
        detector
            .detect_into(&frame.plane, &live.detection, &mut found)
            .map_err(|error| (Rejection::Detection, error.to_string()))?;
        let detector_time = before.elapsed();

        if let Some(mask) = live.mask.of(self.camera) {
            let network = found.network;
            found.retain(|point| mask.keeps(point, network));
        }
        let message = keypoints::serialize(&frame.header, &found, live.descriptor_type);
        match self.output.with(|publishers| publishers.keypoints.publish_raw(&message)) {
            None => return Ok(()), // the node is ending
            Some(Err(error)) => return Err((Rejection::Publishing, error.to_string())),
            Some(Ok(())) => {}
        }
        self.tally.published();
        self.latency.add(Times { total: frame.arrived.elapsed(), waiting: frame.waiting, detector: detector_time });
        r2r::log_debug!(
            &self.logger,
            "{}{} keypoints; resize {:?}, network {:?}, keypoints {:?}",
            self.prefix,
            found.len(),
            found.timings.resize,
            found.timings.network,
            found.timings.keypoints
        );

        if live.overlay && self.output.subscribers().1 > 0 {
            let mut picture = to_rgb8();
            overlay::draw(&mut picture, &found);
            let message = overlay_message(&frame.header, picture);
            // Keypoints are what the frame is counted by; a lost overlay is only seen.
            match self.output.with(|publishers| publishers.overlay.publish(&message)) {
                Some(Err(error)) => r2r::log_warn!(&self.logger, "{}overlay not published: {error}", self.prefix),
                Some(Ok(())) => _ = self.overlays.fetch_add(1, Ordering::Relaxed),
                None => {}
            }
        }
        Ok(())
    }
}

/// An image on the detector's thread.
struct Frame<'a> {
    header: HeaderView<'a>,
    plane: Plane<'a>,
    arrived: Instant,
    waiting: Duration,
}

fn overlay_message(header: &HeaderView<'_>, picture: RgbImage) -> Image {
    let stamp = Time { sec: header.stamp.sec, nanosec: header.stamp.nanosec };
    Image {
        header: Header { stamp, frame_id: header.frame_id.to_owned() },
        height: picture.height(),
        width: picture.width(),
        encoding: "rgb8".to_owned(),
        is_bigendian: 0,
        step: 3 * picture.width(),
        data: picture.into_raw(),
    }
}

/// The engine survives a panic; the frame that caused it is counted here.
struct CountedWhenPanicking<'a>(&'a Pipeline);

impl Drop for CountedWhenPanicking<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.reject((Rejection::Detection, "the detector panicked".to_owned()));
        }
    }
}

/// The kind that is counted, and the sentence for the log.
type Rejected = (Rejection, String);

fn malformed(error: Malformed) -> Rejected {
    (Rejection::Malformed, error.to_string())
}

fn undecodable(error: DecodeError) -> Rejected {
    let kind = if matches!(error, DecodeError::TooLarge { .. }) { Rejection::TooLarge } else { Rejection::Undecodable };
    (kind, error.to_string())
}

fn unusable(error: Unusable) -> Rejected {
    let reason = error.to_string();
    match error {
        Unusable::Encoding(encoding) => (Rejection::Encoding(encoding), reason),
        Unusable::Layout(_) => (Rejection::Layout, reason),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use r2r::WrappedTypesupport as _;
    use r2r::superpoint_p150::msg::Keypoints;
    use tt_backend::Size;

    use super::*;
    use crate::message::image::Stamp;
    use crate::message::keypoints::DescriptorType;

    /// What `message::keypoints` writes is what the middleware makes of the typed message.
    #[test]
    fn ros_reads_what_is_serialized() {
        for (format, constant) in
            [(DescriptorType::Float32, Keypoints::FLOAT32 as u8), (DescriptorType::Float16, Keypoints::FLOAT16 as u8)]
        {
            for (frame_id, count) in [("", 0), ("c", 1), ("camera_left", 3)] {
                let header = HeaderView { stamp: Stamp { sec: -7, nanosec: 8 }, frame_id };
                let size = Size::new(480, 640);
                let mut found = Detections::default();
                (found.network, found.original) = (size, size);
                found.points = (0..count).map(|index| [10 + index, 20 + index]).collect();
                found.scores = (0..count).map(|index| 1.0 / f32::from(index + 1)).collect();
                let typed = Keypoints {
                    header: Header { stamp: Time { sec: -7, nanosec: 8 }, frame_id: frame_id.to_owned() },
                    image_width: 640,
                    image_height: 480,
                    points: found.points.as_flattened().iter().map(|&value| f32::from(value)).collect(),
                    scores: found.scores.clone(),
                    descriptor_type: constant,
                    descriptor_dim: 0,
                    descriptors: Vec::new(),
                };
                let ours = keypoints::serialize(&header, &found, format);
                // Byte by byte they differ: ROS leaves in the padding what lay there.
                assert_eq!(ours.len(), typed.to_serialized_bytes().unwrap().len());
                assert_eq!(Keypoints::from_serialized_bytes(&ours).unwrap(), typed);
            }
        }
    }
}
