"""The Python examples, on the frames of the demo; where OpenCV is installed."""

import sys

import numpy as np
import pytest

from conftest import ROOT, image

cv2 = pytest.importorskip('cv2', reason='OpenCV is not among the wheels; tested where it is installed')
sys.path.insert(0, str(ROOT / 'examples'))

import camera_motion  # noqa: E402
import opencv_types  # noqa: E402
from sequence import frames, project  # noqa: E402


@pytest.fixture(scope='module')
def pair(shared):
    """Two answers, and the homography from the first frame to the second."""
    (first, from_first), (second, from_second) = list(frames(12))[2:4]
    answers = [shared.detect(image(np.asarray(frame), 'rgb8')) for frame in (first, second)]
    return (*answers, np.linalg.inv(from_second) @ from_first)


def test_opencv_types(pair):
    first, second, homography = pair
    found, matrices = [opencv_types.keypoints(message) for message in (first, second)], \
        [opencv_types.descriptors(message) for message in (first, second)]
    assert isinstance(found[0][0], cv2.KeyPoint) and matrices[0].dtype == np.float32
    matches = cv2.BFMatcher(cv2.NORM_L2, crossCheck=True).match(*matrices)
    points = np.array([[found[0][m.queryIdx].pt, found[1][m.trainIdx].pt] for m in matches])
    error = np.linalg.norm(project(homography, points[:, 0]) - points[:, 1], axis=1)
    assert np.mean(error < 3) > 0.5, 'most matches are true ones'


def test_camera_motion(pair):
    first, second, _ = pair
    camera_matrix = np.array([[600.0, 0, 319.5], [0, 600, 239.5], [0, 0, 1]])
    rotation, direction, count = camera_motion.motion(first, second, camera_matrix, np.zeros(5))
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-6)
    assert abs(np.linalg.norm(direction) - 1) < 1e-6 and count > 50
