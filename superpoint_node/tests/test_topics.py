"""Topics and services beside keypoints: overlay, model_info, diagnostics, enable; quality of service; laziness."""

import json
import time

import numpy as np
import pytest
import rclpy
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String
from std_srvs.srv import SetBool
from superpoint_p150.msg import Keypoints

from conftest import BEST_EFFORT, LATCHED, RELIABLE, image, same
from keypoints import arrays

OK, WARN = 0, 1


# --- Overlay

def overlays(node):
    return int(node.diagnosis()[2]['overlays'])


def test_overlay_is_drawn_only_while_somebody_subscribes(shared, picture):
    message = image(picture, 'rgb8')
    before = overlays(shared)
    shared.detect(message)
    assert overlays(shared) == before

    pictures = shared.subscribe(Image, 'superpoint/overlay')
    shared.wait(lambda: shared.ros.count_publishers(shared.full('superpoint/overlay')) == 1, 'the overlay topic')
    answer = shared.detect(message)
    if not pictures:  # the node may have met the subscriber only now
        shared.spin(1)
        answer = shared.detect(message)
    shared.wait(lambda: pictures and pictures[-1].header == answer.header, 'the overlay')
    overlay = pictures[-1]
    assert (overlay.encoding, overlay.height, overlay.width, overlay.step) == ('rgb8', 480, 640, 1920)
    assert overlay.header.frame_id == 'camera_optical'
    drawn = np.frombuffer(bytes(overlay.data), np.uint8).reshape(480, 640, 3)
    changed = np.argwhere(np.any(drawn != picture, axis=2))[:, ::-1]
    points, scores, _ = arrays(answer)
    distances = np.linalg.norm(changed[:, None].astype(np.float32) - points[None], axis=2)
    assert len(changed) > 5 * len(points) and distances.min(1).max() < 5, 'ink around keypoints only'
    x, y = points[0].astype(int)
    ring = drawn[y - 4:y + 5, x - 4:x + 5].reshape(-1, 3)
    assert any(r > 240 and g > 200 and b < 60 for r, g, b in ring.tolist()), 'the best one is yellow'

    with shared.changed(overlay=False):
        count = len(pictures)
        shared.detect(message)
        shared.spin(0.5)
        assert len(pictures) == count, 'switched off'

    shared.unsubscribe(pictures)
    shared.spin(1)
    before = overlays(shared)
    shared.detect(message)
    assert overlays(shared) == before


@pytest.mark.parametrize('encoding', ['bgra8', 'mono16', 'bayer_grbg8', 'uyvy'])
def test_overlay_of_other_encodings_shows_the_picture(shared, encoding):
    y, x = np.mgrid[:48, :64]
    ramp = (x * 4).astype(np.uint8)
    pixels = {
        'bgra8': lambda: np.dstack([ramp, ramp, ramp, np.zeros_like(ramp)]),
        'mono16': lambda: ramp.astype('<u2') * 257,
        'bayer_grbg8': lambda: ramp,
        'uyvy': lambda: np.dstack([np.full_like(ramp, 0x80), ramp]),
    }[encoding]()
    pictures = shared.subscribe(Image, 'superpoint/overlay')
    with shared.changed(keypoint_threshold=1.0):
        message = image(np.ascontiguousarray(pixels), encoding)
        deadline = 20
        while not pictures and deadline:
            shared.detect(message)
            shared.spin(0.2)
            deadline -= 1
        shown = np.frombuffer(bytes(pictures[-1].data), np.uint8).reshape(48, 64, 3)
    shared.unsubscribe(pictures)
    # A mosaic's mirrored border is the only place where a ramp is not its neighbours' mean.
    inner = np.s_[:, 1:-1]
    np.testing.assert_allclose(shown[inner], np.dstack([ramp] * 3)[inner], atol=0)


@pytest.mark.parametrize('is_bigendian', [0, 1])
def test_overlay_of_16_bit_images_is_in_their_range(shared, is_bigendian):
    y, x = np.mgrid[:48, :64]
    wide = (1000 + x * 4 * 8).astype('>u2' if is_bigendian else '<u2')
    pictures = shared.subscribe(Image, 'superpoint/overlay')
    with shared.changed(keypoint_threshold=1.0, range_16bit=[1000, 1000 + 255 * 8]):
        for _ in range(20):
            shared.detect(image(wide, 'mono16', is_bigendian=is_bigendian))
            shared.spin(0.2)
            if pictures:
                break
    shared.unsubscribe(pictures)
    shown = np.frombuffer(bytes(pictures[-1].data), np.uint8).reshape(48, 64, 3)
    np.testing.assert_array_equal(shown, np.dstack([(x * 4).astype(np.uint8)] * 3))


# --- What made the keypoints

def test_model_info_is_latched(shared):
    infos = shared.subscribe(String, 'superpoint/model_info', LATCHED)
    shared.wait(lambda: infos, 'model_info')
    info = json.loads(infos[0].data)
    assert info['backend'] in ('cpu', 'p150')
    assert info['weights']['name'] == 'superpoint_open' and len(info['weights']['sha256']) == 64
    assert info['image_size'] == {'height': 480, 'width': 640} and info['descriptor_dim'] == 256
    shared.unsubscribe(infos)


# --- Diagnostics

def test_diagnostics(shared, picture):
    for _ in range(3):
        shared.detect(image(picture, 'rgb8'))
    level, message, values = shared.diagnosis(reports=1)
    assert level == OK and 'frames/s' in message, message
    parts = ['published', 'dropped_for_newer', 'rejected', 'passed_disabled', 'passed_unwatched', 'passed_max_rate',
             'unfinished']
    assert int(values['received']) == sum(int(values[part]) for part in parts) > 0
    assert values['unfinished'] == '0', 'the sum alone says nothing: what is missing from it would be called unfinished'
    for name in ['latency_ms', 'detector_ms', 'added_ms']:
        p50, p90, p99 = (float(values[f'{name}_{percentile}']) for percentile in ['p50', 'p90', 'p99'])
        assert 0 < p50 <= p90 <= p99
    assert float(values['latency_ms_p50']) > float(values['detector_ms_p50'])
    assert values['topic'] == shared.full('image')
    level, _, values = shared.diagnosis('detector')
    assert level == OK and values['backend'] == 'cpu' and values['panics'] == '0'
    assert values['weights'] == 'superpoint_open'


def test_silence_is_a_warning(shared, picture):
    shared.detect(image(picture, 'rgb8'))
    shared.wait(lambda: shared.diagnosis(reports=1)[0] == WARN, 'the warning')
    assert f'no image on {shared.full("image")} for ' in shared.diagnosis(reports=1)[1]
    shared.detect(image(picture, 'rgb8'))
    assert shared.diagnosis(reports=1)[0] == OK


# --- Switching off, laziness, rate

def test_enable(shared, picture):
    message = image(picture, 'rgb8')
    before = int(shared.diagnosis()[2]['passed_disabled'])
    assert shared.call(SetBool, 'enable', SetBool.Request(data=False)).success
    answered = len(shared.received)
    for _ in range(3):
        shared.send(message)
    shared.spin(1)
    assert len(shared.received) == answered
    assert int(shared.diagnosis()[2]['passed_disabled']) == before + 3
    assert 'disabled' in shared.diagnosis('detector')[1]
    answer = shared.call(SetBool, 'enable', SetBool.Request(data=True))
    assert answer.success and answer.message == 'enabled'
    assert len(shared.detect(message).scores) > 0


def test_lazy(shared, picture):
    message = image(picture, 'rgb8')
    with shared.changed(lazy=True):
        assert len(shared.detect(message).scores) > 0
        # Nobody subscribes: the frames are passed over.
        shared.ros.destroy_subscription(shared.camera.keypoints)
        try:
            shared.spin(1.5)
            before = shared.diagnosis()[2]
            for _ in range(3):
                shared.send(message)
                shared.spin(0.1)
            after = shared.diagnosis()[2]
            assert after['published'] == before['published']
            assert int(after['passed_unwatched']) == int(before['passed_unwatched']) + 3
            # The overlay alone is reason enough.
            overlays = shared.subscribe(Image, 'superpoint/overlay')
            deadline = time.monotonic() + 20
            while not overlays and time.monotonic() < deadline:
                shared.send(message)
                shared.spin(0.5)
            assert overlays
            shared.unsubscribe(overlays)
        finally:
            shared.camera.keypoints = shared.ros.create_subscription(
                Keypoints, shared.full('keypoints'), shared.camera.received.append, RELIABLE)
        shared.wait_for_both_ways()


def test_max_rate(shared):
    message = image(np.zeros((48, 64), np.uint8), 'mono8')

    def let_through():
        values = shared.diagnosis()[2]
        return int(values['received']) - int(values['passed_max_rate'])

    with shared.changed(max_rate_hz=2.0):
        before, started = let_through(), time.monotonic()
        for _ in range(30):
            shared.send(message)
            shared.spin(0.1)
        seconds = time.monotonic() - started
        count = let_through() - before
    assert abs(count - 2 * seconds) <= 2, (count, seconds)


# --- Quality of service

def test_quality_of_service_of_the_outputs(shared):
    keypoints, = shared.ros.get_publishers_info_by_topic(shared.full('keypoints'))
    assert keypoints.qos_profile.reliability == ReliabilityPolicy.RELIABLE
    images, = shared.ros.get_subscriptions_info_by_topic(shared.full('image'))
    assert images.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT
    info, = shared.ros.get_publishers_info_by_topic(shared.full('superpoint/model_info'))
    assert info.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL


@pytest.mark.parametrize('publisher_qos', [BEST_EFFORT, RELIABLE], ids=['best_effort', 'reliable'])
def test_best_effort_receives_from_both_kinds(shared, reference, picture, publisher_qos):
    images = shared.ros.create_publisher(Image, shared.full('image'), publisher_qos)
    try:
        shared.wait(lambda: images.get_subscription_count() == 1, 'the node')
        # Best effort may lose the first ones while both sides find each other.
        sent = []

        def answer():
            return next((a for a in shared.received if a.header.stamp.sec in sent), None)

        for _ in range(10):
            message = shared.stamped(image(picture, 'rgb8'))
            images.publish(message)
            sent.append(message.header.stamp.sec)
            shared.spin(1)
            if answer():
                break
        assert same(answer(), reference)
    finally:
        shared.ros.destroy_publisher(images)


def test_publishers_that_cannot_match_are_named(start, reference, picture):
    node = start('-p', 'qos_reliability:=reliable', '-p', 'output_qos_reliability:=best_effort', probe=False)
    # Only a best-effort publisher, and one of another type.
    node.ros.destroy_publisher(node.camera.images)
    node.camera.images = node.ros.create_publisher(Image, node.full('image'), BEST_EFFORT)
    # In a context of its own: one DDS participant cannot have two types on a topic.
    context = rclpy.Context()
    rclpy.init(context=context)
    stranger = rclpy.create_node('stranger', context=context)
    stranger.create_publisher(CompressedImage, node.full('image'), RELIABLE)
    try:
        node.wait(lambda: 'best_effort' in node.diagnosis(reports=1)[1], 'the warning')
        node.wait(lambda: 'CompressedImage' in node.diagnosis(reports=1)[1], 'the other warning')
        node.spin(2.2)
        level, message, _ = node.diagnosis()
        assert level == WARN
        assert f'/peer publishes {node.full("image")} best_effort, this node subscribes reliable' in message, message
        assert '/stranger publishes sensor_msgs/msg/CompressedImage' in message, message
        assert node.log().count('this node subscribes reliable') == 1, node.log()
    finally:
        stranger.destroy_node()
        rclpy.shutdown(context=context)
        node.ros.destroy_publisher(node.camera.images)
    # Reliable to reliable works; and keypoints come best-effort.
    node.camera.images = node.ros.create_publisher(Image, node.full('image'), RELIABLE)
    node.ros.destroy_subscription(node.camera.keypoints)
    node.camera.keypoints = node.ros.create_subscription(
        Keypoints, node.full('keypoints'), node.camera.received.append, BEST_EFFORT)
    node.wait_for_both_ways()
    assert same(node.detect(image(picture, 'rgb8')), reference)
    keypoints, = node.ros.get_publishers_info_by_topic(node.full('keypoints'))
    assert keypoints.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT
