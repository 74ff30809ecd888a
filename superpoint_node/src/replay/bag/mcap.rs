//! MCAP files: those chunks that the index names for a topic, else everything from front to end; always in the order in
//! which it was written, so that one chunk is in memory at a time.
//!
//! The index lies at the end, so a file that was cut off, or whose recorder died, has none. Then the file is read
//! record by record, into the chunk that was being written when it ended.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ::mcap::records::{ChunkIndex, Record};
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

    /// What is in the file. Without an index all of it is read for that, or until `stop` is set.
    pub(super) fn survey(self, stop: &AtomicBool) -> (Contents, Option<Damage>) {
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
        while !stop.load(Ordering::Relaxed) {
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
                None => break,
            }
        }
        (contents, None)
    }

    /// The messages of a topic; after an error there is none.
    pub(super) fn messages(self, topic: &Topic, range: TimeRange) -> McapMessages {
        let records = match &self.index {
            Some(summary) => Records::indexed(&self.path, self.length, summary, topic, range),
            None => Records::open(&self.path, self.length),
        };
        let (records, failure) = match records {
            Ok(records) => (Some(records), None),
            Err(error) => (None, Some(self.damage(error))),
        };
        McapMessages { name: self.name, topic: topic.clone(), range, records, failure }
    }
}

/// The messages of one topic in one file.
#[derive(Debug)]
pub(super) struct McapMessages {
    name: String,
    topic: Topic,
    range: TimeRange,
    /// `None` after an error.
    records: Option<Records>,
    /// Why there are no records to read.
    failure: Option<Damage>,
}

impl Iterator for McapMessages {
    type Item = Result<Message, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { name, topic, range, records, failure } = self;
        let Some(reading) = records else { return failure.take().map(Err) };
        let progress = reading.progress();
        let next = reading.next(|of, record| match record {
            Record::Message { header, data } if of.is(topic) && range.contains(header.log_time) => Some(Message {
                log_time: header.log_time,
                publish_time: header.publish_time,
                data: data.into_owned(),
                progress,
            }),
            _ => None,
        });
        match next? {
            Ok(message) => Some(Ok(message)),
            Err(reason) => {
                *records = None;
                Some(Err(Damage { file: name.clone(), reason }))
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

/// A file's channels and messages, from front to end.
struct Records {
    file: File,
    reader: LinearReader,
    /// Which bytes are still to be read, the last first.
    stretches: Vec<Range<u64>>,
    /// Where the next byte is.
    position: u64,
    /// Bytes that were read, of so many.
    done: u64,
    all: u64,
    schemas: HashMap<u16, String>,
    channels: HashMap<u16, Topic>,
    /// Whether all messages were read, so that what follows is the index.
    at_index: bool,
}

impl Records {
    /// Of the whole file.
    fn open(path: &Path, length: u64) -> io::Result<Self> {
        // A chunk's check sum is looked at when it has been read, so that what there is of one that was cut off counts.
        let options = LinearReaderOptions::default().with_validate_chunk_crcs(true);
        Self::of_stretches(path, [(0, length)], options)
    }

    /// Of the chunks that hold messages of a topic.
    fn indexed(path: &Path, length: u64, summary: &Summary, topic: &Topic, range: TimeRange) -> io::Result<Self> {
        let channels: HashMap<u16, Topic> =
            summary.channels.iter().map(|(id, channel)| (*id, topic_of(channel))).collect();
        let wanted = |chunk: &&ChunkIndex| {
            let ids = &chunk.message_index_offsets;
            chunk.message_start_time < range.until
                && chunk.message_end_time >= range.from
                // Writers may leave out which topics a chunk has.
                && (ids.is_empty() || ids.keys().any(|id| channels.get(id).is_some_and(|of| of.is(topic))))
        };
        let mut stretches = Vec::new();
        for chunk in summary.chunk_indexes.iter().filter(wanted) {
            let (start, end) = (chunk.chunk_start_offset, chunk.chunk_start_offset.saturating_add(chunk.chunk_length));
            if end > length {
                let error = format!("its index names a chunk behind its end, at byte {start}");
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
            stretches.push((start, end));
        }
        let options = LinearReaderOptions::default()
            .with_skip_start_magic(true)
            .with_skip_end_magic(true)
            .with_prevalidate_chunk_crcs(true);
        let mut records = Self::of_stretches(path, stretches, options)?;
        // What a chunk's messages are may only be said in another one.
        records.schemas = summary.schemas.iter().map(|(id, schema)| (*id, schema.name.clone())).collect();
        records.channels = channels;
        Ok(records)
    }

    fn of_stretches(
        path: &Path,
        stretches: impl IntoIterator<Item = (u64, u64)>,
        options: LinearReaderOptions,
    ) -> io::Result<Self> {
        let mut stretches: Vec<Range<u64>> = stretches.into_iter().map(|(start, end)| start..end).collect();
        stretches.sort_unstable_by_key(|stretch| Reverse(stretch.start));
        Ok(Self {
            file: File::open(path)?,
            reader: LinearReader::new_with_options(options.with_record_length_limit(MAX_RECORD_BYTES)),
            all: stretches.iter().map(|stretch| stretch.end - stretch.start).sum(),
            stretches,
            position: 0,
            done: 0,
            schemas: HashMap::new(),
            channels: HashMap::new(),
            at_index: false,
        })
    }

    /// 0 to 1.
    fn progress(&self) -> f32 {
        self.done as f32 / self.all.max(1) as f32
    }

    /// Gives the reader at most `need` bytes more; none at the end.
    fn feed(&mut self, need: usize) -> io::Result<()> {
        let mut count = 0;
        while count == 0
            && let Some(stretch) = self.stretches.last_mut()
        {
            if stretch.is_empty() {
                self.stretches.pop();
                continue;
            }
            if self.position != stretch.start {
                self.position = self.file.seek(SeekFrom::Start(stretch.start))?;
            }
            let most = usize::try_from(stretch.end - stretch.start).unwrap_or(usize::MAX).min(need).min(READ_BYTES);
            count = self.file.read(self.reader.insert(most))?;
            if count == 0 {
                // The file became shorter.
                self.stretches.clear();
                break;
            }
            stretch.start += count as u64;
            self.position += count as u64;
            self.done += count as u64;
        }
        self.reader.notify_read(count);
        Ok(())
    }

    /// Calls `act` with channels and messages and their topics, until it gives something. An error is the last item.
    fn next<T>(&mut self, mut act: impl FnMut(&Topic, Record<'_>) -> Option<T>) -> Option<Result<T, String>> {
        loop {
            let record = match self.reader.next_event()? {
                Err(error) => return Some(Err(self.describe(&error))),
                Ok(LinearReadEvent::ReadRequest(need)) => match self.feed(need) {
                    Err(error) if error.kind() != ErrorKind::Interrupted => {
                        return Some(Err(format!("cannot read on at byte {}: {error}", self.position)));
                    }
                    _ => continue,
                },
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
