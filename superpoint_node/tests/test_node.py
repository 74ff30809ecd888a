"""The node as its users meet it: images in over DDS, keypoints out."""

import base64
import io
import signal
import subprocess
import time

import numpy as np
import pytest
from PIL import Image as Picture
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from superpoint_p150.msg import Keypoints

from conftest import NODE, detect_file, image
from keypoints import arrays


def same(first, second):
    """Two answers with the same keypoints, scores and descriptors, to the bit."""
    return (list(first.points), list(first.scores), bytes(first.descriptors)) == \
        (list(second.points), list(second.scores), bytes(second.descriptors))


@pytest.fixture(scope='session')
def reference(shared, picture):
    """The answer to the photo's red channel as mono8."""
    return shared.detect(image(picture[:, :, 0].copy(), 'mono8'))


# --- What a frame gives

def test_keypoints_are_those_of_the_command_line(reference, picture, tmp_path):
    Picture.fromarray(picture).save(tmp_path / 'photo.png')
    printed = detect_file(tmp_path / 'photo.png')
    points, scores, descriptors = arrays(reference)
    assert len(points) > 100
    # At 640x480 both coordinate conventions give the network's own pixel.
    np.testing.assert_array_equal(points, np.array(printed['keypoints'], np.float32))
    np.testing.assert_allclose(scores, printed['scores'], rtol=1e-6)
    data = base64.b64decode(printed['descriptors']['data'])
    halves = np.load(io.BytesIO(data))['descriptors']
    np.testing.assert_array_equal(descriptors.astype(np.float16), halves)


def test_coordinates_are_pixel_centres_of_the_original_image(shared, picture, tmp_path):
    # The command line writes network position times scale; ROS wants pixel centres at integers.
    large = Picture.fromarray(picture).resize((1000, 900), Picture.Resampling.BICUBIC)
    large.save(tmp_path / 'large.png')
    printed = np.array(detect_file(tmp_path / 'large.png')['keypoints'])
    answer = shared.detect(image(np.asarray(large)[:, :, 0].copy(), 'mono8'))
    assert (answer.image_width, answer.image_height) == (1000, 900)
    scale = np.array([1000 / 640, 900 / 480])
    network = printed / scale
    np.testing.assert_allclose(network, network.round(), atol=1e-3)
    np.testing.assert_allclose(arrays(answer)[0], (network + 0.5) * scale - 0.5, atol=1e-3)


def test_message_is_complete(reference):
    points, scores, descriptors = arrays(reference)
    assert (reference.image_width, reference.image_height) == (640, 480)
    assert len(points) == len(scores) == len(descriptors) <= 1024
    assert reference.descriptor_type == Keypoints.FLOAT32 and reference.descriptor_dim == 256
    assert np.all(np.diff(scores) <= 0) and np.all(scores > 0.005)
    assert points.min() >= 4 and np.all(points.max(0) <= [635, 475])
    np.testing.assert_allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-5)


def test_header_is_copied(shared, picture):
    message = image(picture, 'rgb8')
    message.header.frame_id = 'left/optical_frame_ö'
    answer = shared.detect(message)
    assert answer.header == message.header


def test_black_image_is_answered(shared):
    answer = shared.detect(image(np.zeros((480, 640), np.uint8), 'mono8'))
    assert len(answer.points) == 2 * len(answer.scores)
    assert answer.descriptor_dim == 256


# --- Encodings

@pytest.mark.parametrize('encoding', ['8UC1', 'rgb8', 'bgr8', 'rgba8', 'bgra8', '8UC3', '8UC4', 'mono16', '16UC1'])
@pytest.mark.parametrize('padding', [0, 13])
def test_every_encoding_gives_the_same_red(shared, reference, picture, encoding, padding):
    red, alpha = picture[:, :, 0], np.full((480, 640, 1), 7, np.uint8)
    pixels = {
        '8UC1': lambda: red,
        'rgb8': lambda: picture,
        '8UC3': lambda: picture,
        'bgr8': lambda: picture[:, :, ::-1],
        'rgba8': lambda: np.dstack([picture, alpha]),
        '8UC4': lambda: np.dstack([picture, alpha]),
        'bgra8': lambda: np.dstack([picture[:, :, ::-1], alpha]),
        'mono16': lambda: red.astype('<u2') * 257,
        '16UC1': lambda: red.astype('<u2') * 257,
    }[encoding]()
    pixels = np.ascontiguousarray(pixels)
    row_bytes = pixels.nbytes // len(pixels)
    assert same(shared.detect(image(pixels, encoding, step=row_bytes + padding)), reference)


def test_big_endian_matters_for_16_bits_only(shared, reference, picture):
    red = picture[:, :, 0]
    wide = (red.astype('<u2') * 257 & 0xFF00 | 0x12).astype('>u2')
    little = shared.detect(image(wide.astype('<u2'), 'mono16'))
    assert same(shared.detect(image(wide, 'mono16', is_bigendian=1)), little)
    assert not same(shared.detect(image(wide, 'mono16', is_bigendian=0)), little)
    assert same(shared.detect(image(red.copy(), 'mono8', is_bigendian=1)), reference)


def test_luma_channel(start, shared, picture):
    gray = np.asarray(Picture.fromarray(picture).convert('L')).copy()
    expected = shared.detect(image(gray, 'mono8'))
    node = start('-p', 'channel:=luma')
    for encoding, pixels in [('rgb8', picture), ('bgr8', picture[:, :, ::-1].copy()), ('mono8', gray)]:
        assert same(node.detect(image(pixels, encoding)), expected), encoding


# --- What cannot be used is refused, said once, and the node goes on

def broken_images():
    good = np.zeros((480, 640), np.uint8)
    yield 'not supported', image(good, '32FC1')
    yield 'not supported', image(good, '')
    yield 'step is 100', image(good, 'mono8', step=640), {'step': 100}
    yield 'data has 1000 bytes', image(good, 'mono8'), {'data': bytes(1000)}
    yield 'data has 0 bytes', image(good, 'mono8'), {'data': b''}
    yield 'at least one pixel', image(good, 'mono8'), {'height': 0}
    yield 'step is 640', image(good, 'mono8'), {'width': 2**32 - 1}


@pytest.mark.parametrize('case', list(broken_images()), ids=lambda case: case[0])
def test_unusable_images_are_refused(start, shared, reference, picture, case):
    expected, message, changes = (*case, {})[:3]
    for name, value in changes.items():
        setattr(message, name, value)
    node = start()
    for _ in range(3):
        node.send(message)
        node.detect(image(np.zeros((480, 640), np.uint8), 'mono8'))
    assert same(node.detect(image(picture, 'rgb8')), reference)
    assert node.log().count(expected) == 1, node.log()
    status, _ = node.end(signal.SIGTERM)
    assert status == 0
    counts = node.frame_counts()
    assert counts['rejected'] == 3 and counts['unfinished'] == 0, node.log()
    assert counts['received'] == counts['published'] + counts['replaced'] + 3, node.log()


def test_bytes_that_are_no_image_are_refused(start, reference, picture):
    from rclpy.serialization import serialize_message
    node = start()
    whole = serialize_message(node.stamped(image(picture[:48, :64].copy(), 'rgb8')))
    hostile = bytearray(whole)
    hostile[12:16] = b'\xff\xff\xff\x7f'  # the length of frame_id
    for data in [whole[:4], whole[:20], whole[:-1], whole[:len(whole) // 2], bytes(hostile)]:
        node.images.publish(bytes(data))
    assert same(node.detect(image(picture, 'rgb8')), reference)
    assert node.log().count('not a sensor_msgs/Image') <= 1, node.log()
    assert 'panicked' not in node.log()


# --- Parameters

def test_parameters_take_effect_on_the_next_frame(start, picture):
    node = start()
    message = image(picture, 'rgb8')

    assert all(result.successful for result in node.set(max_keypoints=5))
    answer = node.detect(message)
    assert len(answer.scores) == 5

    assert all(result.successful for result in node.set(keypoint_threshold=1.0))
    answer = node.detect(message)
    assert (len(answer.points), len(answer.scores), len(answer.descriptors)) == (0, 0, 0)
    assert answer.descriptor_dim == 256 and answer.image_width == 640

    assert node.set_atomically(keypoint_threshold=0.005, max_keypoints=-1, nms_radius=0).successful
    everything = len(node.detect(message).scores)
    assert node.set_atomically(nms_radius=8, border_removal_distance=40).successful
    answer = node.detect(message)
    assert 0 < len(answer.scores) < everything / 4
    points = arrays(answer)[0]
    assert points.min() >= 40 and np.all(points.max(0) < [600, 440])

    whole = arrays(answer)[2]
    assert node.set_atomically(descriptor_type='float16').successful
    answer = node.detect(message)
    assert answer.descriptor_type == Keypoints.FLOAT16
    np.testing.assert_array_equal(arrays(answer)[2], whole.astype(np.float16).astype(np.float32))

    assert node.set_atomically(return_descriptors=False).successful
    answer = node.detect(message)
    assert answer.descriptor_dim == 0 and len(answer.descriptors) == 0 and len(answer.scores) > 0
    assert node.get('nms_radius', 'keypoint_threshold', 'return_descriptors') == [8, 0.005, False]


@pytest.mark.parametrize('name, value, reason', [
    ('keypoint_threshold', 1.5, '1.5'),
    ('keypoint_threshold', 1, 'double'),
    ('nms_radius', 33, '33'),
    ('nms_radius', -1, '-1'),
    ('max_keypoints', -2, '-2'),
    ('max_keypoints', 'all', 'integer'),
    ('descriptor_type', 'int8', 'int8'),
    ('postprocess', 'none', 'none'),
    ('weights', '/some/file', 'restart'),
    ('qos_depth', 3, 'restart'),
    ('max_keypoint', 3, 'no parameter'),
])
def test_bad_values_are_refused_with_a_reason(shared, name, value, reason):
    before = shared.get(name)
    result, = shared.set(**{name: value})
    assert not result.successful
    assert name in result.reason and reason in result.reason, result.reason
    atomic = shared.set_atomically(return_descriptors=False, **{name: value})
    assert not atomic.successful and reason in atomic.reason
    assert shared.get(name) == before and shared.get('return_descriptors') == [True]


def test_parameters_describe_themselves(shared):
    names = ['backend', 'weights', 'max_keypoints', 'keypoint_threshold', 'nms_radius',
             'border_removal_distance', 'return_descriptors', 'descriptor_type', 'channel', 'postprocess',
             'qos_reliability', 'qos_depth', 'threads']
    for descriptor in shared.describe(*names):
        assert len(descriptor.description) > 20 and descriptor.type != 0, descriptor


def test_the_default_file_is_the_defaults(start, shared):
    from ament_index_python.packages import get_package_share_directory
    path = get_package_share_directory('superpoint_p150') + '/config/superpoint.yaml'
    node = start('--params-file', path)
    names = [descriptor.name for descriptor in shared.describe('backend', 'max_keypoints', 'keypoint_threshold',
             'nms_radius', 'border_removal_distance', 'return_descriptors', 'descriptor_type', 'channel',
             'postprocess', 'qos_reliability', 'qos_depth', 'threads', 'weights')]
    assert node.get(*names) == shared.get(*names)
    assert 'not known' not in node.log()


# --- Many frames

def test_the_newest_frame_is_the_one_processed(start, picture):
    node = start()
    message = image(picture, 'rgb8')
    stamps = [node.send(message) for _ in range(30)]
    node.wait(lambda: stamps[-1] in node.answers(), 'the last frame of the burst')
    answered = node.answers()
    assert answered == sorted(answered)
    assert len(answered) < len(stamps), 'the detector cannot be as fast as this burst'
    status, _ = node.end(signal.SIGINT)
    assert status == 0
    counts = node.frame_counts()
    assert counts['rejected'] == counts['unfinished'] == 0, node.log()
    assert counts['received'] == counts['published'] + counts['replaced'], node.log()
    assert counts['published'] >= len(answered) and counts['replaced'] > 0, node.log()


@pytest.mark.parametrize('reliability', ['best_effort', 'reliable'])
def test_input_quality_of_service(start, picture, reliability):
    kind = {'best_effort': ReliabilityPolicy.BEST_EFFORT, 'reliable': ReliabilityPolicy.RELIABLE}[reliability]
    node = start('-p', f'qos_reliability:={reliability}', publisher_qos=QoSProfile(depth=5, reliability=kind))
    assert len(node.detect(image(picture, 'rgb8')).scores) > 0


def test_topics_can_be_remapped(start):
    node = start('-r', 'image:=image', '-r', '__node:=other')
    assert ('other', node.namespace) in node.ros.get_node_names_and_namespaces()


# --- The end

@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_idle_node(start, number):
    status, seconds = start().end(number)
    assert status == 0
    assert seconds < 1


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('delay_secs', [0.0, 0.05, 0.1, 0.2])
def test_a_signal_ends_a_busy_node(start, picture, number, delay_secs):
    node = start('-p', 'threads:=1')
    for _ in range(3):
        node.send(image(picture, 'rgb8'))
    time.sleep(delay_secs)
    status, seconds = node.end(number)
    assert status == 0, node.log()
    assert seconds < 1
    assert 'panicked' not in node.log()


@pytest.mark.parametrize('arguments, expected', [
    (['-p', 'weights:=/nonexistent/file.safetensors'], '/nonexistent/file.safetensors'),
    (['-p', 'nms_radius:=99'], 'nms_radius is 99'),
    (['-p', 'backend:=gpu'], 'gpu'),
    (['-p', 'keypoint_threshold:=high'], 'keypoint_threshold'),
    (['-p'], 'parameter'),
])
def test_errors_at_start_are_one_sentence(arguments, expected):
    done = subprocess.run([NODE, '--ros-args', *arguments], capture_output=True, timeout=20, text=True)
    assert done.returncode == 1
    ours = [line for line in done.stderr.splitlines() if line.startswith('superpoint_node: ')]
    assert len(ours) == 1 and expected in ours[0], done.stderr
    assert 'panicked' not in done.stderr


def test_a_pickle_is_refused_as_weights(tmp_path):
    path = tmp_path / 'weights.safetensors'
    path.write_bytes(b'\x80\x02}q\x00.')
    done = subprocess.run([NODE, '--ros-args', '-p', f'weights:={path}'], capture_output=True, timeout=20, text=True)
    assert done.returncode == 1 and str(path) in done.stderr


def test_unknown_parameters_are_said(start):
    node = start('-p', 'max_keypoint:=7')
    assert 'max_keypoint is not known' in node.log()


def test_image_type_is_the_standard_one():
    # The parser reads the message by hand: it stands on these fields in this order.
    fields = list(Image.get_fields_and_field_types().items())
    assert fields == [('header', 'std_msgs/Header'), ('height', 'uint32'), ('width', 'uint32'),
                      ('encoding', 'string'), ('is_bigendian', 'uint8'), ('step', 'uint32'),
                      ('data', 'sequence<uint8>')]
