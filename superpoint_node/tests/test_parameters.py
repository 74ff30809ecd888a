"""Parameters as `ros2 param` and rqt see them."""

import numpy as np
import pytest
from PIL import Image as Picture
from rcl_interfaces.msg import ParameterEvent, ParameterType
from superpoint_p150.msg import Keypoints

from conftest import image
from keypoints import arrays

ALL = ['backend', 'device_id', 'fallback', 'weights', 'threads', 'max_keypoints', 'keypoint_threshold',
       'nms_radius', 'border_removal_distance', 'postprocess', 'return_descriptors', 'descriptor_type', 'channel',
       'range_16bit', 'mask', 'cameras', 'image_transport', 'qos_reliability', 'qos_depth', 'output_qos_reliability',
       'output_qos_depth', 'max_rate_hz', 'lazy', 'overlay', 'use_sim_time']


def test_parameters_take_effect_on_the_next_frame(shared, picture):
    message = image(picture, 'rgb8')
    with shared.changed(max_keypoints=5):
        assert len(shared.detect(message).scores) == 5
    with shared.changed(max_keypoints=-1, nms_radius=0):
        everything = len(shared.detect(message).scores)
    with shared.changed(max_keypoints=-1, nms_radius=8, border_removal_distance=40):
        answer = shared.detect(message)
        assert shared.get('nms_radius', 'border_removal_distance') == [8, 40]
        points, _, whole = arrays(answer)
        assert 0 < len(points) < everything / 4
        assert points.min() >= 40 and np.all(points.max(0) < [600, 440])
        with shared.changed(descriptor_type='float16'):
            answer = shared.detect(message)
            assert answer.descriptor_type == Keypoints.FLOAT16
            np.testing.assert_array_equal(arrays(answer)[2], whole.astype(np.float16).astype(np.float32))
    with shared.changed(return_descriptors=False):
        answer = shared.detect(message)
        assert answer.descriptor_dim == 0 and len(answer.descriptors) == 0 and len(answer.scores) > 0


@pytest.mark.parametrize('name, value, reason', [
    ('keypoint_threshold', 1.5, '1.5'),
    ('keypoint_threshold', 1, 'double'),
    ('nms_radius', 33, '33'),
    ('nms_radius', -1, '-1'),
    ('max_keypoints', -2, '-2'),
    ('max_keypoints', 'all', 'integer'),
    ('descriptor_type', 'int8', 'float32 or float16'),
    ('postprocess', 'none', 'none'),
    ('range_16bit', [9, 9], '[9, 9]'),
    ('mask', '/nonexistent/mask.png', '/nonexistent/mask.png'),
    ('weights', '/some/file', 'restart'),
    ('qos_depth', 3, 'restart'),
    ('cameras', ['left'], 'restart'),
    ('max_keypoint', 3, 'no parameter'),
])
def test_bad_values_are_refused_with_a_reason(shared, name, value, reason):
    before = shared.get(name)
    result, = shared.set(**{name: value})
    assert not result.successful
    assert name in result.reason and reason in result.reason, result.reason
    # As a set: the good one is not taken either, wherever it stands.
    for values in [{'return_descriptors': False, name: value}, {name: value, 'return_descriptors': False}]:
        atomic = shared.set_atomically(**values)
        assert not atomic.successful and reason in atomic.reason
    assert shared.get(name) == before and shared.get('return_descriptors') == [True]


def test_one_by_one_the_good_ones_are_taken(shared):
    good, bad = shared.set(nms_radius=5, max_keypoints=-9)
    assert good.successful and not bad.successful
    assert shared.get('nms_radius', 'max_keypoints') == [5, 1024]
    assert shared.set_atomically(nms_radius=4).successful


def test_parameters_describe_themselves(shared):
    described = {descriptor.name: descriptor for descriptor in shared.describe(*ALL)}
    for descriptor in described.values():
        assert len(descriptor.description) > 20 and descriptor.type != ParameterType.PARAMETER_NOT_SET, descriptor
    integer, = described['nms_radius'].integer_range
    assert (integer.from_value, integer.to_value, integer.step) == (0, 32, 1)
    double, = described['keypoint_threshold'].floating_point_range
    assert (double.from_value, double.to_value, double.step) == (0, 1, 0)
    assert described['backend'].additional_constraints == 'auto, p150 or cpu'
    read_only = {name for name, descriptor in described.items() if descriptor.read_only}
    assert read_only == {'backend', 'device_id', 'fallback', 'weights', 'threads', 'cameras', 'image_transport',
                         'qos_reliability', 'qos_depth', 'output_qos_reliability', 'output_qos_depth'}
    unknown, = shared.describe('nothing')
    assert unknown.name == 'nothing' and unknown.type == ParameterType.PARAMETER_NOT_SET


def test_parameters_are_listed(shared):
    assert set(shared.listed()) >= set(ALL)
    assert shared.listed('nms_radius', 'nms') == ['nms_radius']


def test_changes_are_announced(shared):
    events = shared.subscribe(ParameterEvent, '/parameter_events')
    me = f'{shared.namespace}/superpoint'

    def ours():
        return [event for event in events if event.node == me and event.changed_parameters]

    with shared.changed(nms_radius=6, max_keypoints=77):
        shared.wait(ours, 'the event')
    shared.wait(lambda: len(ours()) >= 2, 'the event of changing back')
    changed = [(parameter.name, parameter.value.integer_value) for parameter in ours()[0].changed_parameters]
    assert changed == [('nms_radius', 6), ('max_keypoints', 77)]
    assert ours()[0].stamp.sec > 1_600_000_000
    count = len(ours())
    assert not shared.set_atomically(nms_radius=99).successful
    shared.spin(0.3)
    assert len(ours()) == count, 'what was refused is no change'
    shared.unsubscribe(events)


def test_mask(shared, picture, tmp_path):
    # Left half and a block at the right are not wanted; the mask has another size than the image.
    mask = np.full((60, 80), 255, np.uint8)
    mask[:, :40] = 0
    mask[10:30, 60:] = 0
    Picture.fromarray(mask).save(tmp_path / 'mask.png')
    message = image(picture, 'rgb8')
    before = shared.detect(message)
    with shared.changed(mask=str(tmp_path / 'mask.png')):
        masked = shared.detect(message)
    points, scores, descriptors = arrays(before)
    cells = (points / 8).astype(int)
    kept = mask[cells[:, 1], cells[:, 0]] > 0
    assert 0.05 < kept.mean() < 0.95
    for got, expected in zip(arrays(masked), (points[kept], scores[kept], descriptors[kept])):
        np.testing.assert_array_equal(got, expected)
    assert len(shared.detect(message).scores) == len(scores)


def test_the_default_file_is_the_defaults(start, shared):
    from ament_index_python.packages import get_package_share_directory
    path = get_package_share_directory('superpoint_p150') + '/config/superpoint.yaml'
    node = start('--params-file', path, '-p', 'max_keypoint:=7', '-p', 'qos_overrides.x:=1')
    assert node.get(*ALL) == shared.get(*ALL)
    text = open(path).read()
    assert [name for name in ALL if f'\n    {name}:' not in text and name != 'use_sim_time'] == []
    assert 'max_keypoint is not known' in node.log()
    assert 'qos_overrides.x has no effect' in node.log()
    assert node.log().count('not known') == 1
