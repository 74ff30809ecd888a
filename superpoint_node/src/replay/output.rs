//! A recording as rosbag2 writes it: MCAP with ROS 2's message definitions and qualities of service.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use mcap::records::MessageHeader;
use mcap::{WriteOptions, Writer};

/// Bytes of a chunk: a few messages with a thousand descriptors.
const CHUNK_BYTES: u64 = 4 << 20;

/// What `ros2 bag record` notes of a reliable, volatile publisher with a history of 10. Policies as numbers, which every
/// version of rosbag2 reads. Source: rosbag2_storage/src/rosbag2_storage/qos.cpp.
const OFFERED_QOS: &str = "\
- history: 1
  depth: 10
  reliability: 1
  durability: 2
  deadline:
    sec: 9223372036
    nsec: 854775807
  lifespan:
    sec: 9223372036
    nsec: 854775807
  liveliness: 1
  liveliness_lease_duration:
    sec: 9223372036
    nsec: 854775807
  avoid_ros_namespace_conventions: false
";

/// A message's own text, and those of the messages in it, in the order in which rosbag2 appends them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Definition {
    pub(crate) message_type: &'static str,
    pub(crate) text: &'static str,
}

const HEADER: &str = "\
# Two-integer timestamp that is expressed as seconds and nanoseconds.
builtin_interfaces/Time stamp

# Transform frame with which this data is associated.
string frame_id
";

const TIME: &str = "\
# The seconds component, valid over all int32 values.
int32 sec

# The nanoseconds component, valid in the range [0, 1e9), to be added to the seconds component.
uint32 nanosec
";

impl Definition {
    /// `superpoint_p150/msg/Keypoints`.
    pub(crate) const KEYPOINTS: Self = Self {
        message_type: crate::message::keypoints::MESSAGE_TYPE,
        text: include_str!("../../../msg/Keypoints.msg"),
    };

    /// `sensor_msgs/msg/Image`.
    pub(crate) const IMAGE: Self = Self {
        message_type: "sensor_msgs/msg/Image",
        text: "\
# An uncompressed image, (0, 0) at its top left corner.

std_msgs/Header header
uint32 height
uint32 width
string encoding
uint8 is_bigendian
uint32 step
uint8[] data
",
    };

    /// With the definitions of the messages in it, all of which have a header.
    fn with_dependencies(&self) -> String {
        let line = "=".repeat(80);
        format!("{}\n{line}\nMSG: std_msgs/Header\n{HEADER}\n{line}\nMSG: builtin_interfaces/Time\n{TIME}", self.text)
    }
}

/// A recording with one topic that is being written.
pub(crate) struct Output {
    writer: Writer<BufWriter<File>>,
    channel: u16,
    count: u32,
    path: PathBuf,
}

impl Output {
    /// Begins a file. What is there is overwritten.
    ///
    /// Chunks are not compressed: descriptors and photos hardly shrink, and it would take time from the network.
    pub(crate) fn create(path: &Path, topic: &str, definition: &Definition) -> anyhow::Result<Self> {
        let create = || {
            let written_by = concat!("superpoint_p150 ", env!("CARGO_PKG_VERSION"));
            let options = WriteOptions::library(WriteOptions::new(), written_by)
                .profile("ros2")
                .compression(None)
                .chunk_size(Some(CHUNK_BYTES));
            let mut writer = options.create(BufWriter::new(File::create(path)?))?;
            let text = definition.with_dependencies();
            let schema = writer.add_schema(definition.message_type, "ros2msg", text.as_bytes())?;
            let metadata = BTreeMap::from([("offered_qos_profiles".to_owned(), OFFERED_QOS.to_owned())]);
            let channel = writer.add_channel(schema, topic, "cdr", &metadata)?;
            Ok::<_, anyhow::Error>(Self { writer, channel, count: 0, path: path.to_owned() })
        };
        create().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Appends a message; times are in nanoseconds.
    pub(crate) fn write(&mut self, log_time: u64, publish_time: u64, message: &[u8]) -> anyhow::Result<()> {
        let header = MessageHeader { channel_id: self.channel, sequence: self.count, log_time, publish_time };
        self.count = self.count.wrapping_add(1);
        let written = self.writer.write_to_known_channel(&header, message);
        written.with_context(|| format!("cannot write a message to {}", self.path.display()))
    }

    /// Writes the index. Without it the file is readable, but not closed.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        let path = self.path.display();
        self.writer.finish().with_context(|| format!("cannot write the index of {path}"))?;
        // Dropped, the buffer would lose what the disk no longer takes, and say nothing.
        self.writer.into_inner().flush().with_context(|| format!("cannot write the end of {path}"))
    }
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("count", &self.count).finish_non_exhaustive()
    }
}
