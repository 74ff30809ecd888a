#!/usr/bin/env python3
"""HPatches by the protocol of the published package's table.

    python3 eval/hpatches.py hpatches-sequences-release --backend cpu --out results
    python3 eval/hpatches.py hpatches-sequences-release --url http://127.0.0.1:20000 --transformers --out results

Images are made gray and 480x640 (height x width, Pillow's antialiased bilinear resize), at most 1000 keypoints with a
suppression radius of 4 are taken of each, the first image of each scene is paired with each other one, all descriptors
are matched to their nearest neighbour in the second image, and OpenCV's RANSAC fits a homography to the matches.

Measures, all in pixels of the 480x640 images (SuperPoint, arXiv:1712.07629, appendix A and section 7):
- homography: share of the pairs for which the image's corners are on average within 1, 3 and 5 pixels of where the true
  homography has them; a pair without a homography counts as wrong,
- repeatability: of the keypoints that both images could show, the share with one of the other image within 3 pixels;
  keypoints of the first image are taken to the second by the true homography,
- localisation error: mean distance of those; both are means over pairs.

Every pair's figures are appended to OUT/pairs.csv as they come, and a second run goes on where the first one ended.
A scene that cannot be read is left out and said.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 done but some scenes could not be measured.
"""

import argparse
import base64
import concurrent.futures
import csv
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import urllib.request

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 480, 640
MAX_KEYPOINTS = 1000
NMS_RADIUS = 4
THRESHOLD = 0.005
CORRECT_PX = 3.0
CORNER_PX = (1.0, 3.0, 5.0)
RANSAC_PX = 3.0
IMAGES = range(1, 7)
# The weights that `--weights bundled` means.
BUNDLED = pathlib.Path(__file__).resolve().parents[1] / 'weights' / 'superpoint_open.safetensors'
COLUMNS = ['column', 'scene', 'image', 'keypoints_1', 'keypoints_2', 'matches', 'corner_error_px', 'repeatability',
           'localisation_px']


@dataclasses.dataclass
class Features:
    """Keypoints of one 480x640 image."""

    points: np.ndarray  # N x 2, x and y, pixel centres at integers
    descriptors: np.ndarray  # N x 256, of unit length


# --- The data -----------------------------------------------------------------------------------------------------------


def scenes(folder):
    """Names of the scenes: folders `i_...` (illumination) and `v_...` (viewpoint)."""
    if not folder.is_dir():
        sys.exit(f'{folder} is no folder')
    found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[:2] in ('i_', 'v_'))
    if not found:
        sys.exit(f'{folder} holds no scenes (folders i_... and v_... with 1.ppm to 6.ppm and H_1_2 to H_1_6)')
    return found


def picture_file(folder, index):
    """Path of an image, whatever its format."""
    for ending in ('ppm', 'png', 'jpg'):
        path = folder / f'{index}.{ending}'
        if path.is_file():
            return path
    raise FileNotFoundError(f'{folder} holds no image {index} (.ppm, .png or .jpg)')


def read_gray(path):
    """The image as the network gets it, and its original size (height, width)."""
    with Image.open(path) as picture:
        gray = picture.convert('L')
    return np.asarray(gray.resize((WIDTH, HEIGHT), Image.BILINEAR)), (gray.height, gray.width)


def resized_from_original(size):
    """Maps pixels of the original image to those of the resized one; pixel centres are at integers in both."""
    x, y = WIDTH / size[1], HEIGHT / size[0]
    return np.array([[x, 0, 0.5 * x - 0.5], [0, y, 0.5 * y - 0.5], [0, 0, 1]])


def true_homography(folder, index, first_size, second_size):
    """From the first resized image to another."""
    file = folder / f'H_1_{index}'
    original = np.loadtxt(file)
    if original.shape != (3, 3) or not np.isfinite(original).all() or np.linalg.matrix_rank(original) < 3:
        raise ValueError(f'{file} is no homography: {original.tolist()}')
    return resized_from_original(second_size) @ original @ np.linalg.inv(resized_from_original(first_size))


# --- The measures -------------------------------------------------------------------------------------------------------


def mapped(homography, points):
    """Where points are in the other image."""
    homogeneous = np.column_stack([points, np.ones(len(points))]) @ homography.T
    with np.errstate(divide='ignore', invalid='ignore'):
        return homogeneous[:, :2] / homogeneous[:, 2:]


def inside(points):
    """Which points lie on the image's pixels."""
    return ((points >= 0) & (points <= [WIDTH - 1, HEIGHT - 1])).all(axis=1)


def repeatability(first, second, homography):
    """Share of the common keypoints that are found again, and their mean distance; NaN where there are none."""
    warped = mapped(homography, first)
    warped = warped[inside(warped)]
    there = second[inside(mapped(np.linalg.inv(homography), second))]
    visible = len(warped) + len(there)
    if visible == 0:
        return np.nan, np.nan
    if len(warped) == 0 or len(there) == 0:
        return 0.0, np.nan
    squared = (warped[:, None, 0] - there[None, :, 0]) ** 2 + (warped[:, None, 1] - there[None, :, 1]) ** 2
    nearest = np.sqrt(np.concatenate([squared.min(axis=1), squared.min(axis=0)]))
    found = nearest[nearest <= CORRECT_PX]
    return len(found) / visible, found.mean() if len(found) else np.nan


def nearest_neighbours(first, second):
    """Index of the most similar descriptor of the second image for each of the first."""
    if len(first) == 0 or len(second) == 0:
        return np.zeros(0, int)
    return (first @ second.T).argmax(axis=1)


def estimated_homography(first, second):
    """OpenCV's RANSAC over matched points; None if it finds none. The same points give the same answer."""
    import cv2
    if len(first) < 4:
        return None
    return cv2.findHomography(first.astype(np.float64), second.astype(np.float64), cv2.RANSAC, RANSAC_PX)[0]


def corner_error(estimated, homography):
    """Mean distance of the image's corners under both."""
    corners = np.array([[0, 0], [WIDTH - 1, 0], [0, HEIGHT - 1], [WIDTH - 1, HEIGHT - 1]], float)
    return np.linalg.norm(mapped(estimated, corners) - mapped(homography, corners), axis=1).mean()


def measure(first, second, homography):
    """The figures of one pair."""
    matches = nearest_neighbours(first.descriptors, second.descriptors)
    estimated = estimated_homography(first.points, second.points[matches])
    repeated, error = repeatability(first.points, second.points, homography)
    return {
        'keypoints_1': len(first.points), 'keypoints_2': len(second.points), 'matches': len(matches),
        'corner_error_px': np.inf if estimated is None else corner_error(estimated, homography),
        'repeatability': repeated, 'localisation_px': error,
    }


# --- Who finds the keypoints --------------------------------------------------------------------------------------------


class CommandLine:
    """`superpoint detect`, one process for a scene's images."""

    def __init__(self, program, options):
        self.program = shutil.which(program) or sys.exit(f'{program} is not a program; say where it is with --program')
        self.options = options

    def key(self):
        done = subprocess.run([self.program, 'info', *self.detector_options()], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f'{self.program} info: {done.stderr.strip()}')
        return [json.loads(done.stdout), self.options]

    def detector_options(self):
        named = zip(self.options[::2], self.options[1::2])
        return [word for name, value in named if name in ('--backend', '--weights', '--threads') for word in (name, value)]

    def __call__(self, pictures, folder):
        files = []
        for index, pixels in enumerate(pictures):
            files.append(folder / f'{index}.png')
            Image.fromarray(pixels).save(files[-1], compress_level=1)
        done = subprocess.run(
            [self.program, 'detect', *map(str, files), '--npz', str(folder / 'npz'), *self.options],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f'{self.program} detect: {done.stderr.strip()}')
        for file in files:
            with np.load(folder / 'npz' / f'{file.stem}.npz') as npz:
                yield features(npz['keypoints'], npz['descriptors'])


class Server:
    """A server with the published package's routes: this one, or the package itself."""

    def __init__(self, url):
        self.url = url.rstrip('/')

    def key(self):
        try:
            with urllib.request.urlopen(f'{self.url}/info', timeout=60) as answer:
                info = json.load(answer)
        except (OSError, ValueError) as error:
            sys.exit(f'{self.url}/info: {error}; is a server running there?')
        # What changes from start to start is not what the keypoints depend on.
        return {name: info[name] for name in ('model', 'weights', 'backend') if name in info}

    def __call__(self, pictures, folder):
        query = f'max_keypoints={MAX_KEYPOINTS}&nms_radius={NMS_RADIUS}&keypoint_threshold={THRESHOLD}'
        for pixels in pictures:
            request = urllib.request.Request(
                f'{self.url}/predict_plane?height={HEIGHT}&width={WIDTH}&{query}', pixels.tobytes(),
                {'Content-Type': 'application/octet-stream'})
            with urllib.request.urlopen(request, timeout=600) as answer:
                found = json.load(answer)
            npz = np.load(io.BytesIO(base64.b64decode(found['descriptors']['data'])))
            yield features(np.array(found['keypoints']).reshape(-1, 2), npz['descriptors'])


class Transformers:
    """The `transformers` model on the CPU."""

    def __init__(self, weights):
        self.weights = BUNDLED if weights == 'bundled' else weights and pathlib.Path(weights)
        self.lock = threading.Lock()
        self.model = None

    def key(self):
        try:
            digest = hashlib.sha256(self.weights.read_bytes()).hexdigest() if self.weights else 'hub'
        except OSError as error:
            sys.exit(f'the weights cannot be read: {error}')
        return ['transformers', digest]

    def load(self):
        import safetensors.torch
        import transformers
        settings = {'max_keypoints': MAX_KEYPOINTS, 'nms_radius': NMS_RADIUS, 'keypoint_threshold': THRESHOLD}
        if self.weights:
            model = transformers.SuperPointForKeypointDetection(transformers.SuperPointConfig(**settings))
            model.load_state_dict(safetensors.torch.load_file(self.weights))
        else:
            model = transformers.SuperPointForKeypointDetection.from_pretrained(
                'magic-leap-community/superpoint', revision='734450e9ffe229074f5998494ddc615475cdb20a', **settings)
        return model.eval()

    def __call__(self, pictures, folder):
        import torch
        with self.lock:
            self.model = self.model or self.load()
            for pixels in pictures:
                plane = torch.from_numpy(pixels.astype(np.float32) / 255).expand(1, 3, HEIGHT, WIDTH)
                with torch.no_grad():
                    found = self.model(plane)
                count = int(found.mask[0].sum())
                # They come relative to the image size, and were whole pixels.
                points = np.rint(found.keypoints[0, :count].numpy() * [WIDTH, HEIGHT])
                yield features(points, found.descriptors[0, :count].numpy())


def features(points, descriptors):
    """In double precision, descriptors of unit length also when they were stored as halves."""
    descriptors = np.asarray(descriptors, np.float64)
    norms = np.linalg.norm(descriptors, axis=1, keepdims=True)
    return Features(np.asarray(points, np.float64), descriptors / np.maximum(norms, 1e-12))


# --- The run ------------------------------------------------------------------------------------------------------------


class Pairs:
    """The table of all pairs, on disk at any time."""

    def __init__(self, path):
        self.path, self.lock, self.rows = path, threading.Lock(), {}
        written = path.read_bytes() if path.exists() else b''
        # The last line of a run that was killed may be a part of one; a number may be cut too. Its end makes it whole.
        whole = written[:written.rfind(b'\n') + 1]
        for row in csv.DictReader(io.StringIO(whole.decode(), newline='')):
            self.rows[row['column'], row['scene'], int(row['image'])] = row
        with open(path, 'a', newline='') as file:
            file.truncate(len(whole))
            if not whole:
                csv.DictWriter(file, COLUMNS).writeheader()

    def missing(self, column, scene):
        return [index for index in IMAGES[1:] if (column, scene, index) not in self.rows]

    def add(self, column, scene, rows):
        """All pairs of a scene together."""
        rows = [{'column': column, 'scene': scene, 'image': index, **figures} for index, figures in rows]
        with self.lock:
            with open(self.path, 'a', newline='') as file:
                csv.DictWriter(file, COLUMNS).writerows(rows)
            self.rows.update({(column, scene, row['image']): row for row in rows})

    def of(self, column, kind=''):
        return [row for (name, scene, _), row in self.rows.items() if name == column and scene.startswith(kind)]


def run_scene(folder, scene, detector, scratch):
    """Figures of a scene's five pairs."""
    scratch = scratch / f'{scene}-{threading.get_ident()}'
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        pictures, sizes = zip(*(read_gray(picture_file(folder / scene, index)) for index in IMAGES))
        found = list(detector(pictures, scratch))
    finally:
        shutil.rmtree(scratch)
    return [(index, measure(found[0], found[index - 1],
                            true_homography(folder / scene, index, sizes[0], sizes[index - 1])))
            for index in IMAGES[1:]]


def summary(rows):
    """The table's figures from pairs."""
    def column(name):
        return np.array([float(row[name]) for row in rows])
    errors = column('corner_error_px')
    return {
        'pairs': len(rows),
        'homography': [float((errors <= limit).mean()) for limit in CORNER_PX],
        'repeatability': float(np.nanmean(column('repeatability'))),
        'localisation_px': float(np.nanmean(column('localisation_px'))),
    }


def table(pairs, columns):
    """The card's table, in Markdown."""
    def cells(text, kind=''):
        return [text(summary(pairs.of(column, kind))) if pairs.of(column, kind) else '–' for column in columns]

    def counts(*kinds):
        # One for all columns, unless a scene failed in one of them.
        texts = [' / '.join(str(len(pairs.of(column, kind))) for kind in kinds) + ' pairs' for column in columns]
        return '; '.join(texts if len(set(texts)) > 1 else texts[:1])
    illumination, viewpoint = (cells(lambda s: f'{s["homography"][1]:.3f}', kind) for kind in ('i_', 'v_'))
    lines = [
        ['HPatches homography estimation, correct at ε = 1 / 3 / 5 px',
         *cells(lambda s: ' / '.join(f'{share:.3f}' for share in s['homography'])), counts('')],
        ['Same at ε = 3 px, illumination / viewpoint scenes',
         *(f'{i} / {v}' for i, v in zip(illumination, viewpoint)), counts('i_', 'v_')],
        ['HPatches repeatability / localisation error (ε = 3 px)',
         *cells(lambda s: f'{s["repeatability"]:.3f} / {s["localisation_px"]:.3f} px'), counts('')],
    ]
    head = ['eval', *columns, 'data']
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in [head, ['---'] * len(head), *lines])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0], epilog='\n'.join(__doc__.split('\n')[2:]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=pathlib.Path, help='the unpacked hpatches-sequences-release')
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('hpatches'), help='folder of the results')
    ours = parser.add_mutually_exclusive_group()
    ours.add_argument('--backend', default='auto', help='of `superpoint detect` [auto]')
    ours.add_argument('--url', help='a running server instead: superpoint serve, or the published package')
    parser.add_argument('--program', default='superpoint', help='where the command line is')
    parser.add_argument('--weights', help='weights file, or `bundled`, for all columns but that of --url '
                        '[what superpoint and transformers find]')
    parser.add_argument('--postprocess', choices=['package', 'upstream'], default='package',
                        help='how `superpoint detect` picks keypoints')
    parser.add_argument('--transformers', action='store_true', help="a second column: the `transformers` model, fp32")
    parser.add_argument('--jobs', type=int, default=2, help='scenes at a time [2]')
    args = parser.parse_args()
    if args.jobs < 1:
        parser.error(f'--jobs is {args.jobs}, but must be 1 or more')
    return args


def main():
    args = arguments()
    detectors = {}
    if args.url:
        detectors['this package, over HTTP'] = Server(args.url)
    else:
        options = ['--backend', args.backend, '--max-keypoints', str(MAX_KEYPOINTS), '--nms-radius', str(NMS_RADIUS),
                   '--keypoint-threshold', str(THRESHOLD), '--postprocess', args.postprocess]
        if args.weights:
            options += ['--weights', args.weights]
        detectors['this package'] = CommandLine(args.program, options)
    if args.transformers:
        detectors['upstream model, fp32 CPU'] = Transformers(args.weights)

    names = scenes(args.folder)
    args.out.mkdir(parents=True, exist_ok=True)
    # Pairs of another set-up must not be mixed with this one's.
    setup = json.dumps({'folder': str(args.folder.resolve()),
                        'columns': {name: detector.key() for name, detector in detectors.items()}}, sort_keys=True)
    setup_file = args.out / 'setup.json'
    if setup_file.exists():
        before = json.loads(setup_file.read_text())
        now = json.loads(setup)
        for name, key in now['columns'].items():
            if before['folder'] != now['folder'] or before['columns'].get(name, key) != key:
                sys.exit(f'{args.out} holds results of another set-up; choose another --out, or remove it')
        now['columns'] = before['columns'] | now['columns']
        setup = json.dumps(now, sort_keys=True)
    setup_file.write_text(setup)

    pairs = Pairs(args.out / 'pairs.csv')
    todo = [(column, scene) for column in detectors for scene in names if pairs.missing(column, scene)]
    failed = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = {pool.submit(run_scene, args.folder, scene, detectors[column], args.out / 'scratch'): (column, scene)
                   for column, scene in todo}
        for done, future in enumerate(concurrent.futures.as_completed(running), 1):
            column, scene = running[future]
            try:
                pairs.add(column, scene, [(index, figures) for index, figures in future.result()
                                          if index in pairs.missing(column, scene)])
            except Exception as error:  # one scene's failure is not the end of the others
                failed.append(scene)
                print(f'\n{column}, {scene}: {error}', file=sys.stderr)
            if sys.stderr.isatty():
                print(f'\r{done} of {len(todo)} scenes', end='', file=sys.stderr, flush=True)
    if todo and sys.stderr.isatty():
        print(file=sys.stderr)
    complete = [column for column in detectors if pairs.of(column)]
    if complete:
        (args.out / 'summary.json').write_text(json.dumps(
            {column: {kind or 'all': summary(pairs.of(column, kind)) for kind in ('', 'i_', 'v_') if pairs.of(column, kind)}
             for column in complete}, indent=1))
        print(table(pairs, complete))
    return 3 if failed else 0


if __name__ == '__main__':
    os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
    sys.exit(main())
