"""`superpoint replay`: recordings in every form give the same keypoints; what comes out is a recording again."""

import io
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip('rosbags')
pytest.importorskip('mcap')

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from mcap.reader import make_reader  # noqa: E402
from mcap.writer import CompressionType, IndexType  # noqa: E402
from rosbags.rosbag2 import CompressionMode, StoragePlugin  # noqa: E402
from rosbags.rosbag2 import Reader  # noqa: E402
from rosbags.typesys import Stores, get_types_from_msg, get_typestore  # noqa: E402

import bags  # noqa: E402
from bags import COMPRESSED, IMAGE, PERIOD_NS, START_NS, TOPIC  # noqa: E402

KEYPOINTS = 'superpoint_p150/msg/Keypoints'
TEXT = 'std_msgs/msg/String'
NOTE = bags.STORE.serialize_cdr(bags.STORE.types[TEXT](data='x' * 300), TEXT)


def run(bag, *options, status=0, timeout=120):
    """Run the command; what it wrote on standard output and on standard error."""
    environment = dict(os.environ, HF_HOME='/nonexistent', HF_HUB_CACHE='/nonexistent')
    done = subprocess.run([bags.program('superpoint'), 'replay', str(bag), '--backend', 'cpu', *map(str, options)],
                          capture_output=True, text=True, timeout=timeout, env=environment)
    assert 'panicked' not in done.stderr, done.stderr
    assert done.returncode == status, f'{done.returncode}\n{done.stdout}{done.stderr}'
    return done.stdout, done.stderr


def replay(bag, *options, **expected):
    """Run the command; what it wrote on standard error."""
    return run(bag, *options, **expected)[1]


def read_out(path):
    """(log time, publish time, serialized) of each message, by Foxglove's reader."""
    with open(path, 'rb') as file:
        return [(message.log_time, message.publish_time, message.data)
                for _, _, message in make_reader(file, validate_crcs=True).iter_messages()]


def keypoints_in(path):
    """(log time, message), by rosbags. Its definition alone is enough to read it: all that it consists of is in it."""
    store = get_typestore(Stores.EMPTY)
    with Reader(path) as reader:
        connection, = reader.connections
        store.register(get_types_from_msg(connection.msgdef.data, KEYPOINTS))
        return [(time, store.deserialize_cdr(data, KEYPOINTS)) for _, time, data in reader.messages()]


def report(folder):
    return json.loads((folder / 'report.json').read_text())


@pytest.fixture(scope='module')
def pictures():
    return bags.photos(3)


@pytest.fixture(scope='module')
def entries(pictures):
    """The images, and another topic between them."""
    images = bags.messages(pictures)
    notes = [('/note', TEXT, time + 1, NOTE) for _, _, time, _ in images]
    return [entry for pair in zip(images, notes) for entry in pair]


@pytest.fixture(scope='module')
def reference(tmp_path_factory, entries):
    """The keypoints of the plainest recording, as (log time, serialized)."""
    folder = tmp_path_factory.mktemp('reference')
    bag = bags.write(folder / 'bag', entries)
    replay(bag, '--out', folder / 'out.mcap')
    return [(time, data) for time, _, data in read_out(folder / 'out.mcap')]


def by_rosbags(storage, compression=CompressionMode.NONE, version=9, keep_metadata=True):
    def make(path, entries):
        bags.write(path, entries, storage, compression, version)
        if not keep_metadata:
            (path / 'metadata.yaml').unlink()
        return path
    return make


def by_mcap(**options):
    return lambda path, entries: bags.write_mcap(path.with_suffix('.mcap'), entries, **options)


def as_one_file(storage):
    def make(path, entries):
        bags.write(path, entries, storage)
        return next(file for file in path.iterdir() if file.name != 'metadata.yaml')
    return make


MCAP, SQLITE = StoragePlugin.MCAP, StoragePlugin.SQLITE3
FORMS = {
    'mcap': by_rosbags(MCAP),
    'mcap version 8': by_rosbags(MCAP, version=8),
    'mcap without metadata': by_rosbags(MCAP, keep_metadata=False),
    'mcap file': as_one_file(MCAP),
    'mcap zstd chunks': by_rosbags(MCAP, CompressionMode.STORAGE),
    'mcap zstd file': by_rosbags(MCAP, CompressionMode.FILE),
    'mcap zstd file without metadata': by_rosbags(MCAP, CompressionMode.FILE, keep_metadata=False),
    'mcap zstd messages': by_rosbags(MCAP, CompressionMode.MESSAGE),
    'mcap lz4 chunks': by_mcap(compression=CompressionType.LZ4, chunk_size=100_000),
    'mcap plain chunks': by_mcap(compression=CompressionType.NONE, chunk_size=100_000),
    'mcap without chunks': by_mcap(use_chunking=False),
    'mcap lz4 without index': by_mcap(compression=CompressionType.LZ4, index_types=IndexType.NONE),
    'mcap without summary': by_mcap(use_summary_offsets=False, use_statistics=False, repeat_channels=False,
                                    repeat_schemas=False),
    'mcap split': lambda path, entries: bags.write_split(path, entries, MCAP),
    'sqlite': by_rosbags(SQLITE),
    'sqlite version 8': by_rosbags(SQLITE, version=8),
    'sqlite without metadata': by_rosbags(SQLITE, keep_metadata=False),
    'sqlite file': as_one_file(SQLITE),
    'sqlite zstd file': by_rosbags(SQLITE, CompressionMode.FILE),
    'sqlite zstd messages': by_rosbags(SQLITE, CompressionMode.MESSAGE),
    'sqlite zstd messages without metadata': by_rosbags(SQLITE, CompressionMode.MESSAGE, keep_metadata=False),
    'sqlite split': lambda path, entries: bags.write_split(path, entries, SQLITE),
    'sqlite of old': lambda path, entries: bags.write_old_sqlite(path.with_suffix('.db3'), entries),
}


@pytest.mark.parametrize('form', FORMS)
def test_every_form_gives_the_same_keypoints(form, entries, reference, tmp_path):
    bag = FORMS[form](tmp_path / 'bag', entries)
    replay(bag, '--out', tmp_path / 'out.mcap')
    out = read_out(tmp_path / 'out.mcap')
    assert [(time, data) for time, _, data in out] == reference
    delay = 500 if form in ('mcap lz4 chunks', 'mcap plain chunks', 'mcap without chunks', 'mcap lz4 without index',
                            'mcap without summary') else 0
    assert all(published == logged - delay for logged, published, _ in out)


def test_the_output_is_read_by_rosbags_with_type_stamps_and_quality_of_service(pictures, entries, tmp_path):
    out = tmp_path / 'out.mcap'
    replay(bags.write(tmp_path / 'bag', entries), '--out', out)
    with open(out, 'rb') as file:
        reader = make_reader(file)
        schema, = reader.get_summary().schemas.values()
        channel, = reader.get_summary().channels.values()
        assert reader.get_header().profile == 'ros2'
    assert (schema.name, schema.encoding) == (KEYPOINTS, 'ros2msg')
    assert (channel.topic, channel.message_encoding) == ('/keypoints', 'cdr')

    with Reader(out) as reader:
        connection, = reader.connections
        assert connection.msgtype == KEYPOINTS
        qos, = connection.ext.offered_qos_profiles
        assert (qos.history.name, qos.depth) == ('KEEP_LAST', 10)
        assert (qos.reliability.name, qos.durability.name) == ('RELIABLE', 'VOLATILE')
    found = keypoints_in(out)
    assert [time for time, _ in found] == [START_NS + index * PERIOD_NS for index in range(3)]
    for index, (time, message) in enumerate(found):
        stamp = message.header.stamp
        assert stamp.sec * 10**9 + stamp.nanosec == time - 1_000_000
        assert (message.header.frame_id, message.image_width, message.image_height) == ('camera', 640, 480)
        assert len(message.points) == 2 * len(message.scores) > 100
        rows = message.descriptors.view(np.float32).reshape(-1, 256)
        assert len(rows) == len(message.scores)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
        detected = detect(pictures[index], tmp_path)
        np.testing.assert_array_equal(message.points.reshape(-1, 2), detected['keypoints'])
        np.testing.assert_allclose(message.scores, detected['scores'])


def detect(pixels, tmp_path):
    from PIL import Image
    Image.fromarray(pixels).save(tmp_path / 'picture.png')
    done = subprocess.run([bags.program('superpoint'), 'detect', tmp_path / 'picture.png', '--json',
                           '--no-descriptors', '--weights', 'bundled'], capture_output=True, check=True, timeout=300)
    return json.loads(done.stdout)


def test_raw_and_compressed_images_of_every_kind(pictures, tmp_path):
    gray = pictures[0]
    color = np.dstack([gray, 255 - gray, gray // 2])
    wide = (gray.astype(np.uint16) * 257)
    kinds = {
        '/mono8': (IMAGE, bags.image(gray)),
        '/rgb8': (IMAGE, bags.image(color, encoding='rgb8')),
        '/bgr8': (IMAGE, bags.image(color[:, :, ::-1].copy(), encoding='bgr8')),
        '/rgba8': (IMAGE, bags.image(np.dstack([color, gray]), encoding='rgba8')),
        '/yuv': (IMAGE, bags.image(np.dstack([gray // 3, gray]), encoding='yuv422')),
        '/mono16': (IMAGE, bags.image(wide, encoding='mono16')),
        '/png': (COMPRESSED, bags.compressed(gray)),
        '/png_in_color': (COMPRESSED, bags.compressed(color)),
    }
    entries = [(topic, kind, START_NS, data) for topic, (kind, data) in kinds.items()]
    bag = bags.write(tmp_path / 'bag', entries)
    results = {}
    for topic in kinds:
        replay(bag, '--topic', topic, '--out', tmp_path / 'out.mcap')
        (_, _, results[topic]), = read_out(tmp_path / 'out.mcap')
    assert all(result == results['/mono8'] for result in results.values()), \
        [topic for topic in kinds if results[topic] != results['/mono8']]


def test_a_range_of_16_bits_counts_in_raw_and_compressed_images(pictures, tmp_path):
    wide = 1000 + 8 * pictures[0].astype(np.uint16)
    (tmp_path / 'config.yaml').write_text('superpoint:\n  ros__parameters:\n    range_16bit: [1000, 3040]\n')
    results = []
    for name, kind, data, options in (
            ('gray', IMAGE, bags.image(pictures[0]), []),
            ('wide', IMAGE, bags.image(wide, encoding='mono16'), ['--config', tmp_path / 'config.yaml']),
            ('png', COMPRESSED, bags.compressed(wide), ['--config', tmp_path / 'config.yaml']),
            ('unknown', COMPRESSED, bags.compressed(wide), [])):
        replay(bags.write(tmp_path / name, [(TOPIC, kind, START_NS, data)]), '--out', tmp_path / 'out.mcap', *options)
        (_, message), = keypoints_in(tmp_path / 'out.mcap')
        results.append(sorted(map(tuple, message.points.reshape(-1, 2).tolist())))
    gray, raw, compressed, unknown = results
    assert len(set(gray) & set(raw)) > 0.95 * len(gray) and raw == compressed, (len(gray), len(raw), len(compressed))
    assert unknown != compressed


def test_images_of_another_size_than_the_networks(tmp_path):
    """Resized by the decoders; 16 bits by the detector. Both as `detect` does it."""
    from PIL import Image
    color = np.asarray(Image.open(bags.PHOTO).convert('RGB').resize((800, 650)))
    wide = color[:, :, 0].astype(np.uint16) * 257
    for name, pixels, kind, data in (
            ('color', color, IMAGE, bags.image(color, encoding='rgb8')),
            ('png', color, COMPRESSED, bags.compressed(color)),
            ('wide', wide, IMAGE, bags.image(wide, encoding='mono16'))):
        bag = bags.write(tmp_path / name, [(TOPIC, kind, START_NS, data)])
        replay(bag, '--out', tmp_path / 'out.mcap')
        (_, message), = keypoints_in(tmp_path / 'out.mcap')
        assert (message.image_width, message.image_height) == (800, 650)
        detected = detect(pixels, tmp_path)
        # The command line writes network position times scale; ROS wants pixel centres at integers.
        scale = np.array([800 / 640, 650 / 480])
        expected = np.array(detected['keypoints']) + (scale - 1) / 2
        np.testing.assert_allclose(message.points.reshape(-1, 2), expected, atol=1e-3)
        np.testing.assert_allclose(message.scores, detected['scores'])


def test_topics_are_found_or_named(pictures, tmp_path):
    one = [(TOPIC, IMAGE, START_NS, bags.image(pictures[0])), ('/note', TEXT, START_NS, NOTE)]
    two = [*one, ('/other/compressed', COMPRESSED, START_NS, bags.compressed(pictures[0]))]
    bag = bags.write(tmp_path / 'two', two)
    said = replay(bag, status=2)
    assert '--topic' in said and TOPIC in said and '/other/compressed' in said and '/note' not in said
    assert replay(bag, '--topic', 'camera/image_raw') == ''  # the slash in front may be left out
    assert replay(bag, '--topic', '/other/compressed') == ''
    said = replay(bag, '--topic', '/nothing', status=2)
    assert '/nothing' in said and '/note (std_msgs/msg/String, 1 messages)' in said
    assert 'std_msgs/msg/String' in replay(bag, '--topic', '/note', status=2)
    said = replay(bags.write(tmp_path / 'none', one[1:]), status=1)
    assert 'no image topic' in said and '/note' in said


@pytest.mark.parametrize('storage', [MCAP, SQLITE])
def test_a_recording_with_several_topics_that_was_cut_off_says_both(storage, many, tmp_path):
    other = [('/other/image', IMAGE, time + 2, data) for topic, _, time, data in many if topic == TOPIC]
    bag = as_one_file(storage)(tmp_path / 'bag', sorted([*many, *other], key=lambda entry: entry[2]))
    os.truncate(bag, bag.stat().st_size * 8 // 10)
    said = replay(bag, status=3)
    assert 'cut off after' in said and 'choose one with --topic' in said and '/other/image' in said, said
    assert 'no image can be read' not in said
    assert 'cut off after' in replay(bag, '--topic', '/other/image', *SOME, status=3)


def test_what_is_no_recording_is_refused_with_the_reason(entries, tmp_path):
    (tmp_path / 'drive.bag').write_bytes(b'#ROSBAG V2.0\n' + bytes(100))
    said = replay(tmp_path / 'drive.bag', status=1)
    assert 'ROS 1' in said and 'rosbags-convert' in said
    assert 'cannot open' in replay(tmp_path / 'nowhere', status=1)
    (tmp_path / 'empty').mkdir()
    assert 'no .mcap or .db3' in replay(tmp_path / 'empty', status=1)
    (tmp_path / 'empty.mcap').touch()
    assert 'the file is empty' in replay(tmp_path / 'empty.mcap', status=1)
    (tmp_path / 'text.mcap').write_text('Dear diary')
    assert 'neither MCAP nor SQLite' in replay(tmp_path / 'text.mcap', status=1)
    with sqlite3.connect(tmp_path / 'other.db3') as database:
        database.execute('CREATE TABLE songs(id INTEGER)')
    assert 'no rosbag2 recording' in replay(tmp_path / 'other.db3', status=1)
    ros1 = tmp_path / 'ros1.mcap'
    with open(ros1, 'wb') as file:
        from mcap.writer import Writer
        writer = Writer(file)
        writer.start(profile='ros1', library='test')
        schema = writer.register_schema('sensor_msgs/Image', 'ros1msg', b'')
        writer.add_message(writer.register_channel(TOPIC, 'ros1', schema), 1, b'x', 1)
        writer.finish()
    said = replay(ros1, status=1)
    assert 'ros1' in said and 'rosbags-convert' in said
    bag = bags.write(tmp_path / 'bag', entries)
    storage = next(bag.glob('*.mcap'))
    before = storage.read_bytes()
    assert 'written over' in replay(bag, '--out', storage, status=2)
    assert storage.read_bytes() == before


def test_a_part_of_the_recording(tmp_path):
    small = [np.full((48, 64), 9 * index, np.uint8) for index in range(12)]
    entries = bags.messages(small)
    for name, bag in {
        'mcap': bags.write(tmp_path / 'mcap', entries),
        'sqlite': bags.write(tmp_path / 'sqlite', entries, SQLITE),
        'linear': bags.write_mcap(tmp_path / 'linear.mcap', entries, use_chunking=False),
    }.items():
        def indices(*options):
            replay(bag, '--no-descriptors', '--out', tmp_path / 'out.mcap', *options)
            return [(time - START_NS) // PERIOD_NS for time, _, _ in read_out(tmp_path / 'out.mcap')]
        assert indices('--start', '0.5', '--duration', '0.2') == [5, 6], name
        assert indices('--start', '0.95') == [10, 11], name
        assert indices('--every', '7') == [0, 7], name
        assert indices('--every', '5', '--start', '0.1', '--duration', '0.6') == [1, 6], name
        assert indices('--start', '99') == [], name
    replay(tmp_path / 'mcap', '--start', '0.5', '--duration', '0.2', '--every', 2, '--report', tmp_path / 'report')
    recording = report(tmp_path / 'report')['recording']
    assert (recording['start_s'], recording['duration_s'], recording['every']) == (0.5, 0.2, 2)
    assert '1 of 2 messages, one in 2 taken, from 0.5 s on, for 0.2 s' in (tmp_path / 'report' / 'report.html').read_text()


def test_images_that_cannot_be_used_are_counted_and_named(pictures, tmp_path):
    good = bags.image(pictures[0])
    bad = [bags.image(pictures[0], encoding='32FC1'), good[:40], bags.image(pictures[0], encoding='32FC1')]
    entries = [(TOPIC, IMAGE, START_NS + index, data) for index, data in enumerate([good, *bad, good])]
    bag = bags.write(tmp_path / 'bag', entries)
    said = replay(bag, '--out', tmp_path / 'out.mcap', '--report', tmp_path / 'report', status=3)
    assert said.count('encoding `32FC1` is not supported') == 1
    assert '2 images cannot be used (encoding 32FC1)' in said and '1 images cannot be used (malformed)' in said
    assert [time - START_NS for time, _, _ in read_out(tmp_path / 'out.mcap')] == [0, 4]
    assert report(tmp_path / 'report')['rejected'] == {'encoding 32FC1': 2, 'malformed': 1}
    broken = bags.compressed(pictures[0])
    bag = bags.write(tmp_path / 'broken', [(TOPIC, COMPRESSED, START_NS, broken[:len(broken) // 2] + bytes(9))])
    assert 'cannot be used' in replay(bag, status=3)


@pytest.fixture(scope='module')
def many():
    """Small noisy images, so that a cut at any place falls among them."""
    random = np.random.default_rng(5)
    pictures = [random.integers(0, 255, (96, 128), np.uint8) for _ in range(40)]
    return [entry for pair in zip(bags.messages(pictures), (
        ('/note', TEXT, START_NS + index * PERIOD_NS + 1, NOTE) for index in range(40))) for entry in pair]


# All images are read, but the network sees few of them.
SOME = ['--every', '13', '--no-descriptors', '--max-keypoints', '10']


CUT_FORMS = {
    'mcap': as_one_file(MCAP),
    'mcap lz4': by_mcap(compression=CompressionType.LZ4, chunk_size=60_000),
    'mcap zstd': by_mcap(compression=CompressionType.ZSTD, chunk_size=60_000),
    'mcap without chunks': by_mcap(use_chunking=False),
    'sqlite': as_one_file(SQLITE),
    'zstd of mcap': lambda path, entries: next(
        bags.write(path, entries, MCAP, CompressionMode.FILE).glob('*.zstd')),
    'zstd of sqlite': lambda path, entries: next(
        bags.write(path, entries, SQLITE, CompressionMode.FILE).glob('*.zstd')),
}


@pytest.mark.parametrize('form', CUT_FORMS)
def test_a_recording_that_was_cut_off_is_read_up_to_there(form, many, tmp_path):
    whole = CUT_FORMS[form](tmp_path / 'bag', many)
    out = tmp_path / 'out.mcap'
    replay(whole, *SOME, '--out', out)
    expected = read_out(out)
    assert len(expected) == 4
    content = whole.read_bytes()
    counts = []
    for tenth in range(1, 10):
        cut = tmp_path / f'cut{whole.suffix}'
        cut.write_bytes(content[:len(content) * tenth // 10])
        folder = tmp_path / str(tenth)
        said = replay(cut, *SOME, '--out', out, '--report', folder, status=3)
        assert 'cut off after' in said or 'compression is damaged' in said, said
        count = report(folder)['recording']['messages'] if folder.exists() else 0
        if count:
            assert read_out(out) == expected[:-(-count // 13)], f'{tenth} tenths'
        counts.append(count)
    assert counts == sorted(counts) and 0 < counts[-1] < 40, counts
    if not form.startswith('zstd of'):  # these compress in blocks of 128 kB
        assert all(count >= 4 * tenth - 6 for tenth, count in enumerate(counts, 1)), counts


def test_what_was_lost_is_counted_where_the_recording_says_how_much_there_was(many, tmp_path):
    for storage in (MCAP, SQLITE):
        bag = bags.write(tmp_path / storage.name, many, storage)
        file = next(file for file in bag.iterdir() if file.name != 'metadata.yaml')
        os.truncate(file, file.stat().st_size // 2)
        said = replay(bag, *SOME, '--report', tmp_path / 'report', status=3)
        read, lost = (int(word) for word in said.split(f'images of {TOPIC}')[0].split()[-1:]
                      + said.split('were read, ')[1].split()[:1])
        assert read + lost == 40 and 5 < lost < 35, said
        recording = report(tmp_path / 'report')['recording']
        assert (recording['messages'], recording['lost']) == (read, lost)
        assert 'cut off' in recording['damage'][0]


def test_a_missing_file_of_a_split_recording_is_named(entries, reference, tmp_path):
    bag = bags.write_split(tmp_path / 'bag', entries)
    (bag / 'bag_10.mcap').unlink()
    said = replay(bag, '--out', tmp_path / 'out.mcap', status=3)
    assert 'bag_10.mcap' in said and '2 images' in said and '1 are lost' in said
    assert [(time, data) for time, _, data in read_out(tmp_path / 'out.mcap')] == [reference[0], reference[2]]


def test_the_summary_is_that_of_the_report(entries, tmp_path):
    said, _ = run(bags.write(tmp_path / 'bag', entries), '--report', tmp_path / 'report')
    frames = report(tmp_path / 'report')['frames']
    figures = re.fullmatch(rf'3 images of {TOPIC}, (\S+) keypoints in each; (\S+) s, (\S+) images a second; '
                           r'(\S+) s of it in the network\n', said)
    keypoints, seconds, rate, network = map(float, figures.groups())
    assert keypoints == pytest.approx(np.mean(frames['keypoints']), abs=0.051)
    assert network == pytest.approx(sum(frames['network_ms']) / 1000, abs=0.051)
    assert network <= seconds + 0.1 and 3 / rate == pytest.approx(seconds, abs=0.06)


def peak_mb(bag, *options):
    """The most memory that a replay had. It is started by a small process: a large one's own would be counted too."""
    starter = ('import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); '
               'print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)')
    command = [sys.executable, '-c', starter, bags.program('superpoint'), 'replay', bag, '--backend', 'cpu', '--weights', 'bundled']
    done = subprocess.run([*map(str, command), *map(str, options)], capture_output=True, text=True, timeout=600, check=True)
    return int(done.stdout)


def sparse_recording(path, gigabytes, image_bytes=8 << 20):
    """Black images without chunks and index; their pixels are holes in the file. Returns their number."""
    width = 4096
    height = image_bytes // width
    pixels = np.zeros((height, width), np.uint8)
    message = bags.image(pixels)
    head = message[:len(message) - pixels.nbytes]
    count = int(gigabytes * (1 << 30)) // image_bytes

    def record(opcode, body, data=0):
        return struct.pack('<BQ', opcode, len(body) + data) + body

    def text(value):
        return struct.pack('<I', len(value)) + value.encode()

    with open(path, 'wb') as file:
        magic = b'\x89MCAP0\r\n'
        file.write(magic + record(1, text('ros2') + text('')))
        file.write(record(3, struct.pack('<H', 1) + text(IMAGE) + text('ros2msg') + text('')))
        file.write(record(4, struct.pack('<HH', 1, 1) + text(TOPIC) + text('cdr') + struct.pack('<I', 0)))
        for index in range(count):
            time = START_NS + index * PERIOD_NS
            file.write(record(5, struct.pack('<HIQQ', 1, index, time, time) + head, pixels.nbytes))
            file.seek(pixels.nbytes, io.SEEK_CUR)
        file.write(record(15, struct.pack('<I', 0)) + record(2, struct.pack('<QQI', 0, 0, 0)) + magic)
    return count


def test_memory_does_not_grow_with_the_recording(tmp_path):
    """SUPERPOINT_TEST_GIGABYTES makes the recording larger than the 1 GB of every day."""
    gigabytes = float(os.environ.get('SUPERPOINT_TEST_GIGABYTES', '1'))
    count = sparse_recording(tmp_path / 'sparse.mcap', gigabytes)
    every = count // 2
    peak = peak_mb(tmp_path / 'sparse.mcap', '--every', every, '--report', tmp_path / 'report')
    assert report(tmp_path / 'report')['recording']['messages'] == count
    assert peak < 300, f'{peak} MB for {gigabytes} GB'


def synth(out, *options, photo=bags.PHOTO):
    subprocess.run([bags.program('superpoint'), 'synth', str(photo), '--out', str(out), *map(str, options)],
                   check=True, timeout=300)


@pytest.mark.parametrize('motion', [(3, -2), (8, 16), (-5, 1), (1, 0), (0, -1), (-2, 0), (0, 2)])
def test_a_known_motion_is_measured(motion, tmp_path):
    x, y = motion
    synth(tmp_path / 'shift.mcap', f'--motion={x},{y}', '--frames', 5)
    replay(tmp_path / 'shift.mcap', '--report', tmp_path / 'report')
    figures = report(tmp_path / 'report')['figures']
    # The camera moves right and down, what it sees moves left and up.
    assert figures['motion_x_px']['count'] == 4
    assert abs(figures['motion_x_px']['mean'] + x) < 0.05, figures['motion_x_px']
    assert abs(figures['motion_y_px']['mean'] + y) < 0.05, figures['motion_y_px']
    truth = figures['truth_before']
    assert truth['pairs'] == 4 and truth['homography_correct'][1:] == [1, 1]
    assert truth['repeatability']['mean'] > 0.6 and truth['localisation_px']['mean'] < 1.5


def test_a_motion_half_way_between_whole_pixels_is_measured(tmp_path):
    """A pixel of the image is half a pixel of the network's frame, and keypoints lie on whole ones."""
    synth(tmp_path / 'shift.mcap', '--motion=1,0', '--frames', 10, '--size', '720x1280')
    replay(tmp_path / 'shift.mcap', '--report', tmp_path / 'report')
    motion = report(tmp_path / 'report')['figures']['motion_x_px']
    assert abs(motion['mean'] + 1) < 0.05, motion


def test_motion_and_agreement_are_in_pixels_of_the_image(tmp_path):
    """Images of half the network's size."""
    bag, old = tmp_path / 'small.mcap', tmp_path / 'old'
    synth(bag, '--motion=4,-2', '--frames', 4, '--size', '240x320')
    replay(bag, '--report', old, '--out', old / 'keypoints.mcap')
    replay(bag, '--report', tmp_path / 'new', '--out', tmp_path / 'out.mcap', '--compare', old / 'report.json')
    measured = report(tmp_path / 'new')
    assert abs(measured['figures']['motion_x_px']['mean'] + 4) < 0.05, measured['figures']['motion_x_px']
    assert abs(measured['figures']['motion_y_px']['mean'] - 2) < 0.05, measured['figures']['motion_y_px']
    agreement = measured['agreement']
    assert agreement['f1'] == 1.0 and agreement['same'] == agreement['keypoints_here'] > 100


def test_a_clock_that_is_set_back(pictures, tmp_path):
    """The order of the recording counts; a second run of it agrees image by image."""
    entries = [(TOPIC, IMAGE, START_NS - index * PERIOD_NS, bags.image(picture, index)) for index, picture in enumerate(pictures)]
    for name, bag in {
        'linear': bags.write_mcap(tmp_path / 'linear.mcap', entries, use_chunking=False),
        'indexed': bags.write_mcap(tmp_path / 'indexed.mcap', entries, compression=CompressionType.LZ4, chunk_size=100_000),
    }.items():
        old = tmp_path / name
        replay(bag, '--report', old, '--out', old / 'out.mcap')
        # As it was written; Foxglove's reader sorts.
        assert report(old)['frames']['time_s'] == pytest.approx([0, -0.1, -0.2])
        replay(bag, '--report', tmp_path / 'again', '--compare', old / 'report.json')
        same = report(tmp_path / 'again')['agreement']
        assert (same['images'], same['only_here'], same['only_there'], same['f1']) == (3, 0, 0, 1.0), name


def test_chunks_that_overlap_in_time_are_read_one_at_a_time(tmp_path):
    """As clocks that jump and merged recordings have them."""
    random = np.random.default_rng(3)
    order = random.permutation(60)
    black = bags.image(np.zeros((2000, 2000), np.uint8))
    entries = [(TOPIC, IMAGE, START_NS + int(at) * PERIOD_NS, black) for at in order]
    bag = bags.write_mcap(tmp_path / 'shuffled.mcap', entries, compression=CompressionType.LZ4, chunk_size=20_000_000)
    peak = peak_mb(bag, '--every', 1000)
    assert peak < 200, f'{peak} MB, and all of it would be 240 MB more'


@pytest.mark.parametrize('compression', [CompressionType.NONE, CompressionType.ZSTD])
def test_a_damaged_chunk_is_not_taken_for_a_whole_one(compression, pictures, tmp_path):
    bag = bags.write_mcap(tmp_path / 'bag.mcap', bags.messages(pictures), compression=compression, chunk_size=100_000)
    content = bytearray(bag.read_bytes())
    content[len(content) // 2] ^= 4
    bag.write_bytes(content)
    said = replay(bag, '--out', tmp_path / 'out.mcap', status=3)
    assert 'damaged' in said and '1 images' in said and '2 are lost' in said, said
    assert len(read_out(tmp_path / 'out.mcap')) == 1


def test_rows_of_sqlite_are_read_by_their_times(entries, reference, tmp_path):
    file = next((bags.write(tmp_path / 'bag', entries, SQLITE)).glob('*.db3'))
    with sqlite3.connect(file) as database:
        rows = database.execute('SELECT topic_id, timestamp, data FROM messages ORDER BY id DESC').fetchall()
        database.execute('DELETE FROM messages')
        database.executemany('INSERT INTO messages(topic_id, timestamp, data) VALUES (?, ?, ?)', rows)
    replay(file, '--out', tmp_path / 'out.mcap')
    assert [(time, data) for time, _, data in read_out(tmp_path / 'out.mcap')] == reference


def test_a_view_in_place_of_a_table_is_refused(entries, tmp_path):
    file = next((bags.write(tmp_path / 'bag', entries, SQLITE)).glob('*.db3'))
    with sqlite3.connect(file) as database:
        database.execute('ALTER TABLE messages RENAME TO some')
        database.execute('CREATE VIEW messages AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) '
                         'SELECT id, 1 AS topic_id, 1 AS timestamp, NULL AS data FROM n')
    assert 'tables' in replay(file, status=3, timeout=20)


def test_a_folder_need_not_be_text(entries, reference, tmp_path):
    folder = tmp_path / os.fsdecode(b'50%?#\xff')
    folder.mkdir()
    bag = next(bags.write(tmp_path / 'bag', entries, SQLITE).glob('*.db3')).rename(folder / 'bag.db3')
    replay(bag, '--out', folder / 'out.mcap')
    assert [(time, data) for time, _, data in read_out(folder / 'out.mcap')] == reference


def test_a_recording_that_is_not_finished_has_no_truth(tmp_path):
    bag = tmp_path / 'tour.mcap'
    synth(bag, '--frames', 2)
    process = subprocess.Popen([bags.program('superpoint'), 'synth', str(bags.PHOTO), '--out', str(bag),
                                '--frames', '2000'])
    deadline = time.monotonic() + 20
    while (tmp_path / 'tour.truth.json').exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not (tmp_path / 'tour.truth.json').exists()


def test_one_name_of_two_types(pictures, tmp_path):
    entries = [(TOPIC, IMAGE, START_NS, bags.image(pictures[0])), (TOPIC, TEXT, START_NS + 1, NOTE)]
    assert replay(bags.write(tmp_path / 'bag', entries), '--out', tmp_path / 'out.mcap') == ''
    assert len(read_out(tmp_path / 'out.mcap')) == 1


def test_what_is_read_is_not_written_over(tmp_path):
    bag, folder = tmp_path / 'tour.mcap', tmp_path / 'report'
    synth(bag, '--frames', 2)
    truth = tmp_path / 'tour.truth.json'
    replay(bag, '--report', folder)
    entries = bags.write(tmp_path / 'bag', [(TOPIC, IMAGE, START_NS, bags.image(np.zeros((8, 8), np.uint8)))])
    config = tmp_path / 'c.yaml'
    config.write_text('/**:\n  ros__parameters: {nms_radius: 3}\n')
    before = {path: path.read_bytes() for path in (bag, truth, config, folder / 'report.json', entries / 'metadata.yaml')}
    for options in (['--out', bag], ['--report', tmp_path / 'other', '--out', truth], ['--out', config, '--config', config],
                    ['--report', folder, '--compare', folder / 'report.json'],
                    ['--report', tmp_path / 'other', '--compare', folder / 'report.json', '--out', folder / 'report.json']):
        assert 'is read, and would be written over' in replay(bag, *options, status=2), options
    assert 'is read' in replay(entries, '--out', entries / 'metadata.yaml', status=2)
    (tmp_path / 'link.mcap').symlink_to(folder / 'report.json')
    assert 'would be written twice' in replay(bag, '--report', folder, '--out', tmp_path / 'link.mcap', status=2)
    for name in ('report.json', 'report.html', 'report.json.unfinished'):
        assert 'would be written twice' in replay(bag, '--report', folder, '--out', folder / '..' / 'report' / name, status=2)
    # A file may have several names.
    os.link(bag, tmp_path / 'another name.mcap')
    assert 'is read' in replay(bag, '--out', tmp_path / 'another name.mcap', status=2)
    # An output that cannot be written, or named in the report, costs nothing either.
    assert 'not UTF-8' in replay(bag, '--report', folder, '--out', folder / os.fsdecode(b'\xff.mcap'), status=1)
    assert 'cannot write' in replay(bag, '--report', folder, '--out', tmp_path / 'none' / 'out.mcap', status=1)
    assert before == {path: path.read_bytes() for path in before}


def test_a_report_for_which_there_is_no_room_leaves_nothing(entries, tmp_path):
    bag = bags.write(tmp_path / 'bag', entries[:1])

    def little_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run([bags.program('superpoint'), 'replay', bag, '--backend', 'cpu', '--weights', 'bundled',
                           '--report', tmp_path / 'report'], preexec_fn=little_room, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and 'cannot write' in done.stderr and 'report.html' in done.stderr, done.stderr
    assert list((tmp_path / 'report').iterdir()) == []


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    assert 'no file' in replay(tmp_path / 'pipe', status=1, timeout=10)
    # Nor does a recording name files elsewhere.
    bag = bags.write(tmp_path / 'bag', [(TOPIC, TEXT, START_NS, NOTE)])
    text = (bag / 'metadata.yaml').read_text()
    (bag / 'metadata.yaml').write_text(text.replace('bag.mcap', '/etc/passwd'))
    said = replay(bag, status=1)
    assert '/etc/passwd' in said and 'not there' in said and 'root' not in said


def test_a_static_scene_repeats_itself(tmp_path):
    synth(tmp_path / 'still.mcap', '--motion', 'still', '--frames', 4)
    replay(tmp_path / 'still.mcap', '--report', tmp_path / 'report')
    measured = report(tmp_path / 'report')
    for truth in (measured['figures']['truth_before'], measured['figures']['truth_first']):
        assert truth['repeatability']['min'] == 1.0
        assert truth['localisation_px']['max'] < 1e-9
        assert truth['matching_score']['min'] == 1.0
        assert truth['homography_correct'] == [1, 1, 1]
    # Every keypoint is seen in all four images.
    count = measured['frames']['keypoints'][0]
    assert count > 100 and measured['track_lengths'] == [0, 0, 0, count]
    assert measured['figures']['inlier_ratio']['min'] == 1.0


def test_the_report_agrees_with_the_keypoints_that_were_written(tmp_path):
    """The truth's figures, computed a second time from the output, by other means."""
    synth(tmp_path / 'tour.mcap', '--frames', 4, '--illumination', 0.4, '--blur', 0.5, '--noise', 2)
    replay(tmp_path / 'tour.mcap', '--out', tmp_path / 'out.mcap', '--report', tmp_path / 'report')
    measured = report(tmp_path / 'report')
    store = get_typestore(Stores.EMPTY)
    with open(tmp_path / 'out.mcap', 'rb') as file:
        reader = make_reader(file)
        schema, = reader.get_summary().schemas.values()
        store.register(get_types_from_msg(schema.data.decode(), KEYPOINTS))
        found = [store.deserialize_cdr(message.data, KEYPOINTS) for _, _, message in reader.iter_messages()]
    truth = json.loads((tmp_path / 'tour.truth.json').read_text())['frames']
    assert measured['frames']['keypoints'] == [len(message.scores) for message in found]

    def mapped(homography, points):
        points = np.column_stack([points, np.ones(len(points))]) @ np.asarray(homography).T
        return points[:, :2] / points[:, 2:]

    def inside(points):
        return (points >= 0).all(axis=1) & (points <= [639, 479]).all(axis=1)

    for index in range(1, 4):
        first, second = (found[at].points.reshape(-1, 2).astype(float) for at in (index - 1, index))
        motion = np.linalg.solve(truth[index]['reference_from_image'], truth[index - 1]['reference_from_image'])
        warped = mapped(motion, first)
        warped = warped[inside(warped)]
        there = second[inside(mapped(np.linalg.inv(motion), second))]
        distances = np.linalg.norm(warped[:, None] - there[None], axis=2)
        nearest = np.concatenate([distances.min(axis=1), distances.min(axis=0)])
        right = nearest[nearest <= 3]
        pair = measured['frames']['truth_before'][index]
        assert pair['repeatability'] == pytest.approx(len(right) / len(nearest), abs=1e-9)
        assert pair['localisation_px'] == pytest.approx(right.mean(), abs=1e-6)
        # Mutual nearest neighbours.
        a, b = (found[at].descriptors.view(np.float32).reshape(-1, 256) for at in (index - 1, index))
        similarity = a @ b.T
        there_and_back = similarity.argmax(axis=0)[similarity.argmax(axis=1)] == np.arange(len(a))
        assert abs(int(there_and_back.sum()) - measured['frames']['matches'][index]) <= 1
    before, first = measured['frames']['truth_before'], measured['frames']['truth_first']
    assert before[1] == first[1] and before[2] != first[2] and before[3] != first[3]


def test_two_runs_side_by_side(tmp_path):
    bag = tmp_path / 'tour.mcap'
    synth(bag, '--frames', 3)
    old, new = tmp_path / 'old', tmp_path / 'new'
    replay(bag, '--report', old, '--out', old / 'keypoints.mcap')
    replay(bag, '--report', new, '--out', new / 'keypoints.mcap', '--compare', old / 'report.json')
    same = report(new)['agreement']
    assert (same['images'], same['only_here'], same['only_there']) == (3, 0, 0)
    assert same['f1'] == 1.0 and same['score_pcc'] > 0.999999 and same['descriptor_pcc'] > 0.999999
    # Fewer keypoints, of fewer images: the agreement is what the numbers of keypoints say.
    replay(bag, '--report', new, '--max-keypoints', 100, '--every', 2, '--compare', old / 'report.json')
    fewer = report(new)['agreement']
    assert (fewer['images'], fewer['only_here'], fewer['only_there'], fewer['keypoints_here']) == (2, 0, 1, 200)
    assert fewer['same'] == 200
    assert fewer['f1'] == pytest.approx(400 / (200 + fewer['keypoints_there']))
    page = (new / 'report.html').read_text()
    # The difference is this run less the other one.
    here, there = (report(folder)['figures']['keypoints']['mean'] for folder in (new, old))
    assert f'<td>{there:.0f}</td><td>{here - there:+.1f}</td>' in page and here < there
    assert 'other run' in page and 'Keypoint by keypoint' in page
    # A report without keypoints can still be put beside.
    replay(bag, '--report', tmp_path / 'third', '--compare', new / 'report.json')
    assert report(tmp_path / 'third')['agreement'] is None
    foreign = bags.write_mcap(tmp_path / 'foreign.mcap', [(TOPIC, IMAGE, 7_000, bags.image(np.zeros((48, 64), np.uint8)))])
    assert 'no image of the same log time' in replay(foreign, '--report', tmp_path / 'fourth', '--compare', old / 'report.json')
    assert 'written over' in replay(bag, '--report', new, '--out', old / 'keypoints.mcap',
                                    '--compare', old / 'report.json', status=1)
    os.link(old / 'keypoints.mcap', tmp_path / 'another.mcap')
    assert 'written over' in replay(bag, '--report', new, '--out', tmp_path / 'another.mcap',
                                    '--compare', old / 'report.json', status=1)
    assert 'is no' in replay(bag, '--report', new, '--compare', tmp_path / 'tour.truth.json', status=1)


def test_another_run_that_is_damaged_is_named(tmp_path):
    bag = tmp_path / 'tour.mcap'
    synth(bag, '--frames', 5)
    old, new = tmp_path / 'old', tmp_path / 'new'
    replay(bag, '--report', old, '--out', old / 'keypoints.mcap')
    keypoints = old / 'keypoints.mcap'
    keypoints.write_bytes(keypoints.read_bytes()[:len(keypoints.read_bytes()) // 2])
    said = replay(bag, '--report', new, '--compare', old / 'report.json')
    assert 'not all can be read' in said and 'keypoints.mcap' in said
    agreement = report(new)['agreement']
    assert agreement['images'] < 5 and len(agreement['damage']) == 1
    assert 'other run: keypoints.mcap' in (new / 'report.html').read_text()
    # Columns that contradict each other are found before the replay, and leave this run's earlier report alone.
    whole = report(old)
    for damage in [lambda r: r['frames']['matches'].pop(), lambda r: r['frames']['time_s'].append(9.0),
                   lambda r: r['spread']['field_counts'].pop(), lambda r: r['frames']['time_s'].__setitem__(0, -1e308)]:
        other = json.loads(json.dumps(whole))
        damage(other)
        (tmp_path / 'other.json').write_text(json.dumps(other))
        assert 'is damaged' in replay(bag, '--report', new, '--compare', tmp_path / 'other.json', status=1)
        assert report(new)['agreement'] == agreement


def test_without_descriptors_nothing_is_followed(tmp_path):
    bag = tmp_path / 'tour.mcap'
    synth(bag, '--frames', 3)
    replay(bag, '--no-descriptors', '--report', tmp_path / 'report')
    measured = report(tmp_path / 'report')
    assert measured['figures']['track_length'] is None and measured['track_lengths'] == []
    assert measured['figures']['keypoints']['count'] == 3
    assert 'Track lengths' not in (tmp_path / 'report' / 'report.html').read_text()


def test_the_page_needs_nothing_from_outside(tmp_path):
    bag = tmp_path / 'drive & <tour>.mcap'
    synth(bag, '--frames', 3)
    replay(bag, '--report', tmp_path / 'report')
    page = (tmp_path / 'report' / 'report.html').read_text()
    assert page.count('<svg') == page.count('</svg>') >= 8
    assert 'drive &amp; &lt;tour&gt;.mcap' in page
    assert 'other run' not in page
    outside = page.replace('http://www.w3.org/2000/svg', '')
    assert 'http' not in outside and '<script' not in outside and 'src=' not in outside


def test_what_a_recording_says_is_no_html(pictures, tmp_path):
    topic = '/<script>alert(1)</script>'
    entries = [(topic, IMAGE, START_NS, bags.image(pictures[0])),
               (topic, IMAGE, START_NS + 1, bags.image(pictures[0], encoding='<img>\x1b[31m'))]
    said = replay(bags.write_mcap(tmp_path / 'bag.mcap', entries), '--report', tmp_path / 'report', status=3)
    assert '\x1b' not in said
    page = (tmp_path / 'report' / 'report.html').read_text()
    assert '<script' not in page and '<img' not in page and '&lt;script&gt;' in page and '&lt;img&gt;' in page


def test_an_interrupted_replay_closes_its_output(tmp_path):
    import signal
    bag = bags.write(tmp_path / 'bag', bags.messages([np.full((48, 64), 7, np.uint8)] * 500))
    out = tmp_path / 'out.mcap'
    process = subprocess.Popen([bags.program('superpoint'), 'replay', str(bag), '--out', str(out),
                                '--report', str(tmp_path / 'report')],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1 and b'interrupted' in said, said
    assert 0 < len(read_out(out)) < 500
    assert report(tmp_path / 'report')['recording']['interrupted']
    assert 'was interrupted' in (tmp_path / 'report' / 'report.html').read_text()
