"""Start, end, restart; time that is simulated, stands still or goes back; remapping."""

import signal
import time

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray
from rosgraph_msgs.msg import Clock

from conftest import RELIABLE, Running, image, same


# --- The end

@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_idle_node(start, number):
    status, seconds = start().end(number)
    assert status == 0
    assert seconds < 1


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('delay_secs', [0.01, 0.1])
def test_a_signal_ends_a_busy_node(start, picture, number, delay_secs):
    node = start('-p', 'threads:=1')
    for _ in range(3):
        node.send(image(picture, 'rgb8'))
    time.sleep(delay_secs)
    status, seconds = node.end(number)
    assert status == 0, node.log()
    assert seconds < 1
    assert 'panicked' not in node.log() and 'ending at once' not in node.log()
    if delay_secs == 0.1:
        assert node.frame_counts()['unfinished'] > 0, 'the signal was to come in the middle of a frame'


def test_a_killed_node_is_followed_by_another(ros, tmp_path, reference, picture):
    first = Running(ros, tmp_path / 'first')
    first.process.kill()
    first.process.wait(timeout=10)
    # The publisher goes on; a new node takes the place of the old one.
    for _ in range(5):
        first.send(image(picture, 'rgb8'))
    second = Running(ros, tmp_path / 'second', namespace=first.namespace, probe=False)
    try:
        # Through the first one's publisher and to its subscriber, which have lived on.
        deadline = time.monotonic() + 20
        answer = None
        while answer is None and time.monotonic() < deadline:
            sec = first.camera.send(image(picture, 'rgb8'))
            second.spin(0.5)
            answer = next((a for a in first.camera.received if a.header.stamp.sec == sec), None)
        assert answer is not None and same(answer, reference), second.log()
    finally:
        second.close()
        for camera in first.cameras:
            camera.close()


# --- Time

def test_time_may_go_back_and_stand_still(start, reference, picture):
    node = start('-p', 'use_sim_time:=true')
    clock = node.ros.create_publisher(Clock, '/clock', RELIABLE)
    stamps = []

    def note(message):  # other nodes report too
        if message.status[0].name.startswith(node.namespace.strip('/')):
            stamps.append(message.header.stamp)

    node.subscriptions.append((stamps, node.ros.create_subscription(
        DiagnosticArray, '/diagnostics', note, RELIABLE)))
    node.wait(lambda: clock.get_subscription_count() >= 1, 'the subscription of /clock')
    message = image(picture, 'rgb8')
    # A bag played twice, one from 1970, and stamps that do not move at all.
    times = [500, 501, 502, 500, 501, 502, 1, 0, 0, 0]
    try:
        for index, sec in enumerate(times):
            clock.publish(Clock(clock=Time(sec=sec)))
            message.header.stamp = Time(sec=sec, nanosec=index)
            node.images.publish(message)
            node.wait(lambda: len(node.received) > index, f'the answer to frame {index}')
            assert node.received[-1].header == message.header
            assert same(node.received[-1], reference)
        clock.publish(Clock(clock=Time(sec=502)))
        stamps.clear()
        node.wait(lambda: stamps, 'diagnostics')
        assert stamps[-1].sec == 502, 'ROS time is that of /clock'
        # And back to the system's time, at run time.
        assert node.set_atomically(use_sim_time=False).successful
        stamps.clear()
        node.wait(lambda: len(stamps) > 1, 'diagnostics')
        assert stamps[-1].sec > 1_600_000_000
    finally:
        node.ros.destroy_publisher(clock)
    assert len(node.detect(message).scores) > 0


# --- Names

def test_everything_can_be_remapped(ros, start, tmp_path, reference, picture):
    node = start('-r', 'image:=/elsewhere/picture', '-r', 'keypoints:=points', '-r', '__node:=other',
                 image_topic='/elsewhere/picture', keypoints_topic='points')
    assert ('other', node.namespace) in node.ros.get_node_names_and_namespaces()
    assert same(node.detect(image(picture, 'rgb8')), reference)
    names = [name for name, _ in node.ros.get_topic_names_and_types()]
    assert node.full('other/overlay') in names and node.full('other/model_info') in names
    assert node.full('image') not in names and node.full('keypoints') not in names
    node.watch_diagnostics()
    assert node.diagnosis()[2]['topic'] == '/elsewhere/picture'
    assert np.asarray(node.received[-1].scores).min() > 0.005
