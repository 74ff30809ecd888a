"""A peer of the node: publishes images to it and receives its keypoints, over real DDS, from this process."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

# Before rclpy is loaded: this run's own domain on this machine only, so that parallel runs do not meet.
os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
os.environ['ROS_DOMAIN_ID'] = str(random.SystemRandom().randrange(1, 101))
# Weights of a developer's Hugging Face cache must not change the results.
os.environ['HF_HOME'] = os.environ['HF_HUB_CACHE'] = '/nonexistent'

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Room for images that are larger than Fast DDS's default shared memory.
os.environ['FASTRTPS_DEFAULT_PROFILES_FILE'] = str(ROOT / 'config' / 'fastdds.xml')
sys.path.insert(0, str(ROOT / 'demo'))

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import rclpy  # noqa: E402
from ament_index_python.packages import get_package_prefix  # noqa: E402
from rcl_interfaces.msg import Parameter as ParameterMessage  # noqa: E402
from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters  # noqa: E402
from rcl_interfaces.srv import SetParametersAtomically  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from rclpy.qos import QoSProfile  # noqa: E402
from sensor_msgs.msg import Image  # noqa: E402
from superpoint_p150.msg import Keypoints  # noqa: E402

from sequence import frames  # noqa: E402

PROGRAMS = pathlib.Path(get_package_prefix('superpoint_p150')) / 'lib' / 'superpoint_p150'
NODE = str(PROGRAMS / 'superpoint_node')
COMMAND = str(PROGRAMS / 'superpoint')

# Generous, for a loaded machine; no test waits that long when all is well.
TIMEOUT_SECS = 20


class Running:
    """A node process in a namespace of its own, and this process's end of its topics and services."""

    def __init__(self, ros, log_path, *ros_args, publisher_qos=None):
        self.ros = ros
        self.namespace = f'/test{time.monotonic_ns()}'
        self.log_path = log_path
        with open(log_path, 'w') as log:
            self.process = subprocess.Popen(
                [NODE, '--ros-args', '-r', f'__ns:={self.namespace}', *ros_args], stdout=log, stderr=log)
        self.received = []
        self.count = 0
        self.images = ros.create_publisher(Image, f'{self.namespace}/image', publisher_qos or QoSProfile(depth=50))
        self.keypoints = ros.create_subscription(
            Keypoints, f'{self.namespace}/keypoints', self.received.append, QoSProfile(depth=50))
        try:
            self.wait_for_both_ways()
        except BaseException:
            self.process.kill()
            raise

    def log(self):
        return self.log_path.read_text()

    def wait(self, condition, what, timeout_secs=TIMEOUT_SECS):
        deadline = time.monotonic() + timeout_secs
        while not condition():
            assert self.process.poll() is None, f'the node ended: {self.process.returncode}\n{self.log()}'
            assert time.monotonic() < deadline, f'{what} did not come\n{self.log()}'
            rclpy.spin_once(self.ros, timeout_sec=0.05)

    def wait_for_both_ways(self):
        """Send one-pixel images until one is answered: each side finds the other in its own time."""
        self.wait(lambda: self.images.get_subscription_count() == 1, 'the node')
        deadline = time.monotonic() + TIMEOUT_SECS
        while not self.received:
            self.send(image(np.zeros((1, 1), np.uint8), 'mono8'))
            resend = min(deadline, time.monotonic() + 1)
            while not self.received and time.monotonic() < resend:
                rclpy.spin_once(self.ros, timeout_sec=0.05)
                assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, f'no answer\n{self.log()}'
        sec = self.count + 1000
        self.wait(lambda: sec in self.answers(), 'the answer to the last of them')
        self.received.clear()

    def frame_counts(self):
        """The counters that the node logs when it ends, by name."""
        parts = self.log().split('frames: ')[-1].strip().split(', ')
        return {part.split()[1]: int(part.split()[0]) for part in parts}

    def stamped(self, message):
        """The message with a stamp that no other of this run has."""
        self.count += 1
        message.header.stamp.sec = 1000 + self.count
        message.header.stamp.nanosec = 123456789
        return message

    def send(self, message):
        """Publish an image; its stamp in seconds finds the answer again."""
        self.images.publish(self.stamped(message))
        return message.header.stamp.sec

    def answers(self):
        return [message.header.stamp.sec for message in self.received]

    def detect(self, message):
        """The keypoints of an image."""
        sec = self.send(message)
        self.wait(lambda: sec in self.answers(), f'keypoints of {message.encoding}')
        return self.received[self.answers().index(sec)]

    def call(self, kind, name, request):
        client = self.ros.create_client(kind, f'{self.namespace}/superpoint/{name}')
        try:
            self.wait(client.service_is_ready, name)
            future = client.call_async(request)
            self.wait(future.done, f'the answer of {name}')
            return future.result()
        finally:
            self.ros.destroy_client(client)

    def set(self, **values):
        """Set parameters; the results, in order."""
        return self.call(SetParameters, 'set_parameters', SetParameters.Request(parameters=messages(values))).results

    def set_atomically(self, **values):
        request = SetParametersAtomically.Request(parameters=messages(values))
        return self.call(SetParametersAtomically, 'set_parameters_atomically', request).result

    def get(self, *names):
        answer = self.call(GetParameters, 'get_parameters', GetParameters.Request(names=list(names)))
        return [rclpy.parameter.parameter_value_to_python(value) for value in answer.values]

    def describe(self, *names):
        request = DescribeParameters.Request(names=list(names))
        return self.call(DescribeParameters, 'describe_parameters', request).descriptors

    def end(self, number):
        """Send a signal; exit status and the seconds until it was there."""
        started = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(timeout=10)
        return status, time.monotonic() - started

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.ros.destroy_publisher(self.images)
        self.ros.destroy_subscription(self.keypoints)


def messages(values):
    return [ParameterMessage(name=name, value=Parameter(name, value=value).get_parameter_value())
            for name, value in values.items()]


@pytest.fixture(scope='session')
def ros():
    rclpy.init()
    yield rclpy.create_node('peer')
    rclpy.shutdown()


@pytest.fixture
def start(ros, tmp_path):
    """Start nodes with parameters of a test's own."""
    running = []

    def start(*ros_args, **options):
        running.append(Running(ros, tmp_path / f'node{len(running)}.log', *ros_args, **options))
        return running[-1]

    yield start
    for node in running:
        node.close()


@pytest.fixture(scope='session')
def shared(ros, tmp_path_factory):
    """One node with default parameters, for every test that leaves them as they were."""
    node = Running(ros, tmp_path_factory.mktemp('node') / 'log')
    yield node
    status, _ = node.end(signal.SIGINT)
    assert status == 0, node.log()
    assert 'panicked' not in node.log()
    node.close()


@pytest.fixture(scope='session')
def picture():
    """A 640x480 colour photo (H x W x 3, R first)."""
    return np.asarray(next(frames(1))[0])


def image(pixels, encoding, step=None, is_bigendian=0):
    """An Image message of an array; with a longer step, rows are padded with bytes that are no pixels."""
    rows = pixels.reshape(len(pixels), -1).view(np.uint8)
    height, width = pixels.shape[:2]
    step = step or rows.shape[1]
    padded = np.full((height, step), 0xA5, np.uint8)
    padded[:, :rows.shape[1]] = rows
    message = Image(height=height, width=width, encoding=encoding, step=step, is_bigendian=is_bigendian)
    message.header.frame_id = 'camera_optical'
    message.data = padded.tobytes()
    return message


def detect_file(path, *arguments):
    """What `superpoint detect --json` prints for a file."""
    done = subprocess.run([COMMAND, 'detect', str(path), '--json', *arguments],
                          capture_output=True, timeout=60, check=True)
    return json.loads(done.stdout)
