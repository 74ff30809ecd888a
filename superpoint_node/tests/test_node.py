"""The node as its users meet it: images in over DDS, keypoints out."""

import base64
import io
import signal
import subprocess

import numpy as np
import pytest
from PIL import Image as Picture
from sensor_msgs.msg import Image
from superpoint_p150.msg import Keypoints

from conftest import NODE, detect_file, image, same
from keypoints import arrays


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


def test_no_keypoints_are_a_complete_message(shared):
    # What a network sees on black is its own affair; above a score of 1 there is nothing by definition.
    with shared.changed(keypoint_threshold=1.0):
        message = image(np.zeros((480, 640), np.uint8), 'mono8')
        answer = shared.detect(message)
    assert (len(answer.points), len(answer.scores), len(answer.descriptors)) == (0, 0, 0)
    assert (answer.descriptor_dim, answer.descriptor_type) == (256, Keypoints.FLOAT32)
    assert (answer.image_width, answer.image_height) == (640, 480) and answer.header == message.header


def test_black_image_gives_what_the_command_line_gives(shared, tmp_path):
    black = np.zeros((480, 640), np.uint8)
    Picture.fromarray(black).save(tmp_path / 'black.png')
    answer = shared.detect(image(black, 'mono8'))
    assert len(answer.scores) == detect_file(tmp_path / 'black.png')['num_keypoints'] < 20


def test_a_shifted_pattern_comes_back_at_its_true_place(shared):
    # A checkered square moved by (140, 75) pixels of a 1600x900 image: its keypoints move by exactly as much, because
    # both are whole steps of the network's grid (2.5 and 1.875 pixels) and of its 8-pixel cells.
    def scene(x, y):
        pixels = np.full((900, 1600), 90, np.uint8)
        cells = np.indices((6, 6)).sum(0) % 2 * 160 + 40
        pixels[y:y + 240, x:x + 240] = np.kron(cells, np.ones((40, 40))).astype(np.uint8)
        return image(pixels, 'mono8')

    with shared.changed(max_keypoints=-1, keypoint_threshold=0.05):
        first = arrays(shared.detect(scene(400, 300)))[0]
        second = arrays(shared.detect(scene(400 + 140, 300 + 75)))[0]
        # Five places that differ in where they fall between the network's pixels.
        five = [(x, y, arrays(shared.detect(scene(x, y)))[0]) for x, y in ((400 + i, 300 + 3 * i) for i in range(5))]
    assert len(first) > 10
    moved = first + [140, 75]
    nearest = np.linalg.norm(moved[:, None] - second[None], axis=2).min(1)
    assert np.quantile(nearest, 0.9) < 0.01, nearest
    # And they lie on the corners of the cells, half a pixel before the first pixel of a cell: on average, because each
    # is rounded to a pixel of the network.
    offsets = []
    for x, y, points in five:
        corners = np.array([[x + 40 * i - 0.5, y + 40 * j - 0.5] for i in range(1, 6) for j in range(1, 6)])
        distances = (points[None] - corners[:, None]).reshape(-1, 2)
        offsets.extend(distances[np.linalg.norm(distances, axis=1) < 6])
    assert len(offsets) > 50
    # Half a pixel of the network would be 1.25 and 0.94.
    assert np.all(np.abs(np.mean(offsets, axis=0)) < [0.6, 0.5]), np.mean(offsets, axis=0)


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


def test_unusable_images_are_refused(start, reference, picture):
    node = start()
    cases = [(*case, {})[:3] for case in broken_images()]
    for expected, message, changes in cases:
        for name, value in changes.items():
            setattr(message, name, value)
        for _ in range(3):
            node.send(message)
            node.detect(image(np.zeros((48, 64), np.uint8), 'mono8'))
    level, message, values = node.diagnosis()
    assert int(values['rejected']) == 3 * len(cases)
    assert same(node.detect(image(picture, 'rgb8')), reference)
    # Once for each kind: an encoding is a kind each, a wrong size is one.
    assert node.log().count('frame rejected') == 3, node.log()
    for expected in ['`32FC1` is not supported', '`` is not supported', 'step is 100 bytes']:
        assert node.log().count(expected) == 1, node.log()
    status, _ = node.end(signal.SIGTERM)
    assert status == 0
    counts = node.frame_counts()
    assert counts['rejected'] == 3 * len(cases) and counts['unfinished'] == 0, node.log()
    assert counts['received'] == counts['published'] + counts['replaced'] + counts['rejected'], node.log()


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


# --- The start

@pytest.mark.parametrize('arguments, expected', [
    (['-p', 'weights:=/nonexistent/file.safetensors'], '/nonexistent/file.safetensors'),
    (['-p', 'nms_radius:=99'], 'nms_radius is 99'),
    (['-p', 'backend:=gpu'], 'gpu'),
    (['-p', 'backend:=p150'], 'install TT-NN'),
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


def test_image_type_is_the_standard_one():
    # The parser reads the message by hand: it stands on these fields in this order.
    fields = list(Image.get_fields_and_field_types().items())
    assert fields == [('header', 'std_msgs/Header'), ('height', 'uint32'), ('width', 'uint32'),
                      ('encoding', 'string'), ('is_bigendian', 'uint8'), ('step', 'uint32'),
                      ('data', 'sequence<uint8>')]
