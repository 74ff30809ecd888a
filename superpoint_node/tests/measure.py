#!/usr/bin/env python3
"""Measurements of the node over real DDS: latency, a soak, large messages. Not a test: what it finds depends on the machine.

    . scripts/env.bash
    python3 superpoint_node/tests/measure.py latency
    python3 superpoint_node/tests/measure.py soak --minutes 20
    python3 superpoint_node/tests/measure.py large
    python3 superpoint_node/tests/measure.py large --default-fastdds
"""

import argparse
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
import time

ARGUMENTS = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ARGUMENTS.add_argument('what', choices=['latency', 'soak', 'large'])
ARGUMENTS.add_argument('--minutes', type=float, default=20)
ARGUMENTS.add_argument('--frames', type=int, default=200)
ARGUMENTS.add_argument('--default-fastdds', action='store_true', help='without config/fastdds.xml')

import conftest  # noqa: E402  (sets the domain, before rclpy is loaded)

import numpy as np  # noqa: E402
import rclpy  # noqa: E402
from rclpy.qos import QoSProfile, ReliabilityPolicy  # noqa: E402

from superpoint_p150.msg import Keypoints  # noqa: E402

from conftest import Camera, Running, image  # noqa: E402
from sequence import frames  # noqa: E402


def percentiles(values):
    return ' '.join(f'p{percent} {np.percentile(values, percent):.3f}' for percent in (50, 90, 99))


def latency(ros, directory, options):
    """What the node adds around the detector, as it measures it itself; and the whole way, as its user sees it."""
    node = Running(ros, directory / 'log')
    pixels = np.asarray(next(frames(1))[0])[:, :, 0].copy()
    message = image(pixels, 'mono8')
    whole = []
    for _ in range(options.frames):
        started = time.monotonic()
        node.detect(message)
        whole.append((time.monotonic() - started) * 1e3)
    values = node.diagnosis()[2]
    for name in ['added_ms', 'detector_ms', 'latency_ms']:
        print(name, ' '.join(f'{p} {values[f"{name}_{p}"]}' for p in ['p50', 'p90', 'p99']))
    print('publish to receive, this process:', percentiles(whole))
    node.end(signal.SIGINT)
    node.close()


def resident(pid):
    for line in pathlib.Path(f'/proc/{pid}/status').read_text().splitlines():
        if line.startswith('VmRSS'):
            return int(line.split()[1])
    return 0


def soak(ros, directory, options):
    """Two cameras, faster than the detector; memory, file descriptors and counters over time."""
    names = ['left', 'right']
    node = Running(ros, directory / 'log', '-p', 'cameras:=[left, right]',
                   cameras=lambda node: [Camera(node, f'{name}/image', f'{name}/keypoints') for name in names])
    picture = np.asarray(next(frames(1))[0])
    messages = [image(picture, 'rgb8'), image(picture[:, :, 0].copy(), 'mono8')]
    end = time.monotonic() + 60 * options.minutes
    next_report = time.monotonic() + 10
    reports = []
    start = time.monotonic()
    print('seconds  RSS kB  descriptors  received  published')
    while time.monotonic() < end:
        for camera, message in zip(node.cameras, messages):
            camera.send(message)
            camera.received.clear()
        node.spin(0.03)
        if time.monotonic() > next_report:
            next_report += max(10, 60 * options.minutes / 20)
            both = [node.diagnosis(name)[2] for name in names]
            count = len(os.listdir(f'/proc/{node.process.pid}/fd'))
            reports.append((resident(node.process.pid), count))
            print(f'{time.monotonic() - start:7.0f}  {reports[-1][0]:6}  {count:11}',
                  *(sum(int(values[key]) for values in both) for key in ['received', 'published']), flush=True)
    time.sleep(1)
    status, _ = node.end(signal.SIGINT)
    print(node.log().split('frames: ', 1)[1])
    for line in node.log().splitlines():
        if 'frames: ' in line:
            counts = {part.split()[1]: int(part.split()[0]) for part in line.split('frames: ')[1].split(', ')}
            assert counts.pop('received') == sum(counts.values()), line
            assert counts['unfinished'] <= 2, 'one in work and one waiting at most'
    print('sent', *(camera.count for camera in node.cameras))
    half = len(reports) // 2
    assert status == 0
    assert reports[-1][0] <= 1.01 * reports[half][0] and reports[-1][1] == reports[half][1], 'it grows'
    print(f'exit status {status}; RSS at the middle {reports[half][0]} kB, at the end {reports[-1][0]} kB; '
          f'descriptors {reports[half][1]} and {reports[-1][1]}')
    node.close()


def publish_large(count, reliable, default_fastdds, ready, go):
    """A process that publishes messages with 1024 descriptors at 30 Hz, as the node does."""
    if default_fastdds:
        os.environ.pop('FASTRTPS_DEFAULT_PROFILES_FILE', None)
    rclpy.init()
    ros = rclpy.create_node('large')
    kind = ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT
    publisher = ros.create_publisher(Keypoints, 'large', QoSProfile(depth=10, reliability=kind))
    message = Keypoints(points=[0.0] * 2048, scores=[0.5] * 1024, descriptor_dim=256,
                        descriptors=bytes(1024 * 256 * 4))
    while publisher.get_subscription_count() == 0:
        time.sleep(0.05)
    ready.set()
    go.wait()
    for index in range(count):
        message.image_width = index
        publisher.publish(message)
        time.sleep(1 / 30)
    time.sleep(2)
    rclpy.shutdown()


def large(ros, directory, options):
    """How many of the messages with 1024 x 256 float32 descriptors (1.05 MB) at 30 Hz arrive complete."""
    context = multiprocessing.get_context('spawn')
    profile = os.environ.get('FASTRTPS_DEFAULT_PROFILES_FILE', 'none')
    print(f'Fast DDS profile: {profile}')
    for reliable in [True, False]:
        kind = ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT
        received = []
        subscription = ros.create_subscription(
            Keypoints, 'large',
            lambda message: received.append((message.image_width, len(message.descriptors))),
            QoSProfile(depth=10, reliability=kind))
        ready, go = context.Event(), context.Event()
        sender = context.Process(target=publish_large, args=(options.frames, reliable, options.default_fastdds, ready, go))
        sender.start()
        while not ready.is_set():
            rclpy.spin_once(ros, timeout_sec=0.05)
        rclpy.spin_once(ros, timeout_sec=0.5)
        go.set()
        while sender.is_alive():
            rclpy.spin_once(ros, timeout_sec=0.05)
        complete = sum(length == 1024 * 256 * 4 for _, length in received)
        print(f'{"reliable" if reliable else "best effort"}: {complete} of {options.frames} arrived complete')
        ros.destroy_subscription(subscription)


def main():
    options = ARGUMENTS.parse_args()
    if options.default_fastdds:
        os.environ.pop('FASTRTPS_DEFAULT_PROFILES_FILE', None)
    rclpy.init()
    with tempfile.TemporaryDirectory() as directory:
        {'latency': latency, 'soak': soak, 'large': large}[options.what](
            rclpy.create_node('measure'), pathlib.Path(directory), options)
    rclpy.shutdown()


if __name__ == '__main__':
    sys.exit(main())
