#!/usr/bin/env python3
"""Many recordings through `superpoint replay`, on a Ray cluster or on this machine.

    python3 eval/fleet.py drives/ --out results
    python3 eval/fleet.py drives/a drives/b.mcap --out results -- --topic /camera/image_raw --every 5
    python3 eval/fleet.py @list.txt --out results --address auto

Takes recordings, folders with recordings at any depth, and lists (@FILE, a path a line). A folder is one recording if it
has a metadata.yaml or if its files have the names that rosbag2 gives to parts (drive_0.mcap, drive_1.mcap); other files
are a recording each. What follows `--` goes to `superpoint replay`. Each recording's report lies in OUT/NAME;
OUT/fleet.csv and OUT/fleet.json have a line for each recording, and the same table is printed. A second run does only
what is missing. A recording whose worker dies is tried again, elsewhere if need be; one that `superpoint` refuses is not,
and stands in the table with the reason.

On a cluster (--address), all machines must see the recordings and OUT under the same paths, and have `superpoint`.
Exit status: 0 all done, 1 failed, 2 wrong usage, 3 some recordings failed or are damaged.
"""

import argparse
import contextlib
import csv
import ctypes
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import uuid

import ray

STORAGE = ('.mcap', '.db3', '.mcap.zstd', '.db3.zstd')
# A part of a recording: drive_0.mcap. Numbers with zeros in front are dates and times, as in night-10_00.mcap.
PART = re.compile(r'(.+)_(0|[1-9]\d*)(\.mcap|\.db3)(\.zstd)?')

# How often Ray is started: on a busy machine its own time limits (15 and 30 s, fixed) may be too short.
START_TRIES = 8

# Columns of the table: name, and where the value is in a report.
FIGURES = {
    'images': ('figures', 'images'),
    'images_per_s': ('figures', 'images_per_s'),
    'keypoints_mean': ('figures', 'keypoints', 'mean'),
    'latency_median_ms': ('figures', 'latency_ms', 'median'),
    'matches_mean': ('figures', 'matches', 'mean'),
    'inlier_ratio_mean': ('figures', 'inlier_ratio', 'mean'),
    'track_length_mean': ('figures', 'track_length', 'mean'),
    'coverage_mean': ('figures', 'coverage', 'mean'),
    'repeatability_mean': ('figures', 'truth_before', 'repeatability', 'mean'),
    'lost': ('recording', 'lost'),
}


class Died(Exception):
    """The program was killed: worth another try."""


def recordings(arguments):
    """Paths of all recordings that the arguments name, each once."""
    found = []
    for argument in arguments:
        if argument.startswith('@'):
            try:
                lines = pathlib.Path(argument[1:]).read_text().splitlines()
            except (OSError, UnicodeDecodeError) as error:
                sys.exit(f'cannot read the list {argument[1:]}: {error}')
            found += recordings([line.strip() for line in lines if line.strip() and not line.startswith('#')])
            continue
        path = pathlib.Path(argument)
        if not path.is_dir():
            found.append(path)
            continue
        for folder in sorted([path, *(inner for inner in path.rglob('*') if inner.is_dir())]):
            found += [folder] if is_recording(folder) else storage_files(folder)
    return list(dict.fromkeys(path.resolve() for path in found))


def storage_files(folder):
    """Files of a folder in which messages are stored."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(STORAGE) and path.is_file())


def is_recording(folder):
    """Whether all storage files of a folder belong together: by its metadata, or by their names.

    `superpoint replay` takes any folder for one recording; here many recordings may lie in one, and two that were taken
    for one would be counted wrongly. So names must be those of parts, beginning with the folder's or numbered from 0.
    """
    if (folder / 'metadata.yaml').is_file():
        return True
    parts = [PART.fullmatch(path.name) for path in storage_files(folder)]
    if not parts or None in parts or len({part[1] for part in parts}) > 1:
        return False
    return parts[0][1] == folder.resolve().name or '0' in [part[2] for part in parts]


def names(paths):
    """A short name for each recording, with a part of its path's hash where two would have the same."""
    stems = [path.name if path.is_dir() else path.name.split('.')[0] for path in paths]
    return {path: stem if stems.count(stem) == 1 else f'{stem}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}'
            for path, stem in zip(paths, stems)}


def end_with_parent():
    """A replay whose worker was killed must not go on (Linux; elsewhere it ends by itself, unseen)."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@ray.remote
def replay(program, path, folder, options):
    """Replays one recording into its folder; what the program said, and its exit status."""
    attempt = pathlib.Path(f'{folder}.{uuid.uuid4().hex[:8]}.unfinished')
    try:
        done = subprocess.run([program, 'replay', path, '--report', str(attempt), *options],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=end_with_parent)
        if done.returncode < 0:
            raise Died(f'superpoint was ended by signal {-done.returncode}')
        # A replay that failed or was interrupted may have left a report on what it did until then.
        if done.returncode in (0, 3) and (attempt / 'report.json').is_file():
            # All at once: a folder that is there is complete.
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(attempt, folder)
        return done.returncode, done.stderr.strip()
    finally:
        shutil.rmtree(attempt, ignore_errors=True)


def line(name, path, folder, failure):
    """A recording's line of the table."""
    row = {'name': name, 'status': 'failed', 'path': str(path), 'note': failure.replace('\n', '; ')}
    if (folder / 'report.json').is_file():
        report = json.loads((folder / 'report.json').read_text())
        recording = report['recording']
        row['status'] = 'damaged' if recording['damage'] or recording['lost'] or report['rejected'] else 'done'
        row['note'] = '; '.join(recording['damage'])
        for column, keys in FIGURES.items():
            value = report
            for key in keys:
                value = value.get(key) if value is not None else None
            row[column] = value
    return row


def markdown(rows):
    """The table for people."""
    columns = ['name', 'status', *FIGURES, 'note']
    columns = [column for column in columns if any(row.get(column) not in (None, '') for row in rows)]

    def text(value):
        return '' if value is None else f'{value:.3g}' if isinstance(value, float) else str(value).replace('|', '\\|')
    lines = [columns, ['---'] * len(columns), *([text(row.get(column)) for column in columns] for row in rows)]
    return '\n'.join('| ' + ' | '.join(cells) + ' |' for cells in lines)


def arguments():
    words, options = sys.argv[1:], []
    if '--' in words:
        words, options = words[:words.index('--')], words[words.index('--') + 1:]
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0], epilog='\n'.join(__doc__.split('\n')[2:]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('recordings', nargs='+', help='recordings, folders with recordings, @lists')
    parser.add_argument('--out', type=pathlib.Path, required=True, help='folder of the results')
    parser.add_argument('--address', help='of a Ray cluster (`auto`: the one that runs here); none starts one here')
    parser.add_argument('--workers', type=int, help='replays at a time, without --address [one for each core]')
    parser.add_argument('--cores', type=float, default=1, help='cores that Ray reserves for a replay [1]')
    parser.add_argument('--tries', type=int, default=3, help='of a recording whose worker dies [3]')
    parser.add_argument('--program', default='superpoint', help='where the command line is')
    args = parser.parse_args(words)
    if args.workers is not None and args.workers < 1 or args.cores <= 0 or args.tries < 1:
        parser.error('--workers, --cores and --tries must be positive')
    workers = args.workers or os.cpu_count()
    if not args.address and args.cores > workers:
        parser.error(f'--cores {args.cores:g} for a replay, but --workers makes {workers} in all: none could start')
    for option in options:
        if option.split('=')[0] in ('--out', '--report'):
            parser.error(f'{option} behind `--` would make all replays write the same file; reports go to the folder of '
                         '--out in front of it')
    return args, options


def remove_unfinished(out):
    """What replays left behind that were killed."""
    for unfinished in out.glob('*.unfinished'):
        shutil.rmtree(unfinished, ignore_errors=True)


def start_ray(args):
    """Connects to the cluster, or starts one here: again if need be, as Ray's raylet aborts where the rest starts slowly."""
    where = {'address': args.address} if args.address else {'num_cpus': args.workers, 'include_dashboard': False}
    for tries_left in reversed(range(1 if args.address else START_TRIES)):
        try:
            ray.init(**where, logging_level='warning', log_to_driver=False)
            return
        except Exception as error:  # of no common type
            if tries_left == 0:
                sys.exit(f'Ray did not start: {error}')
            print(f'Ray did not start, {tries_left} tries left: {error}', file=sys.stderr, flush=True)


def run(args, program, options, folder_of):
    """Replays recordings into their folders; why each of them failed, or an empty text."""
    start_ray(args)
    task = replay.options(num_cpus=args.cores, max_retries=args.tries - 1, retry_exceptions=[Died])
    running = {task.remote(program, str(path), str(folder), options): path for path, folder in folder_of.items()}
    failures = {}
    while running:
        (done,), _ = ray.wait(list(running), num_returns=1)
        path = running.pop(done)
        try:
            status, said = ray.get(done)
            failures[path] = said if status not in (0, 3) or not folder_of[path].exists() else ''
        except ray.exceptions.RayError as error:
            failures[path] = f'given up after {args.tries} tries: {str(error).strip().splitlines()[-1]}'
        state = f'failed: {failures[path]}' if failures[path] else 'done'
        print(f'{len(failures)} of {len(folder_of)}: {folder_of[path].name} {state}', file=sys.stderr, flush=True)
    ray.shutdown()
    return failures


def main():
    args, options = arguments()
    paths = recordings(args.recordings)
    if not paths:
        sys.exit('no recording was found')
    program = shutil.which(args.program) or (args.program if args.address else None)
    if program is None:
        sys.exit(f'{args.program} is not a program; say where it is with --program')
    args.out.mkdir(parents=True, exist_ok=True)
    setup_file = args.out / 'options.json'
    if setup_file.exists() and json.loads(setup_file.read_text()) != options:
        sys.exit(f'{args.out} holds results with other options: {setup_file.read_text()}; choose another --out')
    setup_file.write_text(json.dumps(options))
    remove_unfinished(args.out)

    name_of = names(paths)
    folder_of = {path: args.out.resolve() / name_of[path] for path in paths}
    todo = [path for path in paths if not (folder_of[path] / 'report.json').is_file()]
    failures = dict.fromkeys(paths, '')
    if todo:
        # Ray says on the standard output which workers died, where only the table belongs.
        with contextlib.redirect_stdout(sys.stderr):
            failures |= run(args, program, options, {path: folder_of[path] for path in todo})
        # Of workers that died.
        remove_unfinished(args.out)

    rows = [line(name_of[path], path, folder_of[path], failures[path]) for path in paths]
    with open(args.out / 'fleet.csv', 'w', newline='') as file:
        writer = csv.DictWriter(file, ['name', 'status', *FIGURES, 'path', 'note'])
        writer.writeheader()
        writer.writerows(rows)
    (args.out / 'fleet.json').write_text(json.dumps(rows, indent=1))
    print(markdown(rows))
    return 0 if all(row['status'] == 'done' for row in rows) else 3


if __name__ == '__main__':
    sys.exit(main())
