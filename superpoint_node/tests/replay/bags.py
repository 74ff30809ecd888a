"""Recordings in all forms that rosbag2 and others write, from the same messages."""

import io
import pathlib
import shutil
import sqlite3
import sys

import numpy as np
from PIL import Image
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from ruamel.yaml import YAML

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'http'))
from servers import PHOTO, program  # noqa: E402, F401

STORE = get_typestore(Stores.ROS2_JAZZY)
IMAGE = 'sensor_msgs/msg/Image'
COMPRESSED = 'sensor_msgs/msg/CompressedImage'
TOPIC = '/camera/image_raw'
START_NS = 1_700_000_000_000_000_000
PERIOD_NS = 100_000_000


def photos(count):
    """Gray 640x480 views of a photo, each a little further right."""
    photo = Image.open(PHOTO).convert('L').resize((800, 600))
    return [np.asarray(photo.crop((7 * step, 60, 7 * step + 640, 540))) for step in range(count)]


def header(index):
    """The camera's own stamp, a millisecond before the message is recorded."""
    time = START_NS + index * PERIOD_NS - 1_000_000
    stamp = STORE.types['builtin_interfaces/msg/Time'](sec=time // 10**9, nanosec=time % 10**9)
    return STORE.types['std_msgs/msg/Header'](stamp=stamp, frame_id='camera')


def image(pixels, index=0, encoding='mono8'):
    """A serialized Image."""
    height, width = pixels.shape[:2]
    message = STORE.types[IMAGE](
        header=header(index), height=height, width=width, encoding=encoding, is_bigendian=0,
        step=pixels.reshape(height, -1).nbytes // height, data=np.frombuffer(pixels.tobytes(), np.uint8))
    return bytes(STORE.serialize_cdr(message, IMAGE))


def compressed(pixels, index=0, kind='PNG'):
    """A serialized CompressedImage."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    message = STORE.types[COMPRESSED](
        header=header(index), format=kind.lower(), data=np.frombuffer(file.getvalue(), np.uint8))
    return bytes(STORE.serialize_cdr(message, COMPRESSED))


def messages(pictures, topic=TOPIC):
    """(topic, type, log time, serialized) of each picture."""
    return [(topic, IMAGE, START_NS + index * PERIOD_NS, image(pixels, index))
            for index, pixels in enumerate(pictures)]


def write(path, entries, storage=StoragePlugin.MCAP, compression=CompressionMode.NONE, version=9):
    """A recording by `rosbags`."""
    writer = Writer(path, version=version, storage_plugin=storage)
    if compression != CompressionMode.NONE:
        writer.set_compression(compression, CompressionFormat.ZSTD)
    with writer:
        connections = {}
        for topic, kind, time, data in entries:
            if (topic, kind) not in connections:
                connections[topic, kind] = writer.add_connection(topic, kind, typestore=STORE)
            writer.write(connections[topic, kind], time, data)
    return path


def write_mcap(path, entries, **options):
    """One MCAP file by Foxglove's own package, with its options."""
    from mcap.writer import Writer as McapWriter
    with open(path, 'wb') as file:
        writer = McapWriter(file, **options)
        writer.start(profile='ros2', library='test')
        channels = {}
        for topic, kind, time, data in entries:
            if (topic, kind) not in channels:
                text = STORE.generate_msgdef(kind, ros_version=2)[0]
                schema = writer.register_schema(kind, 'ros2msg', text.encode())
                channels[topic, kind] = writer.register_channel(topic, 'cdr', schema)
            writer.add_message(channels[topic, kind], time, data, time - 500)
        writer.finish()
    return path


def write_old_sqlite(path, entries):
    """One db3 file as rosbag2 wrote it in its first versions: no metadata, no definitions, types without `/msg/`."""
    with sqlite3.connect(path) as database:
        database.execute('CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL, '
                         'serialization_format TEXT NOT NULL)')
        database.execute('CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, '
                         'timestamp INTEGER NOT NULL, data BLOB NOT NULL)')
        database.execute('CREATE INDEX timestamp_idx ON messages (timestamp ASC)')
        topics = {}
        for topic, kind, time, data in entries:
            if topic not in topics:
                old = kind.replace('/msg/', '/')
                topics[topic] = database.execute(
                    'INSERT INTO topics(name, type, serialization_format) VALUES (?, ?, "cdr")', (topic, old)).lastrowid
            database.execute('INSERT INTO messages(topic_id, timestamp, data) VALUES (?, ?, ?)',
                             (topics[topic], time, data))
    database.close()
    return path


def write_split(path, entries, storage=StoragePlugin.MCAP):
    """A folder with three files and one metadata.yaml, of which the last two files have two digits."""
    path.mkdir()
    names = [f'{path.name}_9', f'{path.name}_10', f'{path.name}_11']
    third = -(-len(entries) // 3)
    yaml, files, metadata = YAML(typ='safe'), [], None
    for index, name in enumerate(names):
        part = write(path.parent / name, entries[index * third:(index + 1) * third], storage)
        file = next(file for file in part.iterdir() if file.name != 'metadata.yaml')
        files.append(file.name)
        shutil.move(file, path / file.name)
        metadata = metadata or yaml.load(part / 'metadata.yaml')
        shutil.rmtree(part)
    whole = metadata['rosbag2_bagfile_information']
    whole['relative_file_paths'] = files
    whole['message_count'] = len(entries)
    for topic in whole['topics_with_message_count']:
        topic['message_count'] = sum(topic['topic_metadata']['name'] == name for name, *_ in entries)
    yaml.dump(metadata, path / 'metadata.yaml')
    return path
