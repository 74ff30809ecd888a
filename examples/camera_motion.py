#!/usr/bin/env python3
"""Camera motion between frames: matches of two Keypoints messages into cv2.findEssentialMat.

    ros2 run superpoint_p150 camera_motion.py --ros-args -r keypoints:=/camera/keypoints \\
        -r camera_info:=/camera/camera_info

Prints for each frame the rotation since the one before, and the direction of the motion (a single camera cannot tell
how far it went).
"""

import cv2
import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CameraInfo
from superpoint_p150.msg import Keypoints


def arrays(message):
    """Points (N x 2) and descriptors (N x dim) of a message."""
    points = np.asarray(message.points, np.float64).reshape(-1, 2)
    dtype = {Keypoints.FLOAT32: '<f4', Keypoints.FLOAT16: '<f2'}[message.descriptor_type]
    return points, np.frombuffer(message.descriptors, dtype).reshape(-1, message.descriptor_dim).astype(np.float32)


def mutual_matches(first, second):
    """Rows that are each other's nearest neighbour. Descriptors have unit length: the product is the cosine."""
    if not len(first) or not len(second):
        return np.empty(0, int), np.empty(0, int)
    cosine = first @ second.T
    forward, backward = cosine.argmax(1), cosine.argmax(0)
    mutual = backward[forward] == np.arange(len(first))
    return np.flatnonzero(mutual), forward[mutual]


def motion(first, second, camera_matrix, distortion):
    """Rotation (3 x 3), direction (3) and number of inliers from one message's camera to the next one's, or None."""
    (points_a, descriptors_a), (points_b, descriptors_b) = arrays(first), arrays(second)
    rows_a, rows_b = mutual_matches(descriptors_a, descriptors_b)
    if len(rows_a) < 8:
        return None
    # Undistorted, on the plane at distance 1: the camera matrix is then the identity.
    normalised = [cv2.undistortPoints(points[:, None], camera_matrix, distortion)[:, 0]
                  for points in (points_a[rows_a], points_b[rows_b])]
    one_pixel = 1 / camera_matrix[0, 0]
    essential, inliers = cv2.findEssentialMat(
        *normalised, np.eye(3), method=cv2.RANSAC, prob=0.999, threshold=one_pixel)
    if essential is None or essential.shape != (3, 3):
        return None
    count, rotation, direction, _ = cv2.recoverPose(essential, *normalised, np.eye(3), mask=inliers)
    return rotation, direction[:, 0], count


class CameraMotion(Node):
    """Motion from frame to frame."""

    def __init__(self):
        super().__init__('camera_motion')
        self.camera = None
        self.before = None
        self.create_subscription(CameraInfo, 'camera_info', self.on_info, qos_profile_sensor_data)
        self.create_subscription(Keypoints, 'keypoints', self.on_keypoints, 10)

    def on_info(self, message):
        self.camera = np.array(message.k).reshape(3, 3), np.array(message.d)

    def on_keypoints(self, message):
        if self.camera is None:
            self.get_logger().warning('waiting for camera_info', once=True)
        elif message.descriptor_dim == 0:
            self.get_logger().warning('no descriptors: set return_descriptors of the SuperPoint node', once=True)
        else:
            found = motion(self.before, message, *self.camera) if self.before else None
            self.before = message
            if found:
                rotation, direction, count = found
                degrees = np.rad2deg(np.linalg.norm(cv2.Rodrigues(rotation)[0]))
                self.get_logger().info(f'rotation {degrees:.2f} degrees, direction {direction.round(3)}, '
                                       f'{count} inliers')


def main():
    rclpy.init()
    try:
        rclpy.spin(CameraMotion())
    except (KeyboardInterrupt, rclpy.executors.ExternalShutdownException):
        pass


if __name__ == '__main__':
    main()
