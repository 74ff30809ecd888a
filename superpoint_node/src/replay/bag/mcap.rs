//! MCAP files: through their index where they have one, else from front to end.
//!
//! The index lies at the end, so a file that was cut off, or whose recorder died, has none. Then the file is read
//! record by record, into the chunk that was being written when it ended.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use ::mcap::records::Record;
use ::mcap::sans_io::indexed_reader::{IndexedReadEvent, IndexedReader, IndexedReaderOptions};
use ::mcap::sans_io::linear_reader::{LinearReadEvent, LinearReader, LinearReaderOptions};
use ::mcap::sans_io::summary_reader::{SummaryReadEvent, SummaryReader, SummaryReaderOptions};
use ::mcap::{McapError, Summary};

use super::{Contents, Damage, MAX_RECORD_BYTES, Message, TimeRange, Topic};

/// The first bytes of an MCAP file, and its last.
pub(super) const MAGIC: &[u8] = ::mcap::MAGIC;

/// Bytes that are asked of the file at a time: a damaged length must not reserve memory for what is not there.
const READ_BYTES: usize = 1 << 20;

/// A file that begins as MCAP does.
#[derive(Debug)]
pub(super) struct McapFile {
    path: PathBuf,
    /// For damage.
    name: String,
    length: u64,
    /// An index of every message.
    index: Option<Summary>,
}

impl McapFile {
    pub(super) fn open(path: &Path, name: &str) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        // A file without an end is no error: it is read from the front.
        let index = if ends_with_magic(&mut file).unwrap_or(false) {
            summary(&mut file, length).unwrap_or_default().filter(is_complete)
        } else {
            None
        };
        Ok(Self { path: path.to_owned(), name: name.to_owned(), length, index })
    }

    fn damage(&self, reason: impl ToString) -> Damage {
        Damage { file: self.name.clone(), reason: reason.to_string() }
    }

    /// What is in the file. Without an index all of it is read for that.
    pub(super) fn survey(self) -> (Contents, Option<Damage>) {
        let mut contents = Contents::default();
        if let Some(summary) = &self.index {
            let Some(statistics) = &summary.stats else { return (contents, None) };
            for (id, channel) in &summary.channels {
                let topic = topic_of(channel);
                contents.count(topic, statistics.channel_message_counts.get(id).copied().unwrap_or(0));
            }
            if statistics.message_count > 0 {
                contents.span = Some((statistics.message_start_time, statistics.message_end_time));
            }
            return (contents, None);
        }
        let mut records = match Records::open(&self.path, self.length) {
            Ok(records) => records,
            Err(error) => return (contents, Some(self.damage(error))),
        };
        loop {
            let seen = records.next(|topic, record| match record {
                Record::Message { header, .. } => {
                    contents.include(header.log_time);
                    contents.count(topic.clone(), 1);
                    Some(())
                }
                _ => {
                    contents.count(topic.clone(), 0);
                    Some(())
                }
            });
            match seen {
                Some(Ok(())) => {}
                Some(Err(reason)) => return (contents, Some(self.damage(reason))),
                None => return (contents, None),
            }
        }
    }

    /// The messages of a topic; after an error there is none.
    pub(super) fn messages(self, topic: &Topic, range: TimeRange) -> McapMessages {
        let failed = |error: &dyn ToString| Source::Failed(Some(self.damage(error.to_string())));
        let source = match &self.index {
            Some(summary) => match Indexed::open(&self.path, self.length, summary, topic, range) {
                Ok(Some(indexed)) => Source::Indexed(indexed),
                Ok(None) => Source::Failed(None), // the topic is not in this file
                Err(reason) => failed(&reason),
            },
            None => match Records::open(&self.path, self.length) {
                Ok(records) => Source::Linear(records),
                Err(error) => failed(&error),
            },
        };
        McapMessages { name: self.name, topic: topic.clone(), range, source }
    }
}

/// The messages of one topic in one file.
#[derive(Debug)]
pub(super) struct McapMessages {
    name: String,
    topic: Topic,
    range: TimeRange,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Indexed(Indexed),
    Linear(Records),
    /// Nothing to read, perhaps for a reason.
    Failed(Option<Damage>),
}

impl Iterator for McapMessages {
    type Item = Result<Message, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { name, topic, range, source } = self;
        let next = match source {
            Source::Indexed(indexed) => indexed.next(*range),
            Source::Linear(records) => {
                let progress = records.position as f32 / records.length.max(1) as f32;
                records.next(|of, record| match record {
                    Record::Message { header, data } if of.is(topic) && range.contains(header.log_time) => {
                        Some(Message {
                            log_time: header.log_time,
                            publish_time: header.publish_time,
                            data: data.into_owned(),
                            progress,
                        })
                    }
                    _ => None,
                })
            }
            Source::Failed(damage) => return damage.take().map(Err),
        };
        let end = |reason| Damage { file: name.clone(), reason };
        match next? {
            Ok(message) => Some(Ok(message)),
            Err(reason) => {
                let damage = end(reason);
                self.source = Source::Failed(None);
                Some(Err(damage))
            }
        }
    }
}

impl Topic {
    /// Whether both are the same topic with the same type.
    fn is(&self, other: &Self) -> bool {
        self.name == other.name && self.message_type == other.message_type
    }
}

fn topic_of(channel: &::mcap::Channel<'_>) -> Topic {
    Topic {
        name: channel.topic.clone(),
        message_type: channel.schema.as_ref().map(|schema| schema.name.clone()).unwrap_or_default(),
        encoding: channel.message_encoding.clone(),
        count: 0,
    }
}

fn ends_with_magic(file: &mut File) -> io::Result<bool> {
    let mut end = [0; 8];
    file.seek(SeekFrom::End(-(end.len() as i64)))?;
    file.read_exact(&mut end)?;
    Ok(end == *MAGIC)
}

fn summary(file: &mut File, length: u64) -> Result<Option<Summary>, McapError> {
    let options = SummaryReaderOptions::default().with_file_size(length).with_record_length_limit(MAX_RECORD_BYTES);
    let mut reader = SummaryReader::new_with_options(options);
    while let Some(event) = reader.next_event() {
        match event? {
            SummaryReadEvent::ReadRequest(need) => {
                let count = file.read(reader.insert(need.min(READ_BYTES)))?;
                reader.notify_read(count);
            }
            SummaryReadEvent::SeekRequest(to) => {
                let position = file.seek(to)?;
                reader.notify_seeked(position);
            }
        }
    }
    Ok(reader.finish())
}

/// Whether every message can be found through the index: writers may leave out chunk indexes, channels and counts.
fn is_complete(summary: &Summary) -> bool {
    let Some(statistics) = &summary.stats else { return false };
    !summary.chunk_indexes.is_empty()
        && statistics.chunk_count as usize == summary.chunk_indexes.len()
        && statistics.channel_message_counts.values().sum::<u64>() == statistics.message_count
        && statistics.channel_message_counts.keys().all(|id| summary.channels.contains_key(id))
}

/// Reads only the chunks that hold messages of the topic.
struct Indexed {
    file: File,
    length: u64,
    reader: IndexedReader,
    /// Channels of the topic, of the right type.
    channels: Vec<u16>,
    /// Log times of the file's first and last message.
    span: (u64, u64),
    chunk: Vec<u8>,
}

impl Indexed {
    fn open(
        path: &Path,
        length: u64,
        summary: &Summary,
        topic: &Topic,
        range: TimeRange,
    ) -> Result<Option<Self>, String> {
        let channels = summary.channels.iter().filter(|(_, channel)| topic_of(channel).is(topic));
        let channels: Vec<u16> = channels.map(|(id, _)| *id).collect();
        if channels.is_empty() {
            return Ok(None);
        }
        let options = IndexedReaderOptions::new()
            .include_topics([topic.name.as_str()])
            .starting_at(range.from)
            .ending_before(range.until)
            .with_record_length_limit(MAX_RECORD_BYTES);
        let reader = IndexedReader::new_with_options(summary, options).map_err(|error| error.to_string())?;
        let file = File::open(path).map_err(|error| error.to_string())?;
        let statistics = summary.stats.as_ref();
        let span = statistics.map_or((0, 0), |statistics| (statistics.message_start_time, statistics.message_end_time));
        Ok(Some(Self { file, length, reader, channels, span, chunk: Vec::new() }))
    }

    fn next(&mut self, range: TimeRange) -> Option<Result<Message, String>> {
        loop {
            match self.reader.next_event()? {
                Err(error) => return Some(Err(error.to_string())),
                Ok(IndexedReadEvent::Message { header, data }) if self.channels.contains(&header.channel_id) => {
                    return Some(Ok(Message {
                        log_time: header.log_time,
                        publish_time: header.publish_time,
                        data: data.to_vec(),
                        progress: range.progress(header.log_time, self.span.0, self.span.1),
                    }));
                }
                Ok(IndexedReadEvent::Message { .. }) => {}
                Ok(IndexedReadEvent::ReadChunkRequest { offset, length }) => {
                    if offset.saturating_add(length as u64) > self.length {
                        return Some(Err(format!("its index names a chunk behind its end, at byte {offset}")));
                    }
                    self.chunk.resize(length, 0);
                    let read =
                        self.file.seek(SeekFrom::Start(offset)).and_then(|_| self.file.read_exact(&mut self.chunk));
                    if let Err(error) = read {
                        return Some(Err(format!("cannot read the chunk at byte {offset}: {error}")));
                    }
                    if let Err(error) = self.reader.insert_chunk_record_data(offset, &self.chunk) {
                        return Some(Err(format!("the chunk at byte {offset} is damaged: {error}")));
                    }
                }
            }
        }
    }
}

impl std::fmt::Debug for Indexed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Indexed").field("channels", &self.channels).finish_non_exhaustive()
    }
}

/// A file's channels and messages from front to end.
struct Records {
    file: BufReader<File>,
    reader: LinearReader,
    /// Bytes that were read.
    position: u64,
    length: u64,
    schemas: HashMap<u16, String>,
    channels: HashMap<u16, Topic>,
    /// Whether all messages were read, so that what follows is the index.
    at_index: bool,
}

impl Records {
    fn open(path: &Path, length: u64) -> io::Result<Self> {
        let options =
            LinearReaderOptions::default().with_validate_chunk_crcs(true).with_record_length_limit(MAX_RECORD_BYTES);
        Ok(Self {
            file: BufReader::new(File::open(path)?),
            reader: LinearReader::new_with_options(options),
            position: 0,
            length,
            schemas: HashMap::new(),
            channels: HashMap::new(),
            at_index: false,
        })
    }

    /// Calls `act` with channels and messages and their topics, until it gives something. An error is the last item.
    fn next<T>(&mut self, mut act: impl FnMut(&Topic, Record<'_>) -> Option<T>) -> Option<Result<T, String>> {
        loop {
            let record = match self.reader.next_event()? {
                Err(error) => return Some(Err(self.describe(&error))),
                Ok(LinearReadEvent::ReadRequest(need)) => {
                    match self.file.read(self.reader.insert(need.min(READ_BYTES))) {
                        Ok(count) => {
                            self.position += count as u64;
                            self.reader.notify_read(count);
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return Some(Err(format!("cannot read on at byte {}: {error}", self.position))),
                    }
                    continue;
                }
                Ok(LinearReadEvent::Record { opcode, data }) => match ::mcap::parse_record(opcode, data) {
                    Ok(record) => record,
                    Err(error) => {
                        return Some(Err(format!("damaged before byte {}: {error}", self.position)));
                    }
                },
            };
            match record {
                _ if self.at_index => {}
                Record::DataEnd(_) => self.at_index = true,
                Record::Schema { header, .. } => _ = self.schemas.insert(header.id, header.name),
                Record::Channel(channel) => {
                    let topic = Topic {
                        name: channel.topic.clone(),
                        message_type: self.schemas.get(&channel.schema_id).cloned().unwrap_or_default(),
                        encoding: channel.message_encoding.clone(),
                        count: 0,
                    };
                    let found = act(&topic, Record::Channel(channel.clone()));
                    self.channels.insert(channel.id, topic);
                    if let Some(found) = found {
                        return Some(Ok(found));
                    }
                }
                Record::Message { ref header, .. } => {
                    let Some(topic) = self.channels.get(&header.channel_id) else {
                        let position = self.position;
                        return Some(Err(format!("damaged before byte {position}: a message of an unknown channel")));
                    };
                    if let Some(found) = act(topic, record) {
                        return Some(Ok(found));
                    }
                }
                _ => {}
            }
        }
    }

    fn describe(&self, error: &McapError) -> String {
        let position = self.position;
        match error {
            McapError::UnexpectedEof if self.at_index => {
                format!("it was cut off after {position} bytes, in its index; it still has all its messages")
            }
            McapError::UnexpectedEof => format!("it was cut off after {position} bytes; what followed is lost"),
            error => format!("damaged before byte {position}: {error}; what follows is lost"),
        }
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("position", &self.position).finish_non_exhaustive()
    }
}
