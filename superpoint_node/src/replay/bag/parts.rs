//! Which files a recording consists of, and which storage each of them is.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, bail};
use tempfile::NamedTempFile;

use super::mcap::{McapFile, McapMessages};
use super::metadata::{self, Metadata};
use super::sqlite::{SqliteFile, SqliteMessages};
use super::{Contents, Damage, Message, TimeRange, Topic, mcap, sqlite, zstd};

/// The files of a recording, in their order.
#[derive(Debug)]
pub(super) struct Parts {
    files: Vec<PathBuf>,
    missing: Vec<Damage>,
}

impl Parts {
    /// As [`super::Recording::open`], without opening the files.
    pub(super) fn find(path: &Path) -> anyhow::Result<(Self, Option<Metadata>)> {
        let about = std::fs::metadata(path).with_context(|| format!("cannot open {}", path.display()))?;
        if !about.is_dir() {
            if path.file_name() == Some(OsStr::new(metadata::NAME)) {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                return Self::find(folder.unwrap_or(Path::new(".")));
            }
            // A part of a longer recording stands for itself: the counts of the whole would not be its own.
            return Ok((Self { files: vec![path.to_owned()], missing: Vec::new() }, None));
        }
        let metadata = Metadata::read(path).unwrap_or_else(|error| {
            tracing::warn!("{error:#}; the folder's files are read in the order of their names");
            None
        });
        let parts = match &metadata {
            Some(metadata) => Self::named(path, &metadata.files),
            None => Self { files: in_folder(path)?, missing: Vec::new() },
        };
        Ok((parts, metadata))
    }

    /// The files that the metadata name.
    fn named(folder: &Path, names: &[PathBuf]) -> Self {
        let mut parts = Self { files: Vec::new(), missing: Vec::new() };
        for name in names {
            match locate(folder, name) {
                Some(file) => parts.files.push(file),
                None => parts.missing.push(Damage {
                    file: name.display().to_string(),
                    reason: format!("{} names this file, but it is not there", metadata::NAME),
                }),
            }
        }
        parts
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter()
    }

    pub(super) fn missing(&self) -> &[Damage] {
        &self.missing
    }
}

/// Where a file named in the metadata lies. Old recordings name it with the folder's former name in front; compressed
/// ones may have been decompressed since, or have been named before they were compressed.
fn locate(folder: &Path, name: &Path) -> Option<PathBuf> {
    let base = name.file_name()?;
    let mut with_ending = base.to_owned();
    with_ending.push(".zstd");
    let without_ending = Path::new(base).with_extension("");
    let compressed = Path::new(base).extension() == Some(OsStr::new("zstd"));
    // A recording of a stranger's names no file elsewhere.
    let is_inside = name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let candidates = [
        is_inside.then(|| folder.join(name)),
        Some(folder.join(base)),
        Some(folder.join(&with_ending)),
        compressed.then(|| folder.join(&without_ending)),
    ];
    candidates.into_iter().flatten().find(|path| path.is_file())
}

/// Storage files of a folder without metadata, numbers in their names in numeric order.
fn in_folder(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read folder {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read folder {}", folder.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let storage = name.strip_suffix(".zstd").unwrap_or(&name);
        if path.is_file() && (storage.ends_with(".mcap") || storage.ends_with(".db3")) {
            files.push(path);
        } else if name.ends_with(".bag") {
            bail!("{}", ros1(&path));
        }
    }
    files.sort_by_cached_key(|path| natural(&path.file_name().unwrap_or_default().to_string_lossy()));
    Ok(files)
}

/// A key that sorts `bag_10` behind `bag_9`: digits and the texts between them.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let (text, tail) = rest.split_at(rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len()));
        let (digits, tail) = tail.split_at(tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len()));
        key.push((text.to_owned(), digits.parse().unwrap_or(u64::MAX)));
        rest = tail;
    }
    key
}

/// A file whose storage is known.
#[derive(Debug)]
pub(super) struct Opened {
    storage: Storage,
    /// What could not be unpacked.
    damage: Option<Damage>,
    /// Where it was unpacked to; removed when it is no longer read.
    unpacked: Option<NamedTempFile>,
}

/// A file that cannot be opened.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) damage: Damage,
    /// Whether it is a recording nevertheless, of which nothing can be read.
    pub(super) is_recording: bool,
}

#[derive(Debug)]
enum Storage {
    Mcap(McapFile),
    Sqlite(SqliteFile),
}

impl Opened {
    /// Opens a file by its content. A compressed one is unpacked for that, which ends when `stop` is set.
    ///
    /// # Errors
    ///
    /// If it is no storage of rosbag2, or cannot be read at all.
    pub(super) fn open(path: &Path, stop: &AtomicBool) -> Result<Self, Refused> {
        let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let refused =
            |is_recording, reason: String| Refused { damage: Damage { file: file.clone(), reason }, is_recording };
        let unreadable = |error: std::io::Error| refused(false, error.to_string());
        // Reading a pipe or a device might never end.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(refused(false, "it is no file".to_owned()));
        }
        let mut start = first_bytes(path).map_err(unreadable)?;
        let (mut unpacked, mut damage) = (None, None);
        if start.starts_with(zstd::MAGIC) {
            let (temporary, reason) = zstd::unpacked_file(path, stop).map_err(|error| {
                let folder = std::env::temp_dir();
                refused(true, format!("cannot unpack it into {}, the folder of TMPDIR: {error}", folder.display()))
            })?;
            start = first_bytes(temporary.path()).map_err(unreadable)?;
            if let Some(reason) = reason {
                if start.is_empty() {
                    return Err(refused(true, reason));
                }
                damage = Some(Damage { file: file.clone(), reason });
            }
            unpacked = Some(temporary);
        }
        let readable = unpacked.as_ref().map_or(path, |unpacked| unpacked.path());
        let storage = if start.starts_with(mcap::MAGIC) {
            Storage::Mcap(McapFile::open(readable, &file).map_err(unreadable)?)
        } else if start.starts_with(sqlite::MAGIC) {
            Storage::Sqlite(SqliteFile::open(readable, &file)?)
        } else if start.starts_with(b"#ROSBAG V") {
            return Err(refused(false, ros1(path)));
        } else if start.is_empty() {
            return Err(refused(false, "the file is empty".to_owned()));
        } else {
            let start = String::from_utf8_lossy(&start);
            return Err(refused(false, format!("neither MCAP nor SQLite (it begins with {start:?})")));
        };
        Ok(Self { storage, damage, unpacked })
    }

    /// What is in the file, as far as it can be read, or until `stop` is set.
    pub(super) fn survey(self, stop: &AtomicBool) -> (Contents, Option<Damage>) {
        let (contents, damage) = match self.storage {
            Storage::Mcap(file) => file.survey(stop),
            Storage::Sqlite(file) => file.survey(),
        };
        (contents, self.damage.or(damage))
    }

    pub(super) fn messages(self, topic: &Topic, range: TimeRange) -> Messages {
        let stored = match self.storage {
            Storage::Mcap(file) => Stored::Mcap(Box::new(file.messages(topic, range))),
            Storage::Sqlite(file) => Stored::Sqlite(Box::new(file.messages(topic, range))),
        };
        Messages { stored: Some(stored), damage: self.damage, _unpacked: self.unpacked }
    }
}

/// The messages of one file; an error is the last item.
#[derive(Debug)]
pub(super) struct Messages {
    stored: Option<Stored>,
    /// Damage of the compression, of which the damage of the storage is only the consequence.
    damage: Option<Damage>,
    _unpacked: Option<NamedTempFile>,
}

#[derive(Debug)]
enum Stored {
    Mcap(Box<McapMessages>),
    Sqlite(Box<SqliteMessages>),
}

impl Iterator for Messages {
    type Item = Result<Message, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match self.stored.as_mut()? {
            Stored::Mcap(messages) => messages.next(),
            Stored::Sqlite(messages) => messages.next(),
        };
        match next {
            Some(Ok(message)) => Some(Ok(message)),
            Some(Err(damage)) => {
                self.stored = None;
                Some(Err(self.damage.take().unwrap_or(damage)))
            }
            None => {
                self.stored = None;
                self.damage.take().map(Err)
            }
        }
    }
}

fn first_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(16).read_to_end(&mut start)?;
    Ok(start)
}

fn ros1(path: &Path) -> String {
    let name = path.display();
    format!(
        "{name} is a ROS 1 bag, and rosbag2 recordings are read. Convert it: pip install rosbags && rosbags-convert \
         --src {name} --dst {}",
        path.with_extension("").display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_files_sort_by_their_numbers() {
        let mut names = ["run2_10.mcap", "run2_9.mcap", "run2_0.mcap", "run10_1.mcap"];
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(names, ["run2_0.mcap", "run2_9.mcap", "run2_10.mcap", "run10_1.mcap"]);
    }
}
