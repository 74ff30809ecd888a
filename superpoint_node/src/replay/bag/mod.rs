//! Recordings in rosbag2's format, read as one stream of messages.
//!
//! | module | what it is |
//! |---|---|
//! | `parts` | which files a recording consists of |
//! | `metadata` | what `metadata.yaml` says |
//! | `mcap`, `sqlite` | the two kinds of storage |
//! | `zstd` | files and messages that are compressed as a whole |
//!
//! What a file is, its first bytes decide, never its name. A file that is damaged is read up to the damage, and the
//! damage is told; the files behind it are read all the same. Memory is bounded by the largest chunk or message and, for
//! SQLite, by 16 bytes for each message of the topic.

mod mcap;
mod metadata;
mod parts;
mod sqlite;
mod zstd;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;

use self::metadata::Metadata;
use self::parts::{Opened, Parts, Refused};
pub use self::zstd::unpacked;

/// No record of a recording is larger: it would be a damaged length.
const MAX_RECORD_BYTES: usize = 1 << 30;

/// A serialized message with its times, in nanoseconds.
#[derive(Debug)]
pub struct Message {
    /// When it was recorded.
    pub log_time: u64,
    /// When it was published; where that is not recorded, `log_time`.
    pub publish_time: u64,
    /// As it lies in the recording, see [`unpacked`].
    pub data: Vec<u8>,
    /// How much of the recording is read with it, 0 to 1.
    pub progress: f32,
}

/// A topic of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// With its leading slash.
    pub name: String,
    /// `sensor_msgs/msg/Image`, or in old recordings `sensor_msgs/Image`.
    pub message_type: String,
    /// `cdr` in ROS 2.
    pub encoding: String,
    /// Messages that the recording is known to hold, or can be read of a damaged one.
    pub count: u64,
}

/// Log times from which on, and before which, messages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    /// The first nanosecond that is in.
    pub from: u64,
    /// The first nanosecond that is not.
    pub until: u64,
}

impl TimeRange {
    /// Everything.
    pub const ALL: Self = Self { from: 0, until: u64::MAX };

    fn contains(self, time: u64) -> bool {
        (self.from..self.until).contains(&time)
    }
}

/// Why a file could not be read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file's name.
    pub file: String,
    /// What is wrong, and where.
    pub reason: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.reason)
    }
}

/// What one file holds.
#[derive(Debug, Default)]
struct Contents {
    topics: Vec<Topic>,
    /// Log times of the earliest and the latest message.
    span: Option<(u64, u64)>,
}

impl Contents {
    fn count(&mut self, topic: Topic, messages: u64) {
        match self.topics.iter_mut().find(|known| known.name == topic.name && known.message_type == topic.message_type)
        {
            Some(known) => known.count += messages,
            None => self.topics.push(Topic { count: messages, ..topic }),
        }
    }

    fn include(&mut self, time: u64) {
        let (earliest, latest) = self.span.unwrap_or((time, time));
        self.span = Some((earliest.min(time), latest.max(time)));
    }
}

/// A recording that has been looked through once.
#[derive(Debug)]
pub struct Recording {
    parts: Parts,
    metadata: Option<Metadata>,
    topics: Vec<Topic>,
    span: Option<(u64, u64)>,
    damage: Vec<Damage>,
    stop: Arc<AtomicBool>,
}

impl Recording {
    /// Finds the files of a recording and looks through them: `path` is a folder with or without `metadata.yaml`, or
    /// a single file. Unpacking a large one takes a while, and so does looking through one without an index; when `stop`
    /// is set, both end.
    ///
    /// # Errors
    ///
    /// If there is no such path, nothing at it is a rosbag2 recording, or `stop` was set. Damage is no error, see
    /// [`Recording::damage`].
    pub fn open(path: &Path, stop: &Arc<AtomicBool>) -> anyhow::Result<Self> {
        let (parts, metadata) = Parts::find(path)?;
        let mut recording =
            Self { parts, metadata, topics: Vec::new(), span: None, damage: Vec::new(), stop: Arc::clone(stop) };
        let mut whole = Contents::default();
        let mut recognised = 0;
        for part in recording.parts.iter() {
            let (contents, damage) = match Opened::open(part, stop) {
                Ok(opened) => {
                    recognised += 1;
                    opened.survey(stop)
                }
                Err(Refused { damage, is_recording }) => {
                    recognised += usize::from(is_recording);
                    (Contents::default(), Some(damage))
                }
            };
            if stop.load(Ordering::Relaxed) {
                bail!("interrupted while looking through {}", part.display());
            }
            recording.damage.extend(damage);
            for topic in contents.topics {
                let count = topic.count;
                whole.count(topic, count);
            }
            for time in contents.span.into_iter().flat_map(|(earliest, latest)| [earliest, latest]) {
                whole.include(time);
            }
        }
        if recognised == 0 {
            match recording.damage.first().or(recording.parts.missing().first()) {
                Some(damage) => bail!("{damage}"),
                None => bail!("{} holds no .mcap or .db3 file: it is no rosbag2 recording", path.display()),
            }
        }
        recording.topics = whole.topics;
        recording.topics.sort_by(|a, b| a.name.cmp(&b.name));
        recording.span = whole.span;
        Ok(recording)
    }

    /// Topics by name.
    pub fn topics(&self) -> &[Topic] {
        &self.topics
    }

    /// Log times of the first and the last message of any topic, in nanoseconds.
    pub fn span(&self) -> Option<(u64, u64)> {
        self.span
    }

    /// What was found to be damaged, before any message was read.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// The files of the recording.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.parts.iter()
    }

    /// How many messages of a topic `metadata.yaml` says were recorded.
    pub fn promised(&self, topic: &Topic) -> Option<u64> {
        let key = (topic.name.clone(), topic.message_type.clone());
        self.metadata.as_ref()?.counts.get(&key).copied()
    }

    /// The messages of a topic, file by file: those of MCAP as they were written, of SQLite in the order of log times.
    pub fn messages(&self, topic: &Topic, range: TimeRange) -> Messages {
        Messages {
            parts: self.parts.iter().cloned().collect(),
            next: 0,
            current: None,
            topic: topic.clone(),
            range,
            damage: self.parts.missing().to_vec(),
            stop: Arc::clone(&self.stop),
        }
    }
}

/// Messages of one topic. See [`Recording::messages`].
#[derive(Debug)]
pub struct Messages {
    parts: Vec<PathBuf>,
    /// The part behind the current one.
    next: usize,
    current: Option<parts::Messages>,
    topic: Topic,
    range: TimeRange,
    damage: Vec<Damage>,
    stop: Arc<AtomicBool>,
}

impl Messages {
    /// What was damaged, so far.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }
}

impl Iterator for Messages {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        loop {
            match self.current.as_mut().and_then(Iterator::next) {
                Some(Ok(mut message)) => {
                    let before = (self.next - 1) as f32;
                    message.progress = (before + message.progress) / self.parts.len() as f32;
                    return Some(message);
                }
                // Nothing follows damage; the next part may be whole.
                Some(Err(damage)) => {
                    self.damage.push(damage);
                    self.current = None;
                }
                None => {
                    let part = self.parts.get(self.next)?;
                    self.next += 1;
                    self.current = match Opened::open(part, &self.stop) {
                        Ok(opened) => Some(opened.messages(&self.topic, self.range)),
                        Err(_) if self.stop.load(Ordering::Relaxed) => return None,
                        Err(Refused { damage, .. }) => {
                            self.damage.push(damage);
                            None
                        }
                    };
                }
            }
        }
    }
}
