//! From a recorded message to the samples that the detector takes.

use std::fmt;
use std::time::{Duration, Instant};

use tt_backend::Plane;

use super::bag::{self, Message};
use super::topic::ImageKind;
use crate::decode::{DecodeError, Samples};
use crate::message::cdr::Malformed;
use crate::message::encoding::{self, Pixels, Unusable};
use crate::message::image::{CompressedView, HeaderView, ImageView, Stamp};
use crate::settings::Settings;

/// What is kept of a message beside its picture.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) stamp: Stamp,
    pub(super) frame_id: String,
    /// In nanoseconds.
    pub(super) log_time: u64,
    pub(super) publish_time: u64,
}

impl Header {
    /// As it goes into the message with the keypoints.
    pub(super) fn view(&self) -> HeaderView<'_> {
        HeaderView { stamp: self.stamp, frame_id: &self.frame_id }
    }
}

/// One channel of an image, independent of the message that it came in.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) header: Header,
    samples: Channel,
    /// How long it took to get here from the message.
    pub(super) decoding: Duration,
}

#[derive(Debug)]
enum Channel {
    Message(encoding::Samples<'static>),
    File { samples: Samples, range: encoding::Range16 },
}

/// Why a message gives no picture: the kind that is counted, and the sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejected {
    pub(super) kind: String,
    pub(super) reason: String,
}

impl Rejected {
    fn new(kind: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self { kind: kind.into(), reason: reason.to_string() }
    }
}

impl From<Malformed> for Rejected {
    fn from(error: Malformed) -> Self {
        Self::new("malformed", error)
    }
}

impl From<Unusable> for Rejected {
    fn from(error: Unusable) -> Self {
        match &error {
            Unusable::Encoding(encoding) => Self::new(format!("encoding {}", encoding.escape_default()), &error),
            Unusable::Layout(_) => Self::new("inconsistent", error),
        }
    }
}

impl From<DecodeError> for Rejected {
    fn from(error: DecodeError) -> Self {
        Self::new("undecodable", error)
    }
}

impl Picture {
    /// Decompresses and decodes a message, and reads the one channel of it.
    pub(super) fn read(message: Message, kind: ImageKind, settings: &Settings) -> Result<Self, Rejected> {
        let start = Instant::now();
        let Message { log_time, publish_time, data, .. } = message;
        let data = bag::unpacked(data).map_err(|reason| Rejected::new("compression", reason))?;
        let (view, samples) = match kind {
            ImageKind::Raw => {
                let image = ImageView::parse(&data)?;
                let samples = Pixels::of(&image)?.samples(settings.channel, settings.range_16bit).into_owned();
                (image.header, Channel::Message(samples))
            }
            ImageKind::Compressed => {
                let image = CompressedView::parse(&data)?;
                let samples = Samples::decode(image.data, settings.channel)?;
                (image.header, Channel::File { samples, range: settings.range_16bit })
            }
        };
        let header = Header { stamp: view.stamp, frame_id: view.frame_id.to_owned(), log_time, publish_time };
        Ok(Self { header, samples, decoding: start.elapsed() })
    }

    /// The plane that the detector takes.
    pub(super) fn plane(&self) -> Result<Plane<'_>, tt_backend::Error> {
        match &self.samples {
            Channel::Message(samples) => samples.plane(),
            Channel::File { samples, range } => samples.plane()?.with_range_16bit(range.black, range.white),
        }
    }
}
