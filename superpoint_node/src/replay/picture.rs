//! From a recorded message to the samples that the detector takes, at the network's size where that can be done ahead.

use std::fmt;
use std::time::{Duration, Instant};

use tt_backend::resize::Resizer;
use tt_backend::team::Team;
use tt_backend::{Detections, Plane, Size};

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

/// One channel of an image, independent of the message that it came in; of the network's size where that was to be had.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) header: Header,
    channel: Channel<'static>,
    /// How long it took to get here from the message.
    pub(super) decoding: Duration,
    /// How long resizing took after that.
    resizing: Duration,
}

#[derive(Debug)]
enum Channel<'a> {
    Message(encoding::Samples<'a>),
    File { samples: Samples, range: encoding::Range16 },
    Resized { levels: Vec<u8>, size: Size, original: Size },
}

impl Channel<'_> {
    fn plane(&self) -> Result<Plane<'_>, tt_backend::Error> {
        match self {
            Self::Message(samples) => samples.plane(),
            Self::File { samples, range } => samples.plane()?.with_range_16bit(range.black, range.white),
            Self::Resized { levels, size, .. } => Plane::contiguous(levels, *size),
        }
    }

    /// Without the message.
    fn into_owned(self) -> Channel<'static> {
        match self {
            Self::Message(samples) => Channel::Message(samples.into_owned()),
            Self::File { samples, range } => Channel::File { samples, range },
            Self::Resized { levels, size, original } => Channel::Resized { levels, size, original },
        }
    }
}

/// Resizes channels before the detector's turn comes, on the thread that decoded them.
#[derive(Debug)]
pub(super) struct Ahead {
    resizer: Resizer,
    team: Team,
    frame: Size,
}

impl Ahead {
    /// To the network's frame.
    pub(super) fn to(frame: Size) -> Result<Self, tt_backend::Error> {
        Ok(Self { resizer: Resizer::new(frame), team: Team::new(1)?, frame })
    }

    /// `None` for what needs no resizing, and for what the detector has to resize itself.
    fn resize(&mut self, channel: &Channel<'_>) -> Option<Channel<'static>> {
        // What is wrong with a plane is told when the detector is to take it.
        let plane = channel.plane().ok().filter(|plane| plane.size() != self.frame)?;
        let levels = self.resizer.levels(&plane, &mut self.team)?;
        Some(Channel::Resized { levels, size: self.frame, original: plane.size() })
    }
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
    /// Decompresses and decodes a message, reads the one channel of it, and resizes that where it can be done ahead.
    pub(super) fn read(
        message: Message,
        kind: ImageKind,
        settings: &Settings,
        ahead: Option<&mut Ahead>,
    ) -> Result<Self, Rejected> {
        let start = Instant::now();
        let Message { log_time, publish_time, data, .. } = message;
        let data = bag::unpacked(data).map_err(|reason| Rejected::new("compression", reason))?;
        let (view, channel) = match kind {
            ImageKind::Raw => {
                let image = ImageView::parse(&data)?;
                let samples = Pixels::of(&image)?.samples(settings.channel, settings.range_16bit);
                (image.header, Channel::Message(samples))
            }
            ImageKind::Compressed => {
                let image = CompressedView::parse(&data)?;
                let samples = Samples::decode(image.data, settings.channel)?;
                (image.header, Channel::File { samples, range: settings.range_16bit })
            }
        };
        let decoded = Instant::now();
        let resized = ahead.and_then(|ahead| ahead.resize(&channel));
        let resizing = if resized.is_some() { decoded.elapsed() } else { Duration::ZERO };
        let channel = resized.unwrap_or_else(|| channel.into_owned());
        let header = Header { stamp: view.stamp, frame_id: view.frame_id.to_owned(), log_time, publish_time };
        Ok(Self { header, channel, decoding: start.elapsed() - resizing, resizing })
    }

    /// The plane that the detector takes.
    pub(super) fn plane(&self) -> Result<Plane<'_>, tt_backend::Error> {
        self.channel.plane()
    }

    /// Makes what was detected on the plane that of the image.
    pub(super) fn complete(&self, detections: &mut Detections) {
        detections.timings.resize += self.resizing;
        if let Channel::Resized { original, .. } = &self.channel {
            detections.original = *original;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_ahead_counts_as_the_detectors() {
        let header =
            Header { stamp: Stamp { sec: 0, nanosec: 0 }, frame_id: String::new(), log_time: 0, publish_time: 0 };
        let (size, original) = (Size::new(1, 2), Size::new(3, 4));
        let milliseconds = Duration::from_millis;
        let channel = Channel::Resized { levels: vec![0, 255], size, original };
        let picture = Picture { header, channel, decoding: milliseconds(1), resizing: milliseconds(2) };
        let mut detections = Detections::default();
        detections.timings.resize = milliseconds(4);
        picture.complete(&mut detections);
        assert_eq!((detections.original, detections.timings.resize), (original, milliseconds(6)));
    }
}
