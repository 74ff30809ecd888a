"""Servers to test: `superpoint serve`, and the same server inside the ROS node where ROS is there."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import requests
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[3]
PHOTO = ROOT / 'tt_backend/tests/golden/astronaut_512x512.png'
TIMEOUT_SECS = 30


def program(name):
    """A program of this package: SUPERPOINT_BIN's, colcon's, or cargo's."""
    folders = [os.environ.get('SUPERPOINT_BIN'), ROOT / 'install/superpoint_p150/lib/superpoint_p150',
               ROOT / 'target/release', ROOT / 'target/debug']
    for folder in filter(None, folders):
        found = shutil.which(name, path=str(folder))
        if found:
            return found
    return None


class Server:
    """A server process on a port of its own."""

    def __init__(self, command, log_path):
        self.log_path = log_path
        environment = dict(os.environ, HF_HOME='/nonexistent', HF_HUB_CACHE='/nonexistent')
        with open(log_path, 'w') as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + TIMEOUT_SECS
        while not (found := re.search(r'listening on (http://\S+:\d+)', self.log())):
            assert self.process.poll() is None, f'the server ended: {self.process.returncode}\n{self.log()}'
            assert time.monotonic() < deadline, f'the server did not listen\n{self.log()}'
            time.sleep(0.02)
        self.url = found.group(1)
        host, port = self.url.removeprefix('http://').rsplit(':', 1)
        self.address = (host, int(port))
        while requests.get(self.url + '/health', timeout=5).status_code != 200:
            assert self.process.poll() is None, f'the server ended: {self.process.returncode}\n{self.log()}'
            assert time.monotonic() < deadline, f'the server was not ready\n{self.log()}'
            time.sleep(0.02)

    def log(self):
        return pathlib.Path(self.log_path).read_text()

    def get(self, path, **options):
        return requests.get(self.url + path, timeout=TIMEOUT_SECS, **options)

    def post(self, path, **options):
        return requests.post(self.url + path, timeout=TIMEOUT_SECS, **options)

    def end(self, number=signal.SIGTERM):
        """Send a signal; exit status and the seconds until it was there."""
        started = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(timeout=20)
        return status, time.monotonic() - started

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def serve(tmp_path):
    """Start `superpoint serve` with options of a test's own."""
    running = []

    def serve(*options):
        port = [] if '--port' in options else ['--port', '0']
        command = [program('superpoint'), 'serve', *port, *options]
        running.append(Server(command, tmp_path / f'server{len(running)}.log'))
        return running[-1]

    yield serve
    for server in running:
        server.close()


@pytest.fixture(scope='session', params=['serve', 'node'])
def server(request, tmp_path_factory):
    """Each kind of server with its defaults."""
    log = tmp_path_factory.mktemp(request.param) / 'log'
    if request.param == 'serve':
        command = [program('superpoint'), 'serve', '--port', '0']
    else:
        node = program('superpoint_node')
        if node is None or 'AMENT_PREFIX_PATH' not in os.environ:
            pytest.skip('the node needs ROS (. scripts/env.bash) and a build')
        namespace = f'/http{time.monotonic_ns()}'
        command = [node, '--ros-args', '-r', f'__ns:={namespace}', '-p', 'http.enabled:=true', '-p', 'http.port:=0']
    running = Server(command, log)
    yield running
    status, seconds = running.end()
    # The node ends within a second, also on a busy machine almost.
    assert status == 0 and seconds < (1.5 if request.param == 'node' else 12), (seconds, running.log())
    assert 'panicked' not in running.log(), running.log()


@pytest.fixture(scope='session')
def photo():
    """A colour photo, larger than the network's frame on one axis only (H x W x 3)."""
    return np.asarray(Image.open(PHOTO).convert('RGB').resize((900, 460)))
