//! Which topic of a recording is replayed.

use super::bag::{Recording, Topic};

/// How the images of a topic are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// `sensor_msgs/Image`.
    Raw,
    /// `sensor_msgs/CompressedImage`.
    Compressed,
}

impl ImageKind {
    /// Of a message type, as ROS 2 writes it or as its first versions did; `None` if it is no image.
    fn of(message_type: &str) -> Option<Self> {
        match message_type {
            "sensor_msgs/msg/Image" | "sensor_msgs/Image" => Some(Self::Raw),
            "sensor_msgs/msg/CompressedImage" | "sensor_msgs/CompressedImage" => Some(Self::Compressed),
            _ => None,
        }
    }
}

/// Why there is no topic to replay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopicError {
    /// Several could be meant.
    #[error("the recording has several image topics, choose one with --topic:{0}")]
    Ambiguous(String),
    /// The topic asked for is not in the recording.
    #[error("the recording has no topic `{wanted}`; its topics are:{topics}")]
    Unknown {
        /// What was asked for.
        wanted: String,
        /// What there is, a line each.
        topics: String,
    },
    /// The topic asked for carries something else.
    #[error("topic {name} carries {message_type}; sensor_msgs/msg/Image and CompressedImage are read")]
    NoImages {
        /// The topic.
        name: String,
        /// What it carries.
        message_type: String,
    },
    /// No topic carries images.
    #[error("the recording has no image topic (sensor_msgs/msg/Image or CompressedImage); its topics are:{0}")]
    NoImageTopic(String),
    /// Messages are not in ROS 2's format.
    #[error(
        "topic {name} is encoded as `{encoding}`, and only `cdr` (ROS 2) is read{}",
        if encoding == "ros1" { "; convert the recording: pip install rosbags && rosbags-convert" } else { "" }
    )]
    Encoding {
        /// The topic.
        name: String,
        /// Its messages' format.
        encoding: String,
    },
}

impl TopicError {
    /// Whether another choice would do.
    pub fn is_choice(&self) -> bool {
        matches!(self, Self::Ambiguous(_) | Self::Unknown { .. } | Self::NoImages { .. })
    }
}

/// The topic `wanted`, or the only one with images.
///
/// # Errors
///
/// If there is none, or several and none was asked for.
pub fn choose(recording: &Recording, wanted: Option<&str>) -> Result<(Topic, ImageKind), TopicError> {
    let all = recording.topics();
    let candidates: Vec<&Topic> = match wanted {
        Some(name) => {
            all.iter().filter(|topic| topic.name.trim_start_matches('/') == name.trim_start_matches('/')).collect()
        }
        None => all.iter().filter(|topic| ImageKind::of(&topic.message_type).is_some()).collect(),
    };
    let Some(&first) = candidates.first() else {
        return Err(match wanted {
            Some(wanted) => TopicError::Unknown { wanted: wanted.to_owned(), topics: list(all.iter()) },
            None => TopicError::NoImageTopic(list(all.iter())),
        });
    };
    // Of one name there are several only when its type changed.
    let Some((topic, kind)) = candidates.iter().find_map(|&topic| Some((topic, ImageKind::of(&topic.message_type)?)))
    else {
        return Err(TopicError::NoImages { name: first.name.clone(), message_type: first.message_type.clone() });
    };
    if candidates.iter().any(|candidate| candidate.name != topic.name) {
        return Err(TopicError::Ambiguous(list(candidates.into_iter())));
    }
    if topic.encoding != "cdr" {
        return Err(TopicError::Encoding { name: topic.name.clone(), encoding: topic.encoding.clone() });
    }
    Ok((topic.clone(), kind))
}

/// A line for each topic.
fn list<'a>(topics: impl Iterator<Item = &'a Topic>) -> String {
    let lines: String = topics
        .map(|Topic { name, message_type, count, .. }| format!("\n  {name} ({message_type}, {count} messages)"))
        .collect();
    if lines.is_empty() { " none".to_owned() } else { lines }
}
