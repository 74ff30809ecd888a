"""A photo sequence with known truth: a camera that moves over a picture, each view a homography of it."""

import importlib.util
import pathlib

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 640, 480


def photo():
    """The astronaut Eileen Collins, photographed by NASA (public domain), from the scikit-image distribution."""
    package = importlib.util.find_spec('skimage')
    if package is None:
        raise SystemExit('demo: scikit-image, which carries the photo, is not installed; run `make demo`, or '
                         'pip install scikit-image')
    directory = pathlib.Path(package.submodule_search_locations[0])
    return Image.open(directory / 'data' / 'astronaut.png').convert('RGB')


def view(step, count):
    """Homography from a frame to the photo, pixel centres at integers in both."""
    phase = 2 * np.pi * step / count
    angle = np.deg2rad(9) * np.sin(phase)
    zoom = 0.62 + 0.06 * np.cos(phase)
    cos, sin = zoom * np.cos(angle), zoom * np.sin(angle)
    centre_x, centre_y = 250 + 35 * np.sin(phase), 215 + 25 * np.cos(phase)
    tilt_x, tilt_y = 0.04 * np.sin(2 * phase) / WIDTH, 0.04 * np.cos(phase) / HEIGHT
    to_centre = np.array([[1, 0, -(WIDTH - 1) / 2], [0, 1, -(HEIGHT - 1) / 2], [0, 0, 1]])
    camera = np.array([
        [cos + centre_x * tilt_x, -sin + centre_x * tilt_y, centre_x],
        [sin + centre_y * tilt_x, cos + centre_y * tilt_y, centre_y],
        [tilt_x, tilt_y, 1],
    ])
    return camera @ to_centre


def render(picture, homography):
    """The frame that a view of the picture shows."""
    # Pillow samples at (x + 0.5, y + 0.5) of a plane whose first pixel spans 0 to 1.
    corner = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    matrix = corner @ homography @ np.linalg.inv(corner)
    coefficients = (matrix / matrix[2, 2]).flatten()[:8]
    return picture.transform((WIDTH, HEIGHT), Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BICUBIC)


def project(homography, points):
    """Points (N x 2) through a homography."""
    projected = np.column_stack([points, np.ones(len(points))]) @ homography.T
    return projected[:, :2] / projected[:, 2:]


def frames(count):
    """Yield `count` pairs of a frame and its homography to the photo."""
    picture = photo()
    for step in range(count):
        homography = view(step, count)
        yield render(picture, homography), homography
