"""A peer of the node: publishes images to it and receives its keypoints, over real DDS, from this process."""

import contextlib
import io
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
os.environ['ROS_DOMAIN_ID'] = os.environ.get('SUPERPOINT_TEST_DOMAIN') or str(random.SystemRandom().randrange(1, 101))
os.environ['SUPERPOINT_TEST_DOMAIN'] = os.environ['ROS_DOMAIN_ID']  # for processes that this one starts
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
from rcl_interfaces.srv import DescribeParameters, GetParameters, ListParameters, SetParameters  # noqa: E402
from rcl_interfaces.srv import SetParametersAtomically  # noqa: E402
from diagnostic_msgs.msg import DiagnosticArray  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy  # noqa: E402
from PIL import Image as Picture  # noqa: E402
from sensor_msgs.msg import CompressedImage, Image  # noqa: E402
from superpoint_p150.msg import Keypoints  # noqa: E402

from sequence import frames  # noqa: E402

PROGRAMS = pathlib.Path(get_package_prefix('superpoint_p150')) / 'lib' / 'superpoint_p150'
NODE = str(PROGRAMS / 'superpoint_node')
COMMAND = str(PROGRAMS / 'superpoint')

# Generous, for a loaded machine; no test waits that long when all is well.
TIMEOUT_SECS = 20


LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=50, reliability=ReliabilityPolicy.RELIABLE)


class Camera:
    """This process's end of a camera's topics: publishes images, receives keypoints."""

    def __init__(self, running, image_topic, keypoints_topic, publisher_qos=RELIABLE, kind=Image):
        self.running = running
        self.ros = running.ros
        self.kind = kind
        self.received = []
        self.count = 0
        self.image_topic = running.full(image_topic)
        self.images = self.ros.create_publisher(kind, self.image_topic, publisher_qos)
        self.keypoints = self.ros.create_subscription(
            Keypoints, running.full(keypoints_topic), self.received.append, RELIABLE)

    def probe(self):
        pixel = np.zeros((1, 1), np.uint8)
        return image(pixel, 'mono8') if self.kind is Image else compressed(pixel, 'png')

    def wait_for_both_ways(self):
        """Send one-pixel images until one is answered: each side finds the other in its own time."""
        running = self.running
        self.received.clear()
        running.wait(lambda: self.images.get_subscription_count() == 1, 'the node')
        deadline = time.monotonic() + TIMEOUT_SECS
        while not self.received:
            self.send(self.probe())
            resend = min(deadline, time.monotonic() + 1)
            while not self.received and time.monotonic() < resend:
                rclpy.spin_once(self.ros, timeout_sec=0.05)
                assert running.process.poll() is None, running.log()
            assert time.monotonic() < deadline, f'no answer\n{running.log()}'
        sec = self.count + 1000
        running.wait(lambda: sec in self.answers(), 'the answer to the last of them')
        self.received.clear()

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
        self.running.wait(lambda: sec in self.answers(), 'keypoints')
        return self.received[self.answers().index(sec)]

    def close(self):
        self.ros.destroy_publisher(self.images)
        self.ros.destroy_subscription(self.keypoints)


class Running:
    """A node process in a namespace of its own, and this process's end of its topics and services.

    Without `cameras` it has one camera, whose methods are this object's too.
    """

    def __init__(self, ros, log_path, *ros_args, command=None, namespace=None, cameras=None, probe=True, **camera):
        self.ros = ros
        self.namespace = namespace or f'/test{time.monotonic_ns()}'
        self.log_path = log_path
        command = command or [NODE, '--ros-args', '-r', f'__ns:={self.namespace}']
        with open(log_path, 'w') as log:
            self.process = subprocess.Popen([*command, *ros_args], stdout=log, stderr=log)
        self.cameras = cameras(self) if cameras else [
            Camera(self, camera.pop('image_topic', 'image'), camera.pop('keypoints_topic', 'keypoints'), **camera)]
        self.camera = self.cameras[0]
        self.subscriptions = []
        self.statuses = {}
        try:
            for one in self.cameras if probe else []:
                one.wait_for_both_ways()
        except BaseException:
            self.process.kill()
            raise

    def __getattr__(self, name):
        return getattr(self.__dict__['camera'], name)

    def full(self, topic):
        return topic if topic.startswith('/') else f'{self.namespace}/{topic}'

    def subscribe(self, kind, topic, qos=RELIABLE):
        """Messages of a topic, in a list that grows; call `unsubscribe` with it to end that."""
        received = []
        self.subscriptions.append((received, self.ros.create_subscription(
            kind, self.full(topic), received.append, qos)))
        return received

    def unsubscribe(self, received):
        for entry in [entry for entry in self.subscriptions if entry[0] is received]:
            self.subscriptions.remove(entry)
            self.ros.destroy_subscription(entry[1])

    def watch_diagnostics(self):
        """From now on, `statuses` has the newest status of each name, as (level, message, values, count)."""
        prefix = self.namespace.strip('/') + '/'

        def note(message):
            for status in message.status:
                if status.name.startswith(prefix):
                    values = {value.key: value.value for value in status.values}
                    name = status.name.split(': ', 1)[1]
                    count = self.statuses.get(name, (0, 0, 0, 0))[3] + 1
                    self.statuses[name] = (int.from_bytes(status.level, 'little'), status.message, values, count)

        self.subscriptions.append((None, self.ros.create_subscription(
            DiagnosticArray, '/diagnostics', note, RELIABLE)))

    def diagnosis(self, name='camera', reports=2):
        """The status of this name after so many further reports, so that it tells of what is now over."""
        if not any(received is None for received, _ in self.subscriptions):
            self.watch_diagnostics()
        wanted = self.statuses.get(name, (0, 0, 0, 0))[3] + reports
        self.wait(lambda: self.statuses.get(name, (0, 0, 0, 0))[3] >= wanted, f'diagnostics of {name}')
        return self.statuses[name][:3]

    def spin(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            rclpy.spin_once(self.ros, timeout_sec=0.02)

    def log(self):
        return self.log_path.read_text()

    def wait(self, condition, what, timeout_secs=TIMEOUT_SECS):
        deadline = time.monotonic() + timeout_secs
        while not condition():
            assert self.process.poll() is None, f'the node ended: {self.process.returncode}\n{self.log()}'
            assert time.monotonic() < deadline, f'{what} did not come\n{self.log()}'
            rclpy.spin_once(self.ros, timeout_sec=0.05)

    def frame_counts(self):
        """The counters that the node logs when it ends, by name."""
        parts = self.log().split('frames: ')[-1].splitlines()[0].strip().split(', ')
        return {part.split()[1]: int(part.split()[0]) for part in parts}

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

    def listed(self, *prefixes, depth=0):
        request = ListParameters.Request(prefixes=list(prefixes), depth=depth)
        return self.call(ListParameters, 'list_parameters', request).result.names

    @contextlib.contextmanager
    def changed(self, **values):
        """With other parameters; afterwards they are as they were."""
        before = dict(zip(values, self.get(*values)))
        result = self.set_atomically(**values)
        assert result.successful, result.reason
        try:
            yield self
        finally:
            assert self.set_atomically(**before).successful

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
        for camera in self.cameras:
            camera.close()
        for _, subscription in self.subscriptions:
            self.ros.destroy_subscription(subscription)


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
def reference(shared, picture):
    """The answer to the photo's red channel as mono8."""
    return shared.detect(image(picture[:, :, 0].copy(), 'mono8'))


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


def compressed(pixels, kind, format=None, **options):
    """A CompressedImage of an array; `format` is what the message claims."""
    file = io.BytesIO()
    Picture.fromarray(pixels).save(file, kind, **options)
    message = CompressedImage(format=format or kind, data=file.getvalue())
    message.header.frame_id = 'camera_optical'
    return message


def same(first, second):
    """Two answers with the same keypoints, scores and descriptors, to the bit."""
    return (list(first.points), list(first.scores), bytes(first.descriptors)) == \
        (list(second.points), list(second.scores), bytes(second.descriptors))


def detect_file(path, *arguments):
    """What `superpoint detect --json` prints for a file."""
    done = subprocess.run([COMMAND, 'detect', str(path), '--json', *arguments],
                          capture_output=True, timeout=60, check=True)
    return json.loads(done.stdout)
