"""Many cameras, one detector."""

import time

import numpy as np
import pytest
from PIL import Image as Picture
from sensor_msgs.msg import Image

from conftest import Camera, Running, image, same


@pytest.fixture(scope='module')
def two(ros, tmp_path_factory):
    directory = tmp_path_factory.mktemp('cameras')
    for name, left_half in [('left', True), ('rig_right', False)]:
        mask = np.full((48, 64), 255, np.uint8)
        if left_half:
            mask[:, 32:] = 0
        Picture.fromarray(mask).save(directory / f'{name}.png')
    (directory / 'rig').mkdir()
    (directory / 'rig_right.png').rename(directory / 'rig' / 'right.png')
    node = Running(
        ros, directory / 'log', '-p', 'cameras:=[left, rig/right]', '-p', 'threads:=1',
        cameras=lambda node: [Camera(node, f'{name}/image', f'{name}/keypoints') for name in ['left', 'rig/right']])
    node.directory = directory
    yield node
    assert node.end(2)[0] == 0
    assert node.log().count('frames: ') == 2
    node.close()


def test_each_camera_has_its_own_topics(two, reference, picture):
    left, right = two.cameras
    assert same(left.detect(image(picture, 'rgb8')), reference)
    assert right.received == []
    other = picture[:, ::-1].copy()
    assert not same(right.detect(image(other, 'rgb8')), reference)
    assert len(left.received) == 1
    left.received.clear()
    right.received.clear()


def test_masks_of_cameras(two, picture):
    left, right = two.cameras
    with two.changed(mask=str(two.directory / '{camera}.png')):
        points = np.asarray(left.detect(image(picture, 'rgb8')).points).reshape(-1, 2)
        assert len(points) and points[:, 0].max() < 320
        points = np.asarray(right.detect(image(picture, 'rgb8')).points).reshape(-1, 2)
        assert points[:, 0].max() > 320 > points[:, 0].min()


def test_overlays_of_cameras(two, picture):
    pictures = two.subscribe(Image, 'superpoint/rig/right/overlay')
    for _ in range(20):
        two.cameras[1].detect(image(picture, 'rgb8'))
        two.spin(0.2)
        if pictures:
            break
    assert pictures[0].width == 640
    two.unsubscribe(pictures)


def test_a_fast_camera_does_not_starve_a_slow_one(two, picture):
    fast, slow = two.cameras
    fast.received.clear()
    slow.received.clear()
    message = image(picture, 'rgb8')
    before = two.diagnosis('left')[2], two.diagnosis('rig/right')[2]
    sent, waits = [], []
    next_slow = time.monotonic() + 0.5
    end = time.monotonic() + 30
    pending = None
    while len(waits) < 5 and time.monotonic() < end:
        fast.send(message)  # far faster than the detector
        if pending is None and time.monotonic() > next_slow:
            pending = (slow.send(message), time.monotonic())
            sent.append(pending[0])
            next_slow += 0.8
        if pending and pending[0] in slow.answers():
            waits.append(time.monotonic() - pending[1])
            pending = None
        two.spin(0.01)
    two.wait(lambda: sent[-1] in slow.answers(), 'the slow camera')
    # Every frame of the slow one was answered, whatever the fast one sent meanwhile.
    assert [sec for sec in slow.answers() if sec in sent] == sent and len(waits) == 5
    two.spin(1)
    of_fast, of_slow = two.diagnosis('left')[2], two.diagnosis('rig/right')[2]
    assert of_slow['dropped_for_newer'] == before[1]['dropped_for_newer']
    assert int(of_fast['dropped_for_newer']) > int(before[0]['dropped_for_newer']) + 10
    # A turn is at most the running frame and one's own: three detections leave room for a busy machine.
    detection = float(of_fast['detector_ms_p90']) / 1e3
    assert np.median(waits) < 3 * detection + 0.2, (waits, detection)
    for values in of_fast, of_slow:
        parts = [value for key, value in values.items() if key in (
            'published', 'dropped_for_newer', 'rejected', 'passed_disabled', 'passed_unwatched', 'passed_max_rate',
            'unfinished')]
        assert int(values['received']) == sum(map(int, parts))
