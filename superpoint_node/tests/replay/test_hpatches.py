"""`eval/hpatches.py` against a second computation, point by point."""

import csv
import hashlib
import json
import math
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

cv2 = pytest.importorskip('cv2')

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'http'))
sys.path.insert(0, str(ROOT / 'eval'))
import hpatches  # noqa: E402
from servers import PHOTO, program, serve  # noqa: E402, F401

SCRIPT = ROOT / 'eval' / 'hpatches.py'
BUNDLED = ROOT / 'weights' / 'superpoint_open.safetensors'
CPU = ('--backend', 'cpu', '--weights', 'bundled')
# For runs of seconds, on a machine that may be busy with other work.
LIMIT_SECS = 900


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


def evaluate(layout, out, *options, status=0, detector=CPU):
    done = subprocess.run([sys.executable, SCRIPT, layout, '--out', out, '--program', program('superpoint'),
                           *detector, *options], capture_output=True, text=True, timeout=LIMIT_SECS)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def keypoints(layout, scene, index, tmp_path):
    """Keypoints of an image, from the command line's JSON."""
    picture = Image.open(layout / scene / f'{index}.ppm').convert('L')
    size = picture.size
    picture.resize((640, 480), Image.BILINEAR).save(tmp_path / 'picture.png')
    subprocess.run([program('superpoint'), 'detect', tmp_path / 'picture.png', '--npz', tmp_path / 'picture.npz',
                    '--max-keypoints', '1000', '--backend', 'cpu', '--weights', 'bundled'],
                   check=True, capture_output=True, timeout=LIMIT_SECS)
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
    for scene, index in [('i_dusk', 6), ('v_turn', 3)]:
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
    said = evaluate(shutil.copytree(layout, tmp_path / 'copy'), tmp_path, status=1).stderr
    assert 'another set-up' in said


def test_a_number_that_was_cut_is_not_a_number(result, tmp_path):
    lines = (result[0] / 'pairs.csv').read_bytes().splitlines(keepends=True)
    path = tmp_path / 'pairs.csv'
    whole = b''.join(lines[:4])
    for cut in (lines[4].rstrip()[:-5], lines[4].rstrip(), lines[4][:30]):
        path.write_bytes(whole + cut)
        pairs = hpatches.Pairs(path)
        assert len(pairs.rows) == 3 and path.read_bytes() == whole, cut
    # What comes next begins on a line of its own.
    column, scene, index, *values = lines[4].decode().strip().split(',')
    pairs.add(column, scene, [(int(index), dict(zip(hpatches.COLUMNS[3:], values)))])
    assert path.read_bytes() == b''.join(lines[:5]) and len(hpatches.Pairs(path).rows) == 4
    # Not even the names were written: as if there were no file.
    path.write_bytes(lines[0][:20])
    assert hpatches.Pairs(path).rows == {} and path.read_bytes() == lines[0]


def test_a_missing_image_costs_its_scene_only(layout, result, tmp_path):
    shutil.copytree(layout, tmp_path / 'layout')
    (tmp_path / 'layout' / 'i_dusk' / '3.ppm').unlink()
    done = evaluate(tmp_path / 'layout', tmp_path / 'out', status=3)
    assert 'this package, i_dusk: ' in done.stderr and 'holds no image 3' in done.stderr, done.stderr
    assert 'Traceback' not in done.stderr
    assert rows_of(tmp_path / 'out') == [row for row in rows_of(result[0]) if row['scene'] == 'v_turn']
    assert '| 5 pairs |' in done.stdout and '| 0 / 5 pairs |' in done.stdout and '| – / ' in done.stdout, done.stdout
    # A homography that is none is no wrong measurement, and once it is mended the scene is taken.
    truth = tmp_path / 'layout' / 'i_dusk' / 'H_1_4'
    shutil.copy(layout / 'i_dusk' / '3.ppm', tmp_path / 'layout' / 'i_dusk' / '3.ppm')
    truth.write_text('nan 0 0\n0 1 0\n0 0 1\n')
    done = evaluate(tmp_path / 'layout', tmp_path / 'out', status=3)
    assert 'H_1_4 is no homography' in done.stderr and 'Traceback' not in done.stderr, done.stderr
    shutil.copy(layout / 'i_dusk' / 'H_1_4', truth)
    evaluate(tmp_path / 'layout', tmp_path / 'out')
    assert sorted(map(str, rows_of(tmp_path / 'out'))) == sorted(map(str, rows_of(result[0])))


@pytest.mark.parametrize('problem, said', [
    (('--backend', 'cpu', '--weights', '/nonexistent/some.safetensors'), '/nonexistent/some.safetensors'),
    (('--url', 'http://127.0.0.1:9'), 'http://127.0.0.1:9'),
])
def test_what_cannot_start_says_so_in_a_sentence(layout, tmp_path, problem, said):
    done = evaluate(layout, tmp_path, '--transformers', status=1, detector=problem)
    assert said in done.stderr and 'Traceback' not in done.stderr, done.stderr


def test_a_server_gives_the_same_figures(layout, result, tmp_path, serve):  # noqa: F811
    for name in ('setup.json', 'pairs.csv'):
        shutil.copy(result[0] / name, tmp_path)
    running = serve(*CPU)
    printed = evaluate(layout, tmp_path, detector=('--url', running.url)).stdout
    assert '| eval | this package, over HTTP | data |' in printed
    over_http, by_command = ({(row['scene'], row['image']): list(row.values())[1:] for row in rows_of(tmp_path)
                              if row['column'] == column} for column in ('this package, over HTTP', 'this package'))
    assert len(over_http) == 10 and over_http == by_command
    # Which server it was is remembered, and so is the other column's set-up.
    said = evaluate(layout, tmp_path, detector=('--url', serve('--backend', 'cpu', '--weights', other(tmp_path)).url),
                    status=1).stderr
    assert 'another set-up' in said
    assert 'another set-up' in evaluate(layout, tmp_path, '--postprocess', 'upstream', status=1).stderr


def other(folder):
    """Weights that differ from the bundled ones, in one bit of the last tensor."""
    weights = bytearray(BUNDLED.read_bytes())
    weights[-4] ^= 1
    path = folder / 'other.safetensors'
    path.write_bytes(weights)
    return path


def test_transformers_measures_the_bundled_weights(layout, tmp_path):
    model = hpatches.Transformers('bundled')
    assert model.key() == ['transformers', hashlib.sha256(BUNDLED.read_bytes()).hexdigest()]
    pytest.importorskip('transformers', reason='large; by hand: pip install -r eval/requirements-transformers.txt')
    pictures = [hpatches.read_gray(hpatches.picture_file(layout / 'v_turn', index))[0] for index in (1, 2)]
    options = ['--max-keypoints', '1000', '--postprocess', 'upstream', *CPU]
    for ours, theirs in zip(hpatches.CommandLine(program('superpoint'), options)(pictures, tmp_path),
                            model(pictures, tmp_path), strict=True):
        same = set(map(tuple, ours.points)) & set(map(tuple, theirs.points))
        assert len(same) > 0.98 * len(ours.points) and abs(len(ours.points) - len(theirs.points)) < 10
    # The whole way, with one scene.
    shutil.copytree(layout / 'i_dusk', tmp_path / 'layout' / 'i_dusk')
    printed = evaluate(tmp_path / 'layout', tmp_path / 'out', '--transformers', '--postprocess', 'upstream').stdout
    assert '| eval | this package | upstream model, fp32 CPU | data |' in printed and '| 5 pairs |' in printed
    ours, theirs = ([float(row['repeatability']) for row in rows_of(tmp_path / 'out') if row['column'] == column]
                    for column in ('this package', 'upstream model, fp32 CPU'))
    assert len(ours) == 5 and theirs == pytest.approx(ours, abs=0.02)


# --- The measures, by figures that can be worked out by hand -----------------------------------------------------------

SHIFT = np.array([[1.0, 0, 10], [0, 1, -20], [0, 0, 1]])


def test_descriptors_are_compared_at_unit_length():
    rows = np.random.default_rng(1).normal(size=(40, 256))
    lengths = np.linspace(0.1, 10, 40)[:, None]
    first, second = hpatches.features(np.zeros((40, 2)), rows), hpatches.features(np.zeros((40, 2)), rows[::-1] * lengths)
    assert np.linalg.norm(second.descriptors, axis=1) == pytest.approx(1)
    # The longest row would be everyone's nearest.
    assert hpatches.nearest_neighbours(first.descriptors, second.descriptors).tolist() == list(range(39, -1, -1))
    # A row of zeros stays one.
    assert not hpatches.features(np.zeros((1, 2)), np.zeros((1, 256))).descriptors.any()


def test_matches_are_one_way_from_the_first_image():
    axes = np.eye(3)
    first = hpatches.features(np.zeros((3, 2)), axes[[0, 0, 2]])
    second = hpatches.features(np.zeros((2, 2)), axes[[2, 0]])
    assert hpatches.nearest_neighbours(first.descriptors, second.descriptors).tolist() == [1, 1, 0]
    none = np.zeros((0, 3))
    assert len(hpatches.nearest_neighbours(none, axes)) == len(hpatches.nearest_neighbours(axes, none)) == 0


def test_repeatability_of_a_few_points():
    # Taken to the second image: (110, 80), (310, 280), (639, 459), and one outside.
    first = np.array([[100.0, 100], [300, 300], [629, 479], [630, 100]])
    # 0 and 3 pixels from two of them, 3.01 from none but the third; the last one is not visible in the first image.
    second = np.array([[110.0, 80], [310, 283], [635.99, 459], [9.5, 100]])
    share, error = hpatches.repeatability(first, second, SHIFT)
    assert share == pytest.approx(4 / 6) and error == pytest.approx(1.5)
    # Both ways: two points beside one of the first image's count, and so does that one, once.
    share, error = hpatches.repeatability(first[:2], np.array([[110.0, 81], [110, 82]]), SHIFT)
    assert share == pytest.approx(3 / 4) and error == pytest.approx((1 + 1 + 2) / 3)
    # Something to find, but nothing found; and nothing to find.
    for one, other in [(first[:1], second[1:2]), (first[:1], second[3:]), (first[3:], second[:1])]:
        share, error = hpatches.repeatability(one, other, SHIFT)
        assert share == 0 and math.isnan(error)
    assert all(map(math.isnan, hpatches.repeatability(first[3:], second[3:], SHIFT)))


def test_the_image_ends_with_its_last_pixels():
    points = np.array([[0, 0], [639, 479], [-0.01, 5], [5, -0.01], [639.01, 5], [5, 479.01]])
    assert hpatches.inside(points).tolist() == [True, True, False, False, False, False]


def test_corners_are_those_of_the_last_pixels():
    assert hpatches.corner_error(SHIFT, np.eye(3)) == pytest.approx(math.hypot(10, 20))
    wider = np.diag([1.01, 1, 1])
    assert hpatches.corner_error(wider, np.eye(3)) == pytest.approx(0.01 * 639 / 2)
    higher = np.diag([1, 1.01, 1])
    assert hpatches.corner_error(higher, np.eye(3)) == pytest.approx(0.01 * 479 / 2)


def test_a_homography_that_is_not_found_counts_as_wrong():
    points, rows = np.array([[10.0, 10], [600, 20], [30, 400]]), np.eye(3)
    found = hpatches.features(points, rows)
    figures = hpatches.measure(found, hpatches.features(points + [10, -20], rows), SHIFT)
    assert figures['corner_error_px'] == math.inf and figures['matches'] == 3
    line = np.column_stack([np.arange(20.0), np.arange(20.0)])
    assert hpatches.estimated_homography(line, np.zeros((20, 2))) is None
    nothing = hpatches.features(np.zeros((0, 2)), np.zeros((0, 256)))
    for one, other in [(found, nothing), (nothing, found), (nothing, nothing)]:
        figures = hpatches.measure(one, other, SHIFT)
        assert figures['corner_error_px'] == math.inf and figures['matches'] == 0


def test_a_homography_is_fitted_to_matches_within_three_pixels():
    x, y = np.meshgrid(np.linspace(30, 600, 8), np.linspace(40, 440, 8))
    first = np.column_stack([x.ravel(), y.ravel()])
    second = hpatches.mapped(SHIFT, first)
    second[::4] += [40, -70]
    estimated = hpatches.estimated_homography(first, second)
    assert hpatches.corner_error(estimated, SHIFT) < 1e-3
    assert (hpatches.estimated_homography(first, second) == estimated).all()
    # From the first image to the second, not back.
    assert hpatches.mapped(estimated, first[1:2])[0] == pytest.approx(second[1], abs=1e-3)


def figures(error, repeatability=0.5, distance=1.0):
    return {'keypoints_1': 9, 'keypoints_2': 9, 'matches': 9, 'corner_error_px': error, 'repeatability': repeatability,
            'localisation_px': distance}


def test_the_table_of_a_few_pairs(tmp_path):
    pairs = hpatches.Pairs(tmp_path / 'pairs.csv')
    pairs.add('ours', 'i_a', [(2, figures(1.0, 0.25)), (3, figures(3.0, math.nan, math.nan))])
    pairs.add('ours', 'v_a', [(2, figures(5.0, 0.75, 2.0)), (3, figures(math.inf, 0.0, math.nan))])
    pairs.add('theirs', 'v_a', [(2, figures(3.01)), (3, figures(0.5))])
    for read in (pairs, hpatches.Pairs(pairs.path)):
        head, _, shares, kinds, points = hpatches.table(read, ['ours', 'theirs']).splitlines()
        assert head == '| eval | ours | theirs | data |'
        # A pair counts from its limit down; what is not there is left out of means.
        assert shares.endswith('| 0.250 / 0.500 / 0.750 | 0.500 / 0.500 / 1.000 | 4 pairs; 2 pairs |'), shares
        assert kinds.endswith('| 1.000 / 0.000 | – / 0.500 | 2 / 2 pairs; 0 / 2 pairs |'), kinds
        assert points.endswith('| 0.333 / 1.500 px | 0.500 / 1.000 px | 4 pairs; 2 pairs |'), points
    assert hpatches.table(pairs, ['theirs']).count('| 2 pairs |') == 2


def test_both_kinds_of_pictures_are_found_and_their_size_is_kept(tmp_path):
    pixels = np.zeros((50, 70, 3), np.uint8)
    pixels[..., 1] = 200
    Image.fromarray(pixels).save(tmp_path / '1.png')
    gray, size = hpatches.read_gray(hpatches.picture_file(tmp_path, 1))
    assert gray.shape == (480, 640) and size == (50, 70)
    assert (gray == np.asarray(Image.fromarray(pixels).convert('L'))[0, 0]).all() and gray[0, 0] > 100
