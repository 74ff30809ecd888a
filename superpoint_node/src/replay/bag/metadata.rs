//! `metadata.yaml`, which rosbag2 writes when a recording is closed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;

/// The name of the file.
pub(super) const NAME: &str = "metadata.yaml";

/// Recordings with tens of thousands of split files stay below.
const MAX_BYTES: u64 = 64 << 20;

/// What is used of it; every other field may be missing, as in old versions.
#[derive(Debug)]
pub(super) struct Metadata {
    /// Files in their order, relative to the folder.
    pub(super) files: Vec<PathBuf>,
    /// Messages of each topic, by its name and type.
    pub(super) counts: BTreeMap<(String, String), u64>,
}

#[derive(Deserialize)]
struct Document {
    rosbag2_bagfile_information: Information,
}

#[derive(Deserialize)]
struct Information {
    relative_file_paths: Vec<PathBuf>,
    #[serde(default)]
    topics_with_message_count: Vec<CountedTopic>,
}

#[derive(Deserialize)]
struct CountedTopic {
    topic_metadata: TopicMetadata,
    message_count: u64,
}

#[derive(Deserialize)]
struct TopicMetadata {
    name: String,
    #[serde(rename = "type")]
    message_type: String,
}

impl Metadata {
    /// Reads the file in `folder`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If it is there but cannot be read.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Option<Self>> {
        let path = folder.join(NAME);
        let Ok(about) = std::fs::metadata(&path) else { return Ok(None) };
        let context = || format!("cannot read {}", path.display());
        if about.len() > MAX_BYTES {
            return Err(anyhow::anyhow!("it has more than {MAX_BYTES} bytes")).with_context(context);
        }
        let text = std::fs::read_to_string(&path).with_context(context)?;
        let Document { rosbag2_bagfile_information: bag } = serde_yaml::from_str(&text).with_context(context)?;
        let mut counts = BTreeMap::new();
        for topic in bag.topics_with_message_count {
            let TopicMetadata { name, message_type } = topic.topic_metadata;
            *counts.entry((name, message_type)).or_default() += topic.message_count;
        }
        Ok(Some(Self { files: bag.relative_file_paths, counts }))
    }
}
