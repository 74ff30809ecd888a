//! One frame's way through the node: serialized image in, keypoints published.

use std::sync::{Arc, Mutex, PoisonError};

use r2r::Publisher;
use r2r::superpoint_p150::msg::Keypoints;
use tt_backend::Detector;

use super::encoding::{Samples, Unusable};
use super::image::{ImageView, Malformed};
use super::keypoints_message::keypoints_message;
use super::parameters::NodeParameters;
use super::tally::{Rejection, Tally};
use crate::channel::Channel;

/// Everything a frame needs on the detector's thread.
#[derive(Clone)]
pub(super) struct Pipeline {
    pub(super) logger: String,
    pub(super) parameters: Arc<Mutex<NodeParameters>>,
    pub(super) tally: Arc<Tally>,
    pub(super) output: Output,
}

/// The output topic, until it is closed.
#[derive(Clone)]
pub(super) struct Output(Arc<Mutex<Option<Publisher<Keypoints>>>>);

impl Output {
    pub(super) fn new(publisher: Publisher<Keypoints>) -> Self {
        Self(Arc::new(Mutex::new(Some(publisher))))
    }

    /// Waits for a message that is just being published; after that, none is. What belongs to ROS can then be taken
    /// down while the detector is still busy with a frame.
    pub(super) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// False when the output is closed.
    fn publish(&self, message: &Keypoints) -> r2r::Result<bool> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(publisher) => publisher.publish(message).map(|()| true),
            None => Ok(false),
        }
    }
}

impl Pipeline {
    /// Whether a message is an image that can be used; if not, it is counted, and logged when it is the first of its
    /// kind. Asked when a message arrives, so that a broken one takes no other's place.
    pub(super) fn admits(&self, message: &[u8]) -> bool {
        // The first channel is only looked for, not computed: this costs no time.
        let checked = ImageView::parse(message).map_err(malformed).and_then(|image| {
            Samples::read(&image, Channel::First).map_err(unusable)?;
            Ok(())
        });
        checked.map_err(|rejected| self.reject(rejected)).is_ok()
    }

    /// Detects and publishes.
    pub(super) fn run(&self, message: &[u8], detector: &mut Detector) {
        if let Err(rejected) = self.try_run(message, detector) {
            self.reject(rejected);
        }
    }

    fn reject(&self, (kind, reason): Rejected) {
        if self.tally.rejected(kind) {
            r2r::log_warn!(&self.logger, "frame rejected: {reason} (said once; further ones are counted)");
        }
    }

    fn try_run(&self, message: &[u8], detector: &mut Detector) -> Result<(), Rejected> {
        let live = self.parameters.lock().unwrap_or_else(PoisonError::into_inner).live.clone();

        let image = ImageView::parse(message).map_err(malformed)?;
        let samples = Samples::read(&image, live.channel).map_err(unusable)?;
        let plane = samples.plane().map_err(unusable)?;

        let found =
            detector.detect(&plane, &live.detection).map_err(|error| (Rejection::Detection, error.to_string()))?;

        let keypoints = keypoints_message(&image, &found, live.descriptor_type);
        let sent = self.output.publish(&keypoints).map_err(|error| (Rejection::Publishing, error.to_string()))?;
        if sent {
            self.tally.published();
            r2r::log_debug!(
                &self.logger,
                "{} keypoints; resize {:?}, network {:?}, keypoints {:?}",
                found.len(),
                found.timings.resize,
                found.timings.network,
                found.timings.keypoints
            );
        }
        Ok(())
    }
}

/// The kind that is counted, and the sentence for the log.
type Rejected = (Rejection, String);

fn malformed(error: Malformed) -> Rejected {
    (Rejection::Malformed, error.to_string())
}

fn unusable(error: Unusable) -> Rejected {
    let reason = error.to_string();
    match error {
        Unusable::Encoding(encoding) => (Rejection::Encoding(encoding), reason),
        Unusable::Layout(_) => (Rejection::Layout, reason),
    }
}
