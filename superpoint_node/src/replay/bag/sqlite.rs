//! SQLite files, the storage of older recordings.
//!
//! A file that was cut off is opened all the same. Its rows lie in the order in which they were recorded, and each row's
//! times lie before its data, so the rows' list can be read further than their data.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::parts::Refused;
use super::{Contents, Damage, Message, TimeRange, Topic};

/// The first bytes of a SQLite file.
pub(super) const MAGIC: &[u8] = b"SQLite format 3\0";

/// A file that begins as SQLite's do.
#[derive(Debug)]
pub(super) struct SqliteFile {
    name: String,
    database: Connection,
    /// What is missing at the file's end.
    cut: Option<String>,
}

impl SqliteFile {
    /// # Errors
    ///
    /// If it is no recording, or nothing in it can be read.
    pub(super) fn open(path: &Path, name: &str) -> Result<Self, Refused> {
        let refused =
            |is_recording, reason: String| Refused { damage: Damage { file: name.to_owned(), reason }, is_recording };
        let cut = missing_end(path).map_err(|error| refused(false, error.to_string()))?;
        let database =
            connect(path).map_err(|error| refused(cut.is_some(), cut.clone().unwrap_or_else(|| error.to_string())))?;
        let file = Self { name: name.to_owned(), database, cut };
        match file.topics() {
            Err(rusqlite::Error::SqliteFailure(_, Some(text))) if text.starts_with("no such") && file.cut.is_none() => {
                Err(refused(false, format!("a SQLite database, but no rosbag2 recording: {text}")))
            }
            _ => Ok(file),
        }
    }

    /// `error` or, where the file is too short, that: the error is only its consequence.
    fn damage(&self, error: &rusqlite::Error) -> Damage {
        let reason = self.cut.clone().unwrap_or_else(|| format!("damaged: {error}"));
        Damage { file: self.name.clone(), reason }
    }

    /// What is wrong behind the last row that could be `listed`. A cut that took no row took at least the index.
    fn end(&self, listed: rusqlite::Result<()>) -> Option<Damage> {
        let cut = || self.cut.clone().map(|reason| Damage { file: self.name.clone(), reason });
        listed.err().map(|error| self.damage(&error)).or_else(cut)
    }

    fn topics(&self) -> rusqlite::Result<HashMap<i64, Topic>> {
        // A view could go on for ever.
        let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'view' AND name IN ('topics', 'messages')";
        if self.database.query_row(sql, [], |row| row.get::<_, i64>(0))? > 0 {
            return Err(rusqlite::Error::InvalidColumnName("topics and messages must be tables".to_owned()));
        }
        let mut query = self.database.prepare("SELECT id, name, type, serialization_format FROM topics")?;
        let topics = query.query_map([], |row| {
            Ok((row.get(0)?, Topic { name: row.get(1)?, message_type: row.get(2)?, encoding: row.get(3)?, count: 0 }))
        })?;
        topics.collect()
    }

    /// Calls `act` with id, topic and log time of every message, in the order in which they were recorded.
    fn rows(&self, mut act: impl FnMut(i64, i64, u64)) -> rusqlite::Result<()> {
        // Not by the index on times: where that is damaged, the table may not be.
        let mut query = self.database.prepare("SELECT id, topic_id, timestamp FROM messages NOT INDEXED")?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let time: i64 = row.get(2)?;
            act(row.get(0)?, row.get(1)?, time.max(0).cast_unsigned());
        }
        Ok(())
    }

    /// What is in the file, as far as its rows can be listed.
    pub(super) fn survey(self) -> (Contents, Option<Damage>) {
        let mut contents = Contents::default();
        let topics = match self.topics() {
            Ok(topics) => topics,
            Err(error) => return (contents, Some(self.damage(&error))),
        };
        let mut counts: HashMap<i64, u64> = HashMap::new();
        let listed = self.rows(|_, topic, time| {
            contents.include(time);
            *counts.entry(topic).or_default() += 1;
        });
        for (id, topic) in topics {
            contents.count(topic, counts.get(&id).copied().unwrap_or(0));
        }
        (contents, self.end(listed))
    }

    /// The messages of a topic by log time; after an error there is none.
    pub(super) fn messages(self, topic: &Topic, range: TimeRange) -> SqliteMessages {
        let mut rows = Vec::new();
        let listed = self.topics().and_then(|topics| {
            self.rows(|id, topic_id, time| {
                let is_wanted = topics
                    .get(&topic_id)
                    .is_some_and(|of| of.name == topic.name && of.message_type == topic.message_type);
                if is_wanted && range.contains(time) {
                    rows.push((time, id));
                }
            })
        });
        rows.sort_unstable();
        let end = self.end(listed);
        SqliteMessages { file: self, rows, next: 0, end }
    }
}

/// The messages of one topic in one file.
#[derive(Debug)]
pub(super) struct SqliteMessages {
    file: SqliteFile,
    /// Log times and ids, in order.
    rows: Vec<(u64, i64)>,
    next: usize,
    /// What follows the last row.
    end: Option<Damage>,
}

impl Iterator for SqliteMessages {
    type Item = Result<Message, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(&(time, id)) = self.rows.get(self.next) else { return self.end.take().map(Err) };
        self.next += 1;
        let data = self
            .file
            .database
            .prepare_cached("SELECT CAST(data AS BLOB) FROM messages WHERE id = ?1")
            .and_then(|mut query| query.query_row([id], |row| row.get(0)));
        match data {
            Ok(data) => Some(Ok(Message {
                log_time: time,
                publish_time: time,
                data,
                progress: self.next as f32 / self.rows.len() as f32,
            })),
            Err(error) => {
                self.rows.clear();
                self.end = None;
                Some(Err(self.file.damage(&error)))
            }
        }
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let mut log: PathBuf = path.to_owned();
    log.as_mut_os_string().push("-wal");
    // A recorder that died leaves its newest messages in a write-ahead log. Without one the file is opened as one that
    // nobody changes: it may lie where nothing can be written.
    let has_log = std::fs::metadata(&log).is_ok_and(|log| log.len() > 0);
    let immutable = if has_log { "" } else { "&immutable=1" };
    // https://www.sqlite.org/uri.html: some have a meaning of their own there, and a name need not be text.
    let escape = |&byte: &u8| match byte {
        b'/' | b'.' | b'-' | b'_' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02x}"),
    };
    let escaped: String = path.as_os_str().as_encoded_bytes().iter().map(escape).collect();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(format!("file:{escaped}?mode=ro{immutable}"), flags)?;
    // With this SQLite opens a file that is shorter than its header says; nothing is written, it is open for reading.
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, true)?;
    // What a stranger's file defines as functions and views is not run.
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    Ok(database)
}

/// How many bytes are missing at the end, according to the header (<https://www.sqlite.org/fileformat.html>, 1.3).
fn missing_end(path: &Path) -> std::io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut header = [0; 100];
    if file.read_exact(&mut header).is_err() {
        return Ok(Some(format!("it was cut off after {length} bytes, in its header")));
    }
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let page_bytes = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65_536,
        bytes => u64::from(bytes),
    };
    // The count of pages is only meant when these two agree.
    let expected = if number(24) == number(92) { u64::from(number(28)) * page_bytes } else { 0 };
    Ok((length < expected)
        .then(|| format!("it was cut off after {length} of its {expected} bytes; what followed is lost")))
}
