"""Play a photo sequence into the node and show what comes back.

Starts the installed node, publishes each frame as a camera would (bgr8, best effort) and waits for its keypoints before
it sends the next, so that every frame is answered and the latency is that of one frame, not of a queue.
"""

import argparse
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import rclpy
from ament_index_python.packages import get_package_prefix
from PIL import Image as Picture
from PIL import ImageDraw
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image
from superpoint_p150.msg import Keypoints

from keypoints import arrays, mutual_matches
from sequence import frames, project

START_TIMEOUT_SECS = 30
FRAME_TIMEOUT_SECS = 20
TRUE_WITHIN_PIXELS = 3


def image_message(frame, stamp):
    """An Image message as a colour camera's driver sends it."""
    message = Image(height=frame.height, width=frame.width, encoding='bgr8', step=3 * frame.width)
    message.header.stamp = stamp
    message.header.frame_id = 'camera'
    message.data = np.asarray(frame)[:, :, ::-1].tobytes()
    return message


def draw_rings(draw, points, scores, radius=3):
    """Rings from red (low score) to yellow (high score), by rank: scores span orders of magnitude."""
    ranks = np.argsort(np.argsort(scores)) / max(len(scores) - 1, 1)
    for (x, y), rank in zip(points, ranks):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=(255, int(255 * rank), 0))


class Demo:
    """A camera and a subscriber in one process, the node in another."""

    def __init__(self, out):
        self.out = out
        self.log_path = out / 'demo_node.log'
        program = pathlib.Path(get_package_prefix('superpoint_p150')) / 'lib/superpoint_p150/superpoint_node'
        with open(self.log_path, 'w') as log:
            self.process = subprocess.Popen([str(program)], stdout=log, stderr=log)
        rclpy.init()
        self.ros = rclpy.create_node('demo')
        self.camera = self.ros.create_publisher(Image, 'image', qos_profile_sensor_data)
        self.received = {}
        self.ros.create_subscription(Keypoints, 'keypoints', self.on_keypoints, 10)

    def on_keypoints(self, message):
        stamp = message.header.stamp
        self.received[(stamp.sec, stamp.nanosec)] = (time.monotonic(), message)

    def spin_until(self, condition, timeout_secs, what):
        deadline = time.monotonic() + timeout_secs
        while not condition():
            rclpy.spin_once(self.ros, timeout_sec=0.05)
            if self.process.poll() is not None:
                sys.exit(f'demo: the node ended with status {self.process.returncode}: {self.log_path.read_text()}')
            if time.monotonic() > deadline:
                sys.exit(f'demo: {what} did not come within {timeout_secs} s; the node\'s log is {self.log_path}')

    def connect(self, frame):
        """Send a frame again and again, as a camera does, until the node has found this process and answers."""
        next_send = 0

        def answered():
            nonlocal next_send
            if self.camera.get_subscription_count() and time.monotonic() > next_send:
                self.camera.publish(image_message(frame, self.ros.get_clock().now().to_msg()))
                next_send = time.monotonic() + 1
            return self.received

        self.spin_until(answered, START_TIMEOUT_SECS, 'the node')
        print(self.log_path.read_text(), end='')

    def detect(self, frame):
        """Send a frame; return its keypoints and the seconds until they were here."""
        stamp = self.ros.get_clock().now().to_msg()
        message = image_message(frame, stamp)
        key = (stamp.sec, stamp.nanosec)
        sent = time.monotonic()
        self.camera.publish(message)
        self.spin_until(lambda: key in self.received, FRAME_TIMEOUT_SECS, 'an answer')
        arrived, answer = self.received.pop(key)
        return answer, arrived - sent

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.ros.destroy_node()
        rclpy.shutdown()
        return status


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--frames', type=int, default=20)
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('out'))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    demo = Demo(options.out)
    try:
        demo.connect(next(frames(1))[0])
        views, counts, latencies = [], [], []
        agreeing = matched = 0
        for frame, homography in frames(options.frames):
            answer, latency = demo.detect(frame)
            points, scores, descriptors = arrays(answer)
            counts.append(len(points))
            latencies.append(1000 * latency)
            if views:
                _, before_points, _, before_descriptors, before_homography = views[-1]
                first, second = mutual_matches(before_descriptors, descriptors)
                truth = project(np.linalg.inv(homography) @ before_homography, before_points[first])
                good = np.linalg.norm(truth - points[second], axis=1) <= TRUE_WITHIN_PIXELS
                agreeing, matched = agreeing + good.sum(), matched + len(good)
            views.append((frame, points, scores, descriptors, homography))
    finally:
        status = demo.stop()

    frame, points, scores = views[-1][:3]
    draw_rings(ImageDraw.Draw(frame), points, scores)
    overlay = options.out / 'demo_overlay.png'
    frame.save(overlay)

    # The last two frames side by side, with some of the matches that the truth confirms.
    before_frame, before_points, before_scores = views[-2][:3]
    draw_rings(ImageDraw.Draw(before_frame), before_points, before_scores)
    both = Picture.new('RGB', (2 * frame.width, frame.height))
    both.paste(before_frame, (0, 0))
    both.paste(frame, (frame.width, 0))
    draw = ImageDraw.Draw(both)
    for i, j, right in zip(first, second, good):
        if right and i % 8 == 0:  # keypoints come best first; every eighth shows enough
            draw.line((*before_points[i], points[j][0] + frame.width, points[j][1]), fill=(0, 200, 80))
    matches = options.out / 'demo_matches.png'
    both.save(matches)

    latency50, latency95 = np.percentile(latencies, [50, 95])
    print(f'frames     {len(counts)} sent, {len(counts)} answered')
    print(f'keypoints  {np.mean(counts):.0f} a frame ({min(counts)} to {max(counts)})')
    print(f'latency    p50 {latency50:.0f} ms, p95 {latency95:.0f} ms, from publishing an image to its keypoints')
    print(f'matches    {agreeing} of {matched} ({100 * agreeing / max(matched, 1):.1f} %) between consecutive frames agree '
          f'with the known motion within {TRUE_WITHIN_PIXELS} px')
    print(f'overlay    {overlay}')
    print(f'matches    {matches}')
    if status != 0:
        sys.exit(f'demo: the node ended with status {status}, not 0')


if __name__ == '__main__':
    main()
