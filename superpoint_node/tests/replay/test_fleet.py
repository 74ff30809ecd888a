"""`eval/fleet.py`: what it takes for recordings, and a Ray cluster of two local workers that are killed."""

import importlib.util
import json
import os
import pathlib
import shlex
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
# For runs of a minute, on a machine that may be busy with other work.
LIMIT_SECS = 1800
# Ray gives up on its own processes when they are slow to answer.
PATIENT = dict(os.environ, RAY_worker_register_timeout_seconds='600', RAY_health_check_failure_threshold='100')


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


def module():
    """The script's functions."""
    spec = importlib.util.spec_from_file_location('fleet', SCRIPT)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def start(*words):
    return subprocess.Popen([sys.executable, SCRIPT, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=PATIENT)


def ended(running, limit=LIMIT_SECS):
    """What a run printed and said, as soon as it has ended; if it does not, what ran below it."""
    try:
        return running.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        below = '\n'.join(f'{pid} {command[:150]}' for pid, command in descendants(running.pid))
        running.send_signal(signal.SIGINT)
        try:
            printed, said = running.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            running.kill()
            printed, said = running.communicate()
        pytest.fail(f'did not end in {limit} s; below it ran\n{below}\nit printed\n{printed}\nand said\n{said}')


def unlucky(folder):
    """`superpoint`, of which one call waits until it is killed, and one kills its worker when its report is written."""
    path = folder / 'unlucky'
    real = shlex.quote(str(bags.program('superpoint')))
    path.write_text(f'''#!/bin/sh
cd {shlex.quote(str(folder))}
echo "$2" >> calls
if mkdir waits 2> /dev/null; then echo $$ $PPID > waits/pids.part; mv waits/pids.part waits/pids; exec sleep 100000; fi
if [ "${{2##*/}}" = drive ] && mkdir kills 2> /dev/null; then {real} "$@"; echo $? > kills/status; kill -KILL $PPID; sleep 100000; fi
exec {real} "$@"
''')
    path.chmod(0o755)
    return path


def alive(pid):
    try:
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0] != 'Z'
    except OSError:
        return False


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

    def words(program):
        return [drives, '--out', out, '--workers', '2', '--program', program, '--', '--backend', 'cpu']
    running = start(*words(unlucky(tmp_path)))
    waiting, deadline = tmp_path / 'waits' / 'pids', time.monotonic() + LIMIT_SECS
    while not waiting.exists() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if not waiting.exists():
        printed, said = ended(running, limit=1)
        pytest.fail(f'no replay was started: {printed}\n{said}')
    replay, worker = map(int, waiting.read_text().split())
    command = dict(descendants(running.pid))[worker]
    assert command.startswith('ray::replay') and alive(replay), command
    os.kill(worker, signal.SIGKILL)
    printed, said = ended(running)
    assert running.returncode == 3, said  # the two that were broken from the start
    # Two workers were killed, one in the middle of a replay and one with nothing below it any more.
    calls = (tmp_path / 'calls').read_text().split()
    assert len(calls) == 8 and len(set(calls)) == 6, calls
    assert (tmp_path / 'kills' / 'status').read_text() == '0\n', said
    assert not alive(replay), 'a replay went on without its worker'
    rows = {row['name']: row for row in json.loads((out / 'fleet.json').read_text())}
    assert len(rows) == 6
    good = [row for row in rows.values() if row['name'].startswith('drive-')]
    assert len(good) == 4 and all(row['status'] == 'done' and row['images'] == 8 for row in good), rows
    assert len({row['keypoints_mean'] for row in good}) == 1
    assert rows['cut']['status'] == 'damaged' and 0 < rows['cut']['images'] < 8 and 'cut off' in rows['cut']['note']
    assert rows['note']['status'] == 'failed' and 'neither MCAP' in rows['note']['note']
    assert printed.count('\n') == 8 and not list(out.glob('*.unfinished')), list(out.iterdir())

    # Again: only what failed is tried again.
    before = {path: path.stat().st_mtime_ns for path in out.glob('drive-*/report.json')}
    printed, said = ended(start(*words(bags.program('superpoint'))))
    assert '1 of 1: note failed' in said, said
    assert before == {path: path.stat().st_mtime_ns for path in out.glob('drive-*/report.json')}
    _, said = ended(start(*words(bags.program('superpoint')), '--every', '2'))
    assert 'other options' in said


def test_an_interrupted_replay_is_not_done_and_a_lossy_one_is_damaged(tmp_path):
    pictures = bags.photos(3)
    bags.write(tmp_path / 'drives' / 'long', bags.messages(pictures * 40))
    lossy = bags.write(tmp_path / 'drives' / 'lossy', bags.messages(pictures))
    metadata = (lossy / 'metadata.yaml').read_text()
    (lossy / 'metadata.yaml').write_text(metadata.replace('message_count: 3', 'message_count: 5'))
    # A replay of the long one is interrupted once, in its middle.
    program = tmp_path / 'program'
    real = shlex.quote(str(bags.program('superpoint')))
    program.write_text(f'''#!/bin/sh
if [ "${{2##*/}}" = long ] && mkdir {shlex.quote(str(tmp_path / 'once'))} 2> /dev/null; then exec timeout -s TERM 3 {real} "$@"; fi
exec {real} "$@"
''')
    program.chmod(0o755)
    words = [tmp_path / 'drives', '--out', tmp_path / 'out', '--workers', '1', '--program', program, '--', '--backend', 'cpu']
    running = start(*words)
    _, said = ended(running)
    rows = {row['name']: row for row in json.loads((tmp_path / 'out' / 'fleet.json').read_text())}
    assert running.returncode == 3 and rows['long']['status'] == 'failed' and 'interrupted' in rows['long']['note'], (rows, said)
    assert (rows['lossy']['status'], rows['lossy']['images'], rows['lossy']['lost']) == ('damaged', 3, 2), rows
    ended(start(*words))
    rows = {row['name']: row for row in json.loads((tmp_path / 'out' / 'fleet.json').read_text())}
    assert (rows['long']['status'], rows['long']['images']) == ('done', 120), rows


@pytest.mark.parametrize('options', [['--workers', '0'], ['--cores', '64', '--workers', '1'], ['--tries', '0']])
def test_what_could_never_start_is_wrong_usage(tmp_path, options):
    done = subprocess.run([sys.executable, SCRIPT, str(tmp_path), '--out', str(tmp_path / 'out'), *options],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and 'Traceback' not in done.stderr, done.stderr


def test_files_of_one_recording_are_not_taken_apart(tmp_path):
    found = module().recordings

    def files(folder, *names):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).write_bytes(b'')
        return folder
    with_metadata = files(tmp_path / 'drives' / 'a', 'metadata.yaml', 'x.mcap', 'y.mcap')
    # rosbag2 names the files FOLDER_0, FOLDER_1 and so on; folders may have got another name since.
    parts = files(tmp_path / 'drives' / 'b' / 'drive', *(f'drive_{part}.db3.zstd' for part in (9, 10, 11)))
    renamed = files(tmp_path / 'drives' / 'c', 'drive_0.mcap', 'drive_1.mcap', 'notes.txt')
    separate = files(tmp_path / 'drives', 'run_2026_11_29.mcap', 'run_2026_11_30.mcap', 'other.db3')
    leading = files(tmp_path / 'drives' / 'd', 'night-10_00.mcap', 'night-10_01.mcap')
    expected = {with_metadata, parts, renamed, *separate.glob('*.*'), *leading.iterdir()}
    listed = found([str(tmp_path / 'drives')])
    assert len(listed) == len(expected) == 8 and set(listed) == {path.resolve() for path in expected}
    # The folder itself, and what lies deeper than a recording's own files.
    assert found([str(renamed)]) == [renamed.resolve()]
    below = files(renamed / 'more', 'evening.mcap')
    assert found([str(renamed)]) == [renamed.resolve(), (below / 'evening.mcap').resolve()]
    # A list names what it names.
    (tmp_path / 'list.txt').write_text(f'# two\n{parts}\n\n{renamed}/drive_0.mcap\n')
    assert found([f'@{tmp_path}/list.txt', str(parts)]) == [parts.resolve(), (renamed / 'drive_0.mcap').resolve()]


@pytest.mark.parametrize('option', [['--out', 'x.mcap'], ['--out=x.mcap'], ['--report', 'x'], ['--report=x']])
def test_replays_are_not_told_to_write_one_file(tmp_path, option):
    running = start(tmp_path, '--out', tmp_path / 'out', '--program', bags.program('superpoint'), '--', *option)
    _, said = ended(running)
    assert running.returncode == 2 and option[0].split('=')[0] in said.splitlines()[-1], said
    assert not (tmp_path / 'out').exists() and 'Traceback' not in said
