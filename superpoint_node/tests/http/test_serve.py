"""`superpoint serve` as a process: ports, signals, limits, patience, and what it does when there is too much to do."""

import asyncio
import collections
import concurrent.futures
import contextlib
import io
import json
import re
import signal
import socket
import subprocess
import time

import numpy as np
import pytest
import requests
from PIL import Image

from servers import photo, program, serve  # noqa: F401


def noise(height=480, width=640):
    return np.random.default_rng(1).integers(0, 256, height * width, np.uint8).tobytes()


def plane(server, **options):
    return server.post('/predict_plane', params={'height': 480, 'width': 640, 'return_descriptors': False}, data=noise(), **options)


def wait_for_depth(server, depths):
    """Until so many requests wait or are worked on."""
    end = time.monotonic() + 20
    while (depth := int(re.search(r'^superpoint_queue_depth (\d+)$', server.get('/metrics').text, re.MULTILINE).group(1))) not in depths:
        assert time.monotonic() < end, depth
        time.sleep(0.001)
    return depth


def test_it_listens_on_this_machine_only(serve):
    server = serve()
    assert server.url.startswith('http://127.0.0.1:')


def test_a_taken_port_is_said_and_another_is_searched(serve):
    port = serve().address[1]
    done = subprocess.run([program('superpoint'), 'serve', '--port', str(port)], capture_output=True, timeout=20, text=True)
    assert done.returncode == 1 and f'port {port}' in done.stderr and 'taken' in done.stderr
    assert serve('--port', str(port), '--port-search').address[1] > port


@pytest.mark.parametrize('options, words', [
    (['--port', '70000'], 'port'), (['--queue', '0'], 'queue'), (['--deadline', '-1'], 'deadline'),
    (['--max-body', '0'], 'max-body'), (['--port', '-1'], '-1 is not in 0..=65535'),
    (['--nms-radius', '-1'], "invalid value '-1'"), (['--nms-radius', '99'], 'nms_radius')])
def test_wrong_usage(options, words):
    done = subprocess.run([program('superpoint'), 'serve', *options], capture_output=True, timeout=20, text=True)
    assert done.returncode == 2 and words in done.stderr


def test_hosts(serve):
    assert serve('--host', '[::1]').url.startswith('http://[::1]:')
    assert requests.get(serve('--host', '0.0.0.0').url + '/health', timeout=5).status_code == 200


def test_a_host_that_is_not_here(tmp_path):
    done = subprocess.run([program('superpoint'), 'serve', '--host', '192.0.2.1'], capture_output=True, timeout=20, text=True)
    assert done.returncode == 1 and '192.0.2.1' in done.stderr


def test_weights_that_are_not_there_end_it():
    done = subprocess.run([program('superpoint'), 'serve', '--port', '0', '--weights', '/nowhere'], capture_output=True, timeout=20, text=True)
    assert done.returncode == 1 and '/nowhere' in done.stderr


def test_options_and_configuration_are_the_defaults_of_requests(serve, tmp_path):
    config = tmp_path / 'c.yaml'
    port = serve().address[1]
    config.write_text(f'/**:\n  ros__parameters: {{max_keypoints: 5, nms_radius: 7, http: {{port: {port}}}}}\n')
    done = subprocess.run([program('superpoint'), 'serve', '--config', config], capture_output=True, timeout=20, text=True)
    assert done.returncode == 1 and f'port {port}' in done.stderr, 'the port of the configuration is taken'
    server = serve('--config', str(config), '--nms-radius', '3')
    params = plane(server).json()['params']
    assert (params['max_keypoints'], params['nms_radius']) == (5, 3)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(serve, number):
    server = serve()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        # So few that a busy machine is through with them before the server's time to end is up.
        requests_ = [pool.submit(plane, server) for _ in range(3)]
        while requests.get(server.url + '/metrics').text.find('superpoint_queue_depth 0\n') >= 0:
            assert not all(reply.done() for reply in requests_), 'all were through before the signal'
            time.sleep(0.005)
        status, seconds = server.end(number)
        assert status == 0 and seconds < 10, server.log()
        statuses = []
        for reply in requests_:
            try:
                statuses.append(reply.result().status_code)
            except requests.ConnectionError:
                statuses.append('not accepted')
        # Those that were being worked on are answered; a connection that was not accepted yet is refused.
        assert statuses.count(200) >= 1 and set(statuses) <= {200, 'not accepted'}, statuses


def test_a_client_that_holds_a_connection_does_not_hold_up_the_end(serve):
    server = serve()
    with socket.create_connection(server.address) as idle, socket.create_connection(server.address) as slow:
        slow.sendall(b'POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{')
        time.sleep(0.1)
        status, seconds = server.end()
        assert status == 0 and seconds < 12
        del idle


def test_the_log_has_one_object_a_request(serve):
    server = serve('--log-format', 'json')
    server.get('/health', headers={'X-Request-Id': 'one-of-mine'})
    time.sleep(0.1)
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith('{')]
    [line] = [line for line in lines if line.get('span', {}).get('id') == 'one-of-mine']
    assert line['fields']['status'] == 200 and line['span']['path'] == '/health'


def test_slow_clients_are_left_and_hold_nobody_up(serve):
    server = serve('--patience', '1', '--queue', '1')
    address = server.address
    with socket.create_connection(address) as head, socket.create_connection(address) as body:
        head.sendall(b'POST /predict HT')
        body.sendall(b'POST /predict_raw HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc')
        assert plane(server).status_code == 200, 'the queue has one place, and the slow ones are not in it'
        for connection, expected in [(head, (b'', b'HTTP/1.1 408')), (body, (b'HTTP/1.1 408',))]:
            connection.settimeout(10)
            answer = connection.recv(65536)
            assert any(answer.startswith(begin) for begin in expected if begin) or answer in expected, answer


def test_connections_that_say_nothing_keep_nobody_out_for_long(serve):
    server = serve('--patience', '20')
    with contextlib.ExitStack() as silent:
        for _ in range(300):
            silent.enter_context(socket.create_connection(server.address))
        started = time.monotonic()
        assert server.get('/health').status_code == 200
        assert time.monotonic() - started < 10, 'half of the places are free after a tenth of the patience'
        # Nor those that begin to say something.
        for _ in range(300):
            connection = silent.enter_context(socket.create_connection(server.address))
            connection.sendall(b'POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{')
        started = time.monotonic()
        assert server.get('/health').status_code == 200
        assert time.monotonic() - started < 10


def test_more_than_there_are_places_may_connect_at_once(serve):
    """They wait where the system holds them. Without room there it would lose their first packet, and a second."""
    server = serve()
    with contextlib.ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(socket.create_connection(server.address, timeout=0.9))


def test_what_is_not_finished_in_time_at_the_end_is_answered_too(serve):
    """More requests than are computed within the five seconds of the end."""
    server = serve('--queue', '200', '--threads', '1')
    with concurrent.futures.ThreadPoolExecutor(120) as pool:
        requests_ = [pool.submit(plane, server) for _ in range(120)]
        depth = wait_for_depth(server, range(90, 121))
        status, seconds = server.end()
        assert status == 0 and 4 < seconds < 8, server.log()
        # A connection that was not accepted yet is refused.
        replies = [reply.result() for reply in requests_ if not isinstance(reply.exception(), requests.ConnectionError)]
    assert len(replies) >= depth, 'all that were accepted'
    assert {reply.status_code for reply in replies} == {200, 503}
    assert all('ending' in reply.json()['detail'] for reply in replies if reply.status_code == 503)


def test_a_client_that_does_not_read_its_answer_is_left(serve):
    server = serve('--patience', '1')
    body = noise()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.address)
        path = '/predict_plane?height=480&width=640&max_keypoints=20000&keypoint_threshold=0&nms_radius=0'
        connection.sendall(f'POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n'.encode() + body)
        deadline = time.monotonic() + 20
        while 'superpoint_http_connections 1\n' not in server.get('/metrics').text:
            assert time.monotonic() < deadline, 'the connection is still held'
            time.sleep(0.1)


def test_a_deadline_is_kept_and_the_rest_is_not_computed(serve):
    server = serve('--deadline', '0.05', '--threads', '1')
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: plane(server), range(8)))
    late = [reply for reply in replies if reply.status_code == 504]
    assert late and all('0.05 seconds' in reply.json()['detail'] for reply in late)
    assert {reply.status_code for reply in replies} <= {200, 504}
    time.sleep(1)
    assert 'superpoint_queue_depth 0\n' in server.get('/metrics').text


def test_nothing_is_computed_for_clients_that_are_gone(serve):
    server = serve('--threads', '1')
    body = noise()
    request = f'POST /predict_plane?height=480&width=640 HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n'.encode() + body
    connections = [socket.create_connection(server.address) for _ in range(10)]
    for connection in connections:
        connection.sendall(request)
    wait_for_depth(server, range(8, 11))  # a fast machine may have answered one or two
    for connection in connections:
        connection.close()
    wait_for_depth(server, [0])
    # At most the one that was being computed when they left is in the way of the next: were the others computed, it would
    # wait for nine.
    stages = dict(re.findall(r'(\w+);dur=([\d.]+)', plane(server).headers['server-timing']))
    assert float(stages['queue']) < 3 * float(stages['network']), stages
    text = server.get('/metrics').text
    abandoned = int(re.search(r'^superpoint_http_requests_abandoned_total (\d+)$', text, re.MULTILINE).group(1))
    # One of them was being computed when they left; it may even have been answered, as those before it.
    assert 7 <= abandoned <= 10, abandoned


@pytest.mark.parametrize('side,most', [(1, 250), (1000, 23)])
def test_many_refusals_are_paced(side, most, serve):
    """Clients that come again at once must not take the processor from the network, the less so with large bodies."""
    server = serve('--queue', '1', '--threads', '1')
    busy = (f'POST /predict_plane?height=480&width=640 HTTP/1.1\r\nHost: x\r\nContent-Length: {480 * 640}\r\n\r\n').encode() + noise()
    seconds = 3
    refused = []

    def insist(end):
        while time.monotonic() < end:
            started = time.monotonic()
            reply = server.post(f'/predict_plane?height={side}&width={side}', data=b'x' * side ** 2)
            if reply.status_code == 503:
                refused.append(time.monotonic() - started)

    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(40) as pool:
        for _ in range(2):
            stack.enter_context(socket.create_connection(server.address)).sendall(busy)
        end = time.monotonic() + seconds
        [job.result() for job in [pool.submit(insist, end) for _ in range(40)]]
    # So many a second, however many clients there are; without pacing it would be thousands.
    assert most / 6 < len(refused) < 1.2 * most * (seconds + 1), len(refused)
    assert sorted(refused)[len(refused) // 2] > 0.08, 'the more clients, the longer it takes'


async def ask(address, stream=None):
    """A request: its status, and the connection if it stays open."""
    reader, writer = stream or await asyncio.open_connection(*address)
    writer.write(b'POST /predict_plane?height=1&width=1&return_descriptors=0 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx')
    head = await reader.readuntil(b'\r\n\r\n')
    await reader.readexactly(int(re.search(rb'content-length: (\d+)', head).group(1)))
    if b'connection: close' in head:
        writer.close()
        return int(head[9:12]), None
    return int(head[9:12]), (reader, writer)


def test_clients_that_insist_do_not_shut_out_others(serve):
    """More clients than there are connections, which come again at once."""
    server = serve('--queue', '2')
    statuses, waited = [], []

    async def client(end):
        stream = None
        while time.monotonic() < end:
            try:
                status, stream = await ask(server.address, stream)
            except (OSError, asyncio.IncompleteReadError):
                status, stream = None, None
            statuses.append(status)

    async def probe(end):
        await asyncio.sleep(3)
        while time.monotonic() < end:
            started = time.monotonic()
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(b'GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
            assert (await reader.read()).startswith(b'HTTP/1.1 200')
            writer.close()
            waited.append(time.monotonic() - started)

    async def all_of_them():
        end = time.monotonic() + 15
        await asyncio.wait_for(asyncio.gather(probe(end), *(client(end) for _ in range(300))), 60)

    asyncio.run(all_of_them())
    assert len(waited) > 3 and max(waited) < 6, waited
    assert statuses.count(200) > 3 and statuses.count(503) > 100, collections.Counter(statuses)


def test_those_who_leave_while_they_wait_take_nobodys_turn(serve):
    """Thousands that came and went must not keep the others waiting for their refusal."""
    server = serve('--queue', '1', '--threads', '1')
    busy = (f'POST /predict_plane?height=480&width=640 HTTP/1.1\r\nHost: x\r\nContent-Length: {480 * 640}\r\n\r\n').encode() + noise()
    small = b'POST /predict_plane?height=1&width=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx'
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(16) as pool:
        for _ in range(24):
            stack.enter_context(socket.create_connection(server.address)).sendall(busy)
        for _ in range(3000):
            with socket.create_connection(server.address) as leaver:
                leaver.sendall(small)
        stack.enter_context(socket.create_connection(server.address)).sendall(busy)
        started = time.monotonic()
        replies = list(pool.map(lambda _: server.post('/predict_plane?height=1&width=1', data=b'x'), range(16)))
    assert [reply.status_code for reply in replies].count(503) > 4 and time.monotonic() - started < 5


def test_answers_that_nobody_reads_have_a_limit(serve):
    server = serve('--deadline', '60')
    body = noise()
    path = '/predict_plane?height=480&width=640&max_keypoints=-1&keypoint_threshold=0&nms_radius=0'
    request = f'POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n'.encode() + body
    with contextlib.ExitStack() as stack:
        heads = []
        for _ in range(3):
            connection = stack.enter_context(socket.create_connection(server.address, timeout=60))
            connection.sendall(request)
            heads.append(connection.recv(600))
        # 201 MiB each; two of them may lie here.
        assert [head[9:12] for head in heads] == [b'200', b'200', b'503'], heads
        assert int(re.search(rb'content-length: (\d+)', heads[0]).group(1)) > 200 << 20
        assert b'fewer keypoints' in heads[2] and b'retry-after: 1' in heads[2]
        assert plane(server).status_code == 200, 'ordinary answers have room beside them'
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(request)
        assert connection.recv(600)[9:12] == b'200', 'the memory of those that went away is free again'


def test_nobody_has_to_read_what_it_says():
    with subprocess.Popen([program('superpoint'), 'serve', '--port', '0', '--weights', 'bundled'], stderr=subprocess.PIPE, text=True) as process:
        url = re.search(r'http://\S+', process.stderr.readline()).group()
        process.stderr.close()
        deadline = time.monotonic() + 20
        while requests.get(url + '/health', timeout=5).status_code != 200:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        assert requests.get(url + '/health', timeout=5).status_code == 200
        process.terminate()
        assert process.wait(timeout=20) == 0
    with open('/dev/full', 'w') as full:
        for command, status in [(['detect', '/nowhere.png'], 1), (['match', '/nowhere.png', '/nowhere.png'], 1), (['serve', '--weights', '/nowhere'], 1)]:
            assert subprocess.run([program('superpoint'), *command], stderr=full, timeout=20).returncode == status, command


def test_all_bodies_together_have_a_limit(serve):
    server = serve('--max-body', '1', '--patience', '20')
    assert server.post('/predict_raw', data=bytes((1 << 20) + 1)).json()['detail'].startswith('the body is larger than 1048576 bytes')
    part = b'POST /predict_raw HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n' + bytes(1_000_000)
    with contextlib.ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(socket.create_connection(server.address)).sendall(part)
        deadline = time.monotonic() + 15
        # One of those above may be refused for this one.
        while (reply := server.post('/predict_raw', data=bytes(1_000_000))).status_code != 503:
            assert time.monotonic() < deadline, reply.text
            stack.enter_context(socket.create_connection(server.address)).sendall(part)
        assert 'all requests together' in reply.json()['detail'] and reply.headers['retry-after'] == '1'
    deadline = time.monotonic() + 20
    while (reply := server.post('/predict_raw', data=bytes(1_000_000))).status_code != 400:
        assert time.monotonic() < deadline, 'the place of those that went away is free again'


def test_a_body_that_does_not_come_is_said(serve):
    server = serve('--patience', '0.5')
    with socket.create_connection(server.address, timeout=10) as connection:
        connection.sendall(b'POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{')
        head, body = connection.recv(65536).split(b'\r\n\r\n')
    assert head.startswith(b'HTTP/1.1 408') and json.loads(body) == {'detail': 'the body did not arrive within 0.5 seconds'}


def test_a_second_signal_ends_it_at_once(serve):
    server = serve('--threads', '1')
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = [pool.submit(plane, server) for _ in range(12)]
        wait_for_depth(server, range(6, 13))
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        status, seconds = server.end(signal.SIGINT)
        assert status == 128 + signal.SIGINT and seconds < 1, (status, seconds)
        assert sum(job.exception() is not None for job in waiting) > 0, 'some were not answered'


def test_a_name_in_the_configuration_that_means_nothing_is_said(serve, tmp_path):
    config = tmp_path / 'c.yaml'
    config.write_text('/**:\n  ros__parameters: {nms_radios: 3, lazy: true}\n')
    log = serve('--config', str(config)).log()
    assert 'nms_radios' in log and 'lazy' not in log


def test_too_many_requests_are_refused_and_the_others_are_answered(serve):
    server = serve('--queue', '2', '--threads', '1')
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: plane(server), range(16)))
    statuses = [reply.status_code for reply in replies]
    assert set(statuses) == {200, 503} and statuses.count(200) >= 2, statuses
    for reply in replies:
        if reply.status_code == 503:
            assert reply.headers['retry-after'] == '1' and 'queue' in reply.json()['detail']
    assert plane(server).status_code == 200


def test_match_and_detect_agree_with_the_server(serve, photo, tmp_path):
    left, right = tmp_path / 'left.png', tmp_path / 'right.png'
    Image.fromarray(photo[:, :800]).save(left)
    Image.fromarray(photo[:, 40:840]).save(right)
    overlay = tmp_path / 'both.png'
    done = subprocess.run([program('superpoint'), 'match', left, right, '--json', '--overlay', overlay, '--weights', 'bundled'],
                          capture_output=True, timeout=60, check=True)
    report = json.loads(done.stdout)
    points = np.array([match['points'] for match in report['matches']])
    shifts = points[:, 0] - points[:, 1]
    right_ones = np.abs(shifts - [40, 0]).max(1) < 3
    assert len(points) == report['num_matches'] > 50 and right_ones.mean() > 0.5, right_ones.mean()
    assert Image.open(overlay).size == (1600, 460)
    file = io.BytesIO(left.read_bytes())
    answer = serve('--weights', 'bundled').post('/predict_raw', data=file).json()
    assert answer['num_keypoints'] == report['first']['num_keypoints']
    assert report['matches'][0]['points'][0] in answer['keypoints']
