"""Makes the first corpus: small valid inputs and the ways to get them wrong. The fuzzers go on from there."""

import base64
import io
import json
import pathlib

import numpy as np
from PIL import Image

HERE = pathlib.Path(__file__).parent
rng = np.random.default_rng(1)
small = Image.fromarray(rng.integers(0, 256, (19, 23, 3), np.uint8))


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


pictures = {
    'gray.png': encoded(small.convert('L'), 'PNG'), 'rgb.png': encoded(small, 'PNG'), 'rgba.png': encoded(small.convert('RGBA'), 'PNG'),
    'palette.png': encoded(small.convert('P'), 'PNG'), 'deep.png': encoded(Image.fromarray(np.zeros((9, 7), np.uint16)), 'PNG'),
    'bits.png': encoded(small.convert('1'), 'PNG'), 'empty': b'', 'text': b'no picture', 'gif': encoded(small, 'GIF'),
    'cmyk.jpg': encoded(small.convert('CMYK'), 'JPEG'), 'gray.jpg': encoded(small.convert('L'), 'JPEG'),
}
for subsampling in (0, 1, 2):
    for progressive in (False, True):
        name = f'{"progressive" if progressive else "baseline"}{subsampling}.jpg'
        pictures[name] = encoded(small, 'JPEG', quality=60, subsampling=subsampling, progressive=progressive)
pictures['restarts.jpg'] = encoded(small, 'JPEG', quality=60, restart_marker_blocks=1)
pictures['cut.jpg'] = pictures['progressive2.jpg'][:-60]
pictures['cut.png'] = pictures['rgb.png'][:-60]

text = base64.b64encode(pictures['gray.jpg']).decode()
bodies = [
    json.dumps({'image': text}), json.dumps({'image': base64.b64encode(pictures['gray.png']).decode(), 'max_keypoints': -1,
               'keypoint_threshold': 0.5, 'nms_radius': 0, 'return_descriptors': False}),
    json.dumps({'image': text}).replace('/', '\\/'), json.dumps({'image': text[:-1]}), json.dumps({'image': text[:7] + '!' + text[8:]}),
    '', '{', '{}', '[]', 'null', '"x"', '{"image": null}', '{"image": 5}', '{"image": ""}', '{"image": "AAAA", "max_keypoint": 5}',
    '{"image": "AAAA", "image": "AAAA"}', '{"image": "AAAA"} x', '{"image": "\\ud800"}', '{"image": "data:image/png;base64,AAAA"}',
    '{"image": "AAAA", "nms_radius": 4.0}', '{"image": "AAAA", "nms_radius": 1e999}', '{"image": "AAAA", "max_keypoints": 1e30}',
    '{"image": "AAAA", "keypoint_threshold": -0.0}', '{"image": "AAAA", "keypoint_threshold": "0.1"}',
    '{"image": "AAAA", "return_descriptors": 1}', '{"image": "AAAA", "nms_radius": {"a": [1, 2, {}]}}', '[' * 300,
    ' \n{"image":"\\u0041AAA"}', '{"image": "ÄÖ"}',
]
for folder, files in {
    # The first three are in order.
    'picture': pictures, 'predict': {f'{"good" if n < 3 else "bad"}{n:02}': body.encode() for n, body in enumerate(bodies)},
    'npz': {f'bytes{n:02}': rng.bytes(size) for n, size in enumerate([0, 1, 2, 50, 96, 97, 98, 193, 194, 195, 500, 1000])},
}.items():
    (HERE / 'corpus' / folder).mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (HERE / 'corpus' / folder / name).write_bytes(data)
