"""`eval/hpatches.py` against a second computation, point by point."""

import csv
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

cv2 = pytest.importorskip('cv2')

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'http'))
from servers import PHOTO, program  # noqa: E402

SCRIPT = ROOT / 'eval' / 'hpatches.py'


def warp(image, homography, size):
    """The image seen through a homography, as OpenCV makes it."""
    return cv2.warpPerspective(image, homography, (size[1], size[0]), flags=cv2.INTER_AREA)


@pytest.fixture(scope='module')
def layout(tmp_path_factory):
    """Two scenes in HPatches' layout, of one photo: one gets darker, one is turned and tilted."""
    folder = tmp_path_factory.mktemp('hpatches')
    photo = np.asarray(Image.open(PHOTO).convert('RGB').resize((720, 500)))
    for scene in ('i_dusk', 'v_turn'):
        (folder / scene).mkdir()
        Image.fromarray(photo).save(folder / scene / '1.ppm')
        for index in range(2, 7):
            if scene == 'i_dusk':
                homography, picture = np.eye(3), (photo * (1 - 0.12 * index)).astype(np.uint8)
            else:
                angle = 0.08 * index
                homography = np.array([[math.cos(angle), -math.sin(angle), 60 * index / 6],
                                       [math.sin(angle), math.cos(angle), -10 * index],
                                       [1e-5 * index, -2e-5 * index, 1]])
                picture = warp(photo, homography, (460 + 10 * index, 760))
            Image.fromarray(picture).save(folder / scene / f'{index}.ppm')
            np.savetxt(folder / scene / f'H_1_{index}', homography)
    return folder


def evaluate(layout, out, *options, status=0):
    done = subprocess.run([sys.executable, SCRIPT, layout, '--out', out, '--program', program('superpoint'),
                           '--backend', 'cpu', '--weights', 'bundled', *options],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def keypoints(layout, scene, index, tmp_path):
    """Keypoints of an image, from the command line's JSON."""
    picture = Image.open(layout / scene / f'{index}.ppm').convert('L')
    size = picture.size
    picture.resize((640, 480), Image.BILINEAR).save(tmp_path / 'picture.png')
    subprocess.run([program('superpoint'), 'detect', tmp_path / 'picture.png', '--npz', tmp_path / 'picture.npz',
                    '--max-keypoints', '1000', '--backend', 'cpu', '--weights', 'bundled'],
                   check=True, capture_output=True, timeout=60)
    with np.load(tmp_path / 'picture.npz') as npz:
        return npz['keypoints'].astype(float), npz['descriptors'].astype(float), size


def take(homography, point):
    x, y, z = (sum(row[axis] * (*point, 1.0)[axis] for axis in range(3)) for row in homography)
    return x / z, y / z


def is_inside(point):
    return 0 <= point[0] <= 639 and 0 <= point[1] <= 479


def second_computation(layout, scene, index, tmp_path):
    """The pair's figures by loops over points."""
    points, rows, (width, height) = keypoints(layout, scene, 1, tmp_path)
    others, other_rows, (other_width, other_height) = keypoints(layout, scene, index, tmp_path)
    given = np.loadtxt(layout / scene / f'H_1_{index}')

    def truth(point):
        # Through the originals: corners of the images meet, so pixel centres are half a pixel off.
        original = ((point[0] + 0.5) * width / 640 - 0.5, (point[1] + 0.5) * height / 480 - 0.5)
        x, y = take(given, original)
        return (x + 0.5) * 640 / other_width - 0.5, (y + 0.5) * 480 / other_height - 0.5

    def back(point):
        original = ((point[0] + 0.5) * other_width / 640 - 0.5, (point[1] + 0.5) * other_height / 480 - 0.5)
        x, y = take(np.linalg.inv(given), original)
        return (x + 0.5) * 640 / width - 0.5, (y + 0.5) * 480 / height - 0.5

    warped = [at for at in map(truth, points) if is_inside(at)]
    visible = [at for at in others if is_inside(back(at))]
    distances = [min(math.dist(at, other) for other in visible) for at in warped]
    distances += [min(math.dist(at, other) for other in warped) for at in visible]
    found = [distance for distance in distances if distance <= 3]

    unit = [row / math.sqrt(sum(row * row)) for row in rows]
    other_unit = np.stack([row / math.sqrt(sum(row * row)) for row in other_rows])
    nearest = [int(np.argmin(((other_unit - row) ** 2).sum(axis=1))) for row in unit]
    cv2.setRNGSeed(0)
    estimated, _ = cv2.findHomography(points, others[nearest], cv2.RANSAC, 3.0)
    corners = [(0, 0), (639, 0), (0, 479), (639, 479)]
    error = sum(math.dist(take(estimated, corner), truth(corner)) for corner in corners) / 4
    return {'keypoints_1': len(points), 'keypoints_2': len(others), 'matches': len(points),
            'corner_error_px': error, 'repeatability': len(found) / len(distances),
            'localisation_px': sum(found) / len(found)}


@pytest.fixture(scope='module')
def result(layout, tmp_path_factory):
    out = tmp_path_factory.mktemp('results')
    return out, evaluate(layout, out).stdout


def rows_of(out):
    with open(out / 'pairs.csv', newline='') as file:
        return list(csv.DictReader(file))


def test_each_pair_is_measured_as_by_a_second_computation(layout, result, tmp_path):
    out, _ = result
    rows = {(row['scene'], int(row['image'])): row for row in rows_of(out)}
    assert sorted(rows) == [(scene, index) for scene in ('i_dusk', 'v_turn') for index in range(2, 7)]
    for scene, index in [('i_dusk', 4), ('v_turn', 3)]:
        expected = second_computation(layout, scene, index, tmp_path)
        for name, value in expected.items():
            assert float(rows[scene, index][name]) == pytest.approx(value, abs=1e-6), (scene, index, name)


def test_the_table_sums_up_the_pairs(result):
    out, printed = result
    rows = rows_of(out)
    errors = [float(row['corner_error_px']) for row in rows]
    shares = ' / '.join(f'{sum(error <= limit for error in errors) / len(errors):.3f}' for limit in (1, 3, 5))
    assert f'| {shares} | 10 pairs |' in printed
    mean = sum(float(row['repeatability']) for row in rows) / len(rows)
    assert f'| {mean:.3f} / ' in printed and '| 5 / 5 pairs |' in printed
    summary = json.loads((out / 'summary.json').read_text())['this package']
    assert summary['i_']['pairs'] == summary['v_']['pairs'] == 5
    # These scenes are easy ones.
    assert summary['all']['homography'][1] >= 0.8 and 0.4 < summary['all']['repeatability'] <= 1


def test_a_run_that_was_killed_goes_on(layout, result, tmp_path):
    out, printed = result
    lines = (out / 'pairs.csv').read_text().splitlines(keepends=True)
    (tmp_path / 'setup.json').write_text((out / 'setup.json').read_text())
    # Three pairs, and the beginning of a line.
    (tmp_path / 'pairs.csv').write_text(''.join(lines[:4]) + lines[4][:30])
    marked = lines[1].replace(lines[1].split(',')[6], '123.5')
    (tmp_path / 'pairs.csv').write_text((tmp_path / 'pairs.csv').read_text().replace(lines[1], marked))
    evaluate(layout, tmp_path)
    again = {(row['scene'], row['image']): row for row in rows_of(tmp_path)}
    before = {(row['scene'], row['image']): row for row in rows_of(out)}
    assert again.keys() == before.keys()
    kept = [key for key in again if again[key]['corner_error_px'] == '123.5']
    assert len(kept) == 1, 'what was there is not computed again'
    assert all(again[key] == before[key] for key in again if key not in kept)
    # Results of other settings are not mixed with these.
    said = evaluate(layout, tmp_path, '--postprocess', 'upstream', status=1).stderr
    assert 'another set-up' in said
