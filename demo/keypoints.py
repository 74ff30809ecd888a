"""Keypoints messages as numpy arrays, and what one does with them first."""

import numpy as np
from superpoint_p150.msg import Keypoints


def arrays(message):
    """Points (N x 2, pixels), scores (N) and descriptors (N x dim, or None when they are off) of a message."""
    points = np.asarray(message.points, np.float32).reshape(-1, 2)
    scores = np.asarray(message.scores, np.float32)
    if message.descriptor_dim == 0:
        return points, scores, None
    dtype = {Keypoints.FLOAT32: '<f4', Keypoints.FLOAT16: '<f2'}[message.descriptor_type]
    descriptors = np.frombuffer(bytes(message.descriptors), dtype).reshape(-1, message.descriptor_dim)
    return points, scores, descriptors.astype(np.float32)


def mutual_matches(first, second):
    """Pairs of rows that are each other's nearest neighbour, as two arrays of indices."""
    if len(first) == 0 or len(second) == 0:
        return np.empty(0, int), np.empty(0, int)
    similarity = first @ second.T
    forward, backward = similarity.argmax(1), similarity.argmax(0)
    rows = np.arange(len(first))
    mutual = backward[forward] == rows
    return rows[mutual], forward[mutual]
