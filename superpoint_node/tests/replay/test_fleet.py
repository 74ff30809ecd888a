"""`eval/fleet.py` on a Ray cluster of two local workers, one of which is killed."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip('ray', reason='Ray is large; by hand: pip install -r eval/requirements-fleet.txt')
pytest.importorskip('rosbags')

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import bags  # noqa: E402

SCRIPT = ROOT / 'eval' / 'fleet.py'


def descendants(pid):
    """(pid, command line) of every process below one."""
    parents = {}
    for entry in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            parents[int(entry.name)] = (int((entry / 'stat').read_text().rsplit(')', 1)[1].split()[1]),
                                        (entry / 'cmdline').read_bytes().replace(b'\0', b' ').decode())
        except OSError:
            continue
    below, found = {pid}, []
    while True:
        more = [child for child, (parent, _) in parents.items() if parent in below and child not in below]
        if not more:
            return found
        below.update(more)
        found += [(child, parents[child][1]) for child in more]


def fleet(*words, **options):
    return subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_a_killed_worker_costs_nothing_but_time(tmp_path):
    drives = tmp_path / 'drives'
    pictures = bags.photos(8)
    for index in range(4):
        bags.write(drives / f'day{index}' / 'drive', bags.messages(pictures))
    (drives / 'note.mcap').write_bytes(b'nothing')
    cut = next(bags.write(tmp_path / 'cut', bags.messages(pictures)).glob('*.mcap'))
    cut.rename(drives / 'cut.mcap')
    os.truncate(drives / 'cut.mcap', (drives / 'cut.mcap').stat().st_size // 2)
    out = tmp_path / 'out'
    words = [drives, '--out', out, '--workers', '2', '--program', bags.program('superpoint'), '--', '--backend', 'cpu']
    running = fleet(*words)
    killed = None
    deadline = time.monotonic() + 120
    while killed is None and time.monotonic() < deadline and running.poll() is None:
        for pid, command in descendants(running.pid):
            # A worker with a replay below it.
            if command.startswith('ray::replay') and any('superpoint' in below for _, below in descendants(pid)):
                os.kill(pid, signal.SIGKILL)
                killed = pid
                break
        time.sleep(0.05)
    printed, said = running.communicate(timeout=300)
    assert killed is not None, said
    assert running.returncode == 3, said  # the two that were broken from the start
    rows = {row['name']: row for row in json.loads((out / 'fleet.json').read_text())}
    assert len(rows) == 6
    good = [row for row in rows.values() if row['name'].startswith('drive-')]
    assert len(good) == 4 and all(row['status'] == 'done' and row['images'] == 8 for row in good), rows
    assert len({row['keypoints_mean'] for row in good}) == 1
    assert rows['cut']['status'] == 'damaged' and 0 < rows['cut']['images'] < 8 and 'cut off' in rows['cut']['note']
    assert rows['note']['status'] == 'failed' and 'neither MCAP' in rows['note']['note']
    assert printed.count('\n') == 8 and not list(out.glob('*.unfinished'))

    # Again: only what failed is tried again.
    before = {path: path.stat().st_mtime_ns for path in out.glob('drive-*/report.json')}
    printed, said = fleet(*words).communicate(timeout=300)
    assert '1 of 1: note failed' in said, said
    assert before == {path: path.stat().st_mtime_ns for path in out.glob('drive-*/report.json')}
    _, said = fleet(*words, '--every', '2').communicate(timeout=60)
    assert 'other options' in said
