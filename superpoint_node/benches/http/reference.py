"""The same contract in Python, to compare speeds with: Pillow, numpy and ONNX Runtime, as one would write it.

Only for `superpoint bench http --against`. Needs numpy, pillow, onnx, onnxruntime and safetensors:

    python reference.py --port 20001
    superpoint bench http photo.jpg --against http://127.0.0.1:20001
"""

import argparse
import base64
import io
import json
import pathlib
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parents[3]
HEIGHT, WIDTH = 480, 640


def network(path):
    """SuperPoint as ONNX: frame in; scores of the 8x8 cells and normalised descriptors out."""
    weights = {name: tensor.astype(np.float32) for name, tensor in load_file(path).items()}
    nodes, constants = [], []

    def conv(source, name, relu=True):
        for part in ('weight', 'bias'):
            constants.append(numpy_helper.from_array(weights[f'{name}.{part}'], f'{name}.{part}'))
        pad = weights[f'{name}.weight'].shape[-1] // 2
        nodes.append(helper.make_node('Conv', [source, f'{name}.weight', f'{name}.bias'], [name], pads=[pad] * 4))
        if not relu:
            return name
        nodes.append(helper.make_node('Relu', [name], [f'{name}.relu']))
        return f'{name}.relu'

    tensor = 'frame'
    for block in range(4):
        tensor = conv(conv(tensor, f'encoder.conv_blocks.{block}.conv_a'), f'encoder.conv_blocks.{block}.conv_b')
        if block < 3:
            nodes.append(helper.make_node('MaxPool', [tensor], [f'pool{block}'], kernel_shape=[2, 2], strides=[2, 2]))
            tensor = f'pool{block}'
    scores = conv(conv(tensor, 'keypoint_decoder.conv_score_a'), 'keypoint_decoder.conv_score_b', relu=False)
    nodes.append(helper.make_node('Softmax', [scores], ['scores'], axis=1))
    rows = conv(conv(tensor, 'descriptor_decoder.conv_descriptor_a'), 'descriptor_decoder.conv_descriptor_b', relu=False)
    nodes.append(helper.make_node('LpNormalization', [rows], ['descriptors'], axis=1, p=2))
    shape = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)  # noqa: E731
    graph = helper.make_graph(nodes, 'superpoint', [shape('frame', [1, 1, HEIGHT, WIDTH])],
                              [shape('scores', [1, 65, HEIGHT // 8, WIDTH // 8]), shape('descriptors', [1, 256, HEIGHT // 8, WIDTH // 8])],
                              constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    # Its threads would go on turning after a run, for some milliseconds, and take the cores from whoever is measured next.
    options.add_session_config_entry('session.intra_op.allow_spinning', '0')
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=['CPUExecutionProvider'])


def highest(scores, radius, axis):
    """The maximum of 2 radius + 1 neighbours along an axis, by doubling."""
    padding = [(0, 0), (0, 0)]
    padding[axis] = (radius, radius)
    window, width, wanted = np.pad(scores, padding), 1, 2 * radius + 1
    cut = lambda array, start, stop: array[start:stop] if axis == 0 else array[:, start:stop]  # noqa: E731
    while width < wanted:
        step = min(width, wanted - width)
        length = window.shape[axis] - step
        window = np.maximum(cut(window, 0, length), cut(window, step, step + length))
        width += step
    return window


def keypoints(scores, limit, threshold, radius, border=4):
    maxima = (scores == highest(highest(scores, radius, 0), radius, 1)) & (scores > threshold)
    inside = np.zeros_like(maxima)
    inside[border:-border, border:-border] = True
    rows, columns = np.nonzero(maxima & inside)
    found = scores[rows, columns]
    order = np.argsort(-found, kind='stable')[:limit if limit >= 0 else None]
    return np.stack([columns[order], rows[order]], 1), found[order]


def sample(grid, points):
    """Bilinear samples of the descriptor map (256 x 60 x 80) where transformers takes them."""
    cells = np.array([grid.shape[2], grid.shape[1]], np.float32)
    u, v = ((points - 3.5) / (8 * cells - 4.5) * (cells - 1)).T.astype(np.float32)
    left, top = np.floor(u).astype(int), np.floor(v).astype(int)
    padded = np.pad(grid, [(0, 0), (1, 1), (1, 1)])
    total = np.zeros((len(points), grid.shape[0]), np.float32)
    for x, wx in [(left, 1 - (u - left)), (left + 1, u - left)]:
        for y, wy in [(top, 1 - (v - top)), (top + 1, v - top)]:
            total += (wx * wy)[:, None] * padded[:, y + 1, x + 1].T
    return total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-12)


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    session = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        start = time.perf_counter()
        url = urlsplit(self.path)
        fields = dict(parse_qsl(url.query))
        if url.path == '/predict':
            fields = json.loads(body)
            plane = Image.open(io.BytesIO(base64.b64decode(fields['image'], validate=True))).getchannel(0)
        elif url.path == '/predict_raw':
            plane = Image.open(io.BytesIO(body)).getchannel(0)
        else:
            plane = Image.frombuffer('L', (int(fields['width']), int(fields['height'])), body)
        limit, threshold = int(fields.get('max_keypoints', 1024)), float(fields.get('keypoint_threshold', 0.005))
        radius = int(fields.get('nms_radius', 4))
        size = plane.size
        if size != (WIDTH, HEIGHT):
            plane = plane.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
        frame = np.asarray(plane, np.float32)[None, None] / np.float32(255)
        decoded = time.perf_counter()
        cells, grid = self.session.run(None, {'frame': frame})
        inferred = time.perf_counter()
        scores = cells[0, :64].reshape(8, 8, HEIGHT // 8, WIDTH // 8).transpose(2, 0, 3, 1).reshape(HEIGHT, WIDTH)
        points, found = keypoints(np.ascontiguousarray(scores), limit, threshold, radius)
        rows = sample(grid[0], points).astype(np.float16)
        extracted = time.perf_counter()
        scale = np.array([size[0] / WIDTH, size[1] / HEIGHT])
        file = io.BytesIO()
        np.savez(file, descriptors=rows)
        milliseconds = [1e3 * value for value in (decoded - start, inferred - decoded, extracted - inferred, extracted - start)]
        answer = json.dumps({
            'num_keypoints': len(points), 'keypoints': (points * scale).tolist(), 'scores': found.tolist(),
            'original_size': {'height': size[1], 'width': size[0]}, 'image_size': {'height': HEIGHT, 'width': WIDTH},
            'scale': {'x': scale[0], 'y': scale[1]},
            'params': {'max_keypoints': limit, 'keypoint_threshold': threshold, 'nms_radius': radius, 'border_removal_distance': 4},
            'serving_path': {'traced': False, 'device_nms': False},
            'timing_ms': dict(zip(('preprocess', 'device_forward', 'postprocess', 'total'), milliseconds)),
            'descriptors': {'format': 'npz', 'key': 'descriptors', 'dtype': 'float16', 'shape': list(rows.shape),
                            'data': base64.b64encode(file.getvalue()).decode()}}).encode()
        total = time.perf_counter()
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(answer)))
        stages = dict(decode=decoded - start, network=inferred - decoded, keypoints=extracted - inferred, encode=total - extracted,
                      total=total - start)
        self.send_header('Server-Timing', ', '.join(f'{name};dur={1e3 * value:.3f}' for name, value in stages.items()))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


if __name__ == '__main__':
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument('--port', type=int, default=20001)
    arguments.add_argument('--weights', default=str(next((ROOT / 'weights').glob('*.safetensors'))))
    arguments = arguments.parse_args()
    Handler.session = network(arguments.weights)
    ThreadingHTTPServer.daemon_threads = True
    print(f'listening on http://127.0.0.1:{arguments.port}', flush=True)
    ThreadingHTTPServer(('127.0.0.1', arguments.port), Handler).serve_forever()
