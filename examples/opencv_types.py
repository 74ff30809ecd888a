#!/usr/bin/env python3
"""Keypoints messages as OpenCV's types: cv2.KeyPoint and a matrix of descriptors.

    ros2 run superpoint_p150 opencv_types.py --ros-args -r keypoints:=/camera/keypoints

Prints for each message what it holds, and how many of its keypoints cv2.BFMatcher finds again in the next.
"""

import cv2
import numpy as np
import rclpy
from rclpy.node import Node
from superpoint_p150.msg import Keypoints


def descriptors(message):
    """The N x 256 matrix of descriptors as float32, or None when the node does not send them."""
    if message.descriptor_dim == 0:
        return None
    dtype = {Keypoints.FLOAT32: '<f4', Keypoints.FLOAT16: '<f2'}[message.descriptor_type]
    rows = np.frombuffer(message.descriptors, dtype).reshape(-1, message.descriptor_dim)
    return rows.astype(np.float32)


def keypoints(message):
    """A list of cv2.KeyPoint. Pixel centres are at integers in both, so coordinates are taken over as they are."""
    points = np.asarray(message.points, np.float32).reshape(-1, 2)
    # The network sees 8 pixels of its 640-wide frame at a time; OpenCV wants to know how large that is in the image.
    size = 8 * message.image_width / 640
    return [cv2.KeyPoint(float(x), float(y), size, -1, float(score))
            for (x, y), score in zip(points, message.scores)]


class OpenCvTypes(Node):
    """Matches each frame with the one before."""

    def __init__(self):
        super().__init__('opencv_types')
        self.matcher = cv2.BFMatcher(cv2.NORM_L2, crossCheck=True)
        self.before = None
        self.create_subscription(Keypoints, 'keypoints', self.on_keypoints, 10)

    def on_keypoints(self, message):
        found, matrix = keypoints(message), descriptors(message)
        if matrix is None:
            self.get_logger().warning('no descriptors: set return_descriptors of the SuperPoint node', once=True)
            return
        matches = self.matcher.match(self.before, matrix) if self.before is not None and len(matrix) else []
        self.get_logger().info(f'{len(found)} keypoints, {len(matches)} of them matched with the frame before')
        self.before = matrix if len(matrix) else None


def main():
    rclpy.init()
    try:
        rclpy.spin(OpenCvTypes())
    except (KeyboardInterrupt, rclpy.executors.ExternalShutdownException):
        pass


if __name__ == '__main__':
    main()
