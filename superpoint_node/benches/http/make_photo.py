"""A 1600x900 photo as JPEG, progressive as the model card's sample is, or baseline.

The astronaut of scikit-image (public domain, NASA), enlarged, with the grain that a camera adds.
"""

import argparse
import pathlib

import numpy as np
from PIL import Image

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument('file', help='where it is written')
parser.add_argument('--baseline', action='store_true', help='not progressive')
arguments = parser.parse_args()

ROOT = pathlib.Path(__file__).resolve().parents[3]
photo = Image.open(ROOT / 'tt_backend/tests/golden/astronaut_512x512.png').convert('RGB').resize((1600, 900), Image.Resampling.BICUBIC)
grain = np.random.default_rng(1).normal(0, 6, (900, 1600, 1))
noisy = Image.fromarray(np.clip(np.asarray(photo) + grain, 0, 255).astype(np.uint8))
noisy.save(arguments.file, 'JPEG', quality=75, progressive=not arguments.baseline)
