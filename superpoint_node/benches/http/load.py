"""Load on a server of its own, over loopback: `load.py PROGRAM [--overload]`. Needs only Python.

Without an option: 10,000 requests, good and bad, from 32 connections; counts the answers by status and watches the
server's memory. With --overload: how many answers a second with as many clients as the server can work for, then with many
times as many, who come again at once when they are refused; the excess must get 503 and cost little.
"""

import base64
import collections
import http.client
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
PHOTO = (ROOT / 'superpoint_node/tests/jpeg/large_progressive_420.jpg').read_bytes()
CORPUS = sorted((ROOT / 'superpoint_node/fuzz/corpus/predict').glob('bad*'))
SIZE = 'height=480&width=640'
# Overload sends small ones: the clients must not take the cores from the server.
SMALL = 'height=60&width=80'


def start(program, *options):
    server = subprocess.Popen([program, 'serve', '--port', '0', *options], stderr=subprocess.PIPE, text=True,
                              env=dict(os.environ, RUST_LOG='error'))
    for line in server.stderr:
        if found := re.search(r'listening on http://([\d.]+):(\d+)', line):
            address = found.group(1), int(found.group(2))
        if 'ready' in line:
            return server, address
    sys.exit('the server did not start')


def resident_mb(server):
    return int(re.search(r'VmRSS:\s+(\d+)', pathlib.Path(f'/proc/{server.pid}/status').read_text()).group(1)) / 1024


def good():
    return random.choice([
        ('/predict', json.dumps({'image': base64.b64encode(PHOTO).decode(), 'max_keypoints': 100}).encode()),
        ('/predict_raw?return_descriptors=false', PHOTO),
        (f'/predict_plane?{SIZE}&max_keypoints=50', bytes(480 * 640))])


def bad():
    """Path, body and the statuses that it may get when it is not its turn to be refused."""
    cut = PHOTO[:random.randrange(len(PHOTO) - 100)]
    return random.choice([
        ('/predict', random.choice(CORPUS).read_bytes() if CORPUS else b'{'), ('/predict', b''), ('/predict', b'[1]'),
        ('/predict_raw', cut), ('/predict_raw?nms_radius=99', PHOTO), ('/predict_raw', random.randbytes(1000)),
        (f'/predict_plane?{SIZE}', bytes(100)), ('/predict_plane?height=x', b''), ('/nothing', b'x'),
        ('/predict', json.dumps({'image': base64.b64encode(cut).decode()}).encode())])


def mixed(program, total=10_000, connections=32, share_of_good=0.1):
    # So many places that most of the good ones are answered.
    server, address = start(program, '--queue', '24')
    statuses, lost, wrong, memory = collections.Counter(), [], [], []
    numbers = iter(range(total))
    lock = threading.Lock()

    def client():
        connection = http.client.HTTPConnection(*address, timeout=60)
        while True:
            with lock:
                number = next(numbers, None)
                if number is None:
                    return
                if number % 1000 == 0:
                    memory.append(resident_mb(server))
            is_good = random.random() < share_of_good
            path, body = good() if is_good else bad()
            try:
                connection.request('POST', path, body)
                reply = connection.getresponse()
                answer = reply.read()
            except OSError as error:
                lost.append(repr(error))
                connection = http.client.HTTPConnection(*address, timeout=60)
                continue
            except http.client.HTTPException as error:
                lost.append(repr(error))
                connection = http.client.HTTPConnection(*address, timeout=60)
                continue
            with lock:
                statuses[reply.status] += 1
                if reply.status != 200 and not json.loads(answer)['detail']:
                    wrong.append((path, reply.status))
                if is_good and reply.status not in (200, 503, 504) or not is_good and not 400 <= reply.status < 505:
                    wrong.append((path, reply.status, repr(body[:60])))

    began = time.monotonic()
    threads = [threading.Thread(target=client) for _ in range(connections)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    memory.append(resident_mb(server))
    print(json.dumps({'requests': total, 'connections': connections, 'seconds': round(time.monotonic() - began, 1),
                      'statuses': dict(sorted(statuses.items())), 'lost': lost, 'wrong': wrong[:5],
                      'resident_mb': [round(value) for value in memory]}, indent=1))
    server.send_signal(signal.SIGTERM)
    ended = server.wait(timeout=30)
    assert ended == 0, ended
    assert not lost and not wrong and sum(statuses.values()) == total
    assert {status for status in statuses if status >= 500} <= {503, 504}


def overload(program, seconds=20):
    server, address = start(program, '--queue', '4')

    def goodput(clients):
        counts, refused_at = collections.Counter(), []
        end = time.monotonic() + seconds

        def client():
            connection = http.client.HTTPConnection(*address, timeout=60)
            while time.monotonic() < end:
                sent = time.monotonic()
                connection.request('POST', f'/predict_plane?{SMALL}&max_keypoints=100', PLANE)
                reply = connection.getresponse()
                reply.read()
                counts[reply.status] += 1
                if reply.status == 503:
                    refused_at.append(time.monotonic() - sent)  # and again at once, whatever Retry-After says
        threads = [threading.Thread(target=client) for _ in range(clients)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return counts, sorted(refused_at)

    goodput(2)
    unloaded, _ = goodput(4)
    loaded, refusals = goodput(48)
    again, _ = goodput(4)
    best = max(unloaded[200], again[200])
    print(json.dumps({'seconds': seconds, 'unloaded': dict(unloaded), 'overloaded': dict(loaded), 'unloaded_again': dict(again),
                      'goodput_ratio': round(loaded[200] / best, 3),
                      'median_ms_to_503': round(1e3 * refusals[len(refusals) // 2], 1) if refusals else None}, indent=1))
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=30) == 0
    assert set(loaded) == {200, 503}


PLANE = bytes(zlib.crc32(bytes([i % 251, i % 241])) % 256 for i in range(60 * 80))

if __name__ == '__main__':
    random.seed(1)
    (overload if '--overload' in sys.argv else mixed)(sys.argv[1])
