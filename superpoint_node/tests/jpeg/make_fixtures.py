"""Makes the JPEGs here and, beside each, the first channel that Pillow decodes from it, as PNG.

Needs Pillow, numpy and opencv-python (for the 4:4:0 file); run in this folder. Photo: the astronaut of scikit-image,
public domain (NASA), as in tt_backend/tests/golden.
"""

import io
import pathlib

import cv2
import numpy as np
from PIL import Image

HERE = pathlib.Path(__file__).parent
PHOTO = Image.open(HERE.parents[2] / 'tt_backend/tests/golden/astronaut_512x512.png').convert('RGB')
SMALL = PHOTO.crop((150, 40, 150 + 93, 40 + 75))  # odd: units and half samples are cut

FILES = {
    'baseline_420': dict(quality=75, subsampling=2),
    'baseline_422': dict(quality=90, subsampling=1),
    'baseline_444': dict(quality=95, subsampling=0, optimize=True),
    'progressive_420': dict(quality=85, subsampling=2, progressive=True),
    'progressive_444': dict(quality=97, subsampling=0, progressive=True),
    'coarse_420': dict(quality=5, subsampling=2, progressive=True),
    'restarts_420': dict(quality=80, subsampling=2, restart_marker_blocks=3),
    'restarts_progressive': dict(quality=80, subsampling=1, progressive=True, restart_marker_rows=1),
    'rgb': dict(quality=90, keep_rgb=True),
}


def save(name, file):
    (HERE / f'{name}.jpg').write_bytes(file)
    decoded = np.asarray(Image.open(io.BytesIO(file)))
    first = decoded if decoded.ndim == 2 else decoded[:, :, 0]
    Image.fromarray(np.ascontiguousarray(first)).save(HERE / f'{name}.png', optimize=True)


def encoded(image, **options):
    file = io.BytesIO()
    image.save(file, 'JPEG', **options)
    return file.getvalue()


for name, options in FILES.items():
    save(name, encoded(SMALL, **options))
save('gray', encoded(SMALL.convert('L'), quality=85))
save('gray_progressive', encoded(SMALL.convert('L'), quality=85, progressive=True))
save('large_progressive_420', encoded(PHOTO, quality=70, subsampling=2, progressive=True))
save('narrow_420', encoded(SMALL.crop((0, 0, 3, 40)), quality=85, subsampling=2))
options = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440, cv2.IMWRITE_JPEG_QUALITY, 85]
save('baseline_440', cv2.imencode('.jpg', np.asarray(SMALL)[:, :, ::-1], options)[1].tobytes())
