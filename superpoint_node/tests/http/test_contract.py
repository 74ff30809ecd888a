"""Every route, field, type, default, error and limit of the server, as a client meets it."""

import base64
import gzip
import http.client
import io
import json
import re
import socket
import struct
import zlib

import numpy as np
import pytest
import requests
from PIL import Image

from servers import photo, server  # noqa: F401


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, 'PNG', compress_level=1)
    return file.getvalue()


def jpeg(pixels, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, 'JPEG', quality=92, **options)
    return file.getvalue()


def text(file):
    return base64.b64encode(file).decode()


def descriptors(answer):
    """As the model card reads them."""
    return np.load(io.BytesIO(base64.b64decode(answer['descriptors']['data'])))['descriptors']


def same(first, second):
    strip = lambda answer: {key: value for key, value in answer.items() if key != 'timing_ms'}  # noqa: E731
    return strip(first) == strip(second)


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# --- Answers

def check_answer(answer, size, params):
    assert list(answer) == ['num_keypoints', 'keypoints', 'scores', 'original_size', 'image_size', 'scale', 'params',
                            'serving_path', 'timing_ms'] + (['descriptors'] if params.pop('return_descriptors', True) else [])
    n, (height, width) = answer['num_keypoints'], size
    assert isinstance(n, int) and n == len(answer['keypoints']) == len(answer['scores'])
    assert answer['original_size'] == {'height': height, 'width': width}
    assert answer['image_size'] == {'height': 480, 'width': 640}
    assert answer['scale'] == {'x': width / 640, 'y': height / 480}
    assert answer['params'] == {'max_keypoints': 1024, 'keypoint_threshold': 0.005, 'nms_radius': 4,
                                'border_removal_distance': 4} | params
    assert answer['serving_path'] == {'traced': False, 'device_nms': False}
    assert list(answer['timing_ms']) == ['preprocess', 'device_forward', 'postprocess', 'total']
    assert all(number(value) and value >= 0 for value in answer['timing_ms'].values())
    assert answer['timing_ms']['total'] >= answer['timing_ms']['device_forward'] > 0
    points, scores = np.array(answer['keypoints']).reshape(-1, 2), np.array(answer['scores'])
    assert np.all(np.diff(scores) <= 0) and np.all(scores > answer['params']['keypoint_threshold']) and np.all(scores <= 1)
    network = points / [width / 640, height / 480]
    np.testing.assert_allclose(network, network.round(), atol=1e-6)
    if n:
        assert network.min() >= 4 and np.all(network.max(0) <= [635, 475])
    if 'descriptors' in answer:
        assert list(answer['descriptors']) == ['format', 'key', 'dtype', 'shape', 'data']
        assert {key: answer['descriptors'][key] for key in ('format', 'key', 'dtype', 'shape')} == {
            'format': 'npz', 'key': 'descriptors', 'dtype': 'float16', 'shape': [n, 256]}
        rows = descriptors(answer)
        assert rows.shape == (n, 256) and rows.dtype == np.float16
        np.testing.assert_allclose(np.linalg.norm(rows.astype(float), axis=1), 1, atol=2e-3)


def test_all_three_routes_give_the_same_answer(server, photo):
    file = png(photo)
    reply = server.post('/predict', json={'image': text(file)})
    assert reply.status_code == 200 and reply.headers['content-type'] == 'application/json'
    answer = reply.json()
    check_answer(answer, photo.shape[:2], {})
    assert answer['num_keypoints'] > 100
    raw = server.post('/predict_raw', data=file, headers={'Content-Type': 'application/octet-stream'}).json()
    red = photo[:, :, 0].tobytes()
    plane = server.post('/predict_plane', params={'height': 460, 'width': 900}, data=red).json()
    assert same(raw, answer) and same(plane, answer)


def test_a_jpeg_gives_what_pillow_decodes(server, photo):
    for options in [{}, {'progressive': True}, {'subsampling': 0}]:
        file = jpeg(photo, **options)
        red = np.asarray(Image.open(io.BytesIO(file)))[:, :, 0]
        plane = server.post('/predict_plane', params={'height': 460, 'width': 900}, data=red.tobytes()).json()
        assert same(server.post('/predict', json={'image': text(file)}).json(), plane), options


def test_gray_pictures_and_deep_ones(server, photo):
    gray = photo[:, :, 0]
    eight = server.post('/predict_raw', data=png(gray)).json()
    check_answer(eight, gray.shape, {})
    assert same(eight, server.post('/predict_raw', data=png(photo)).json()), 'R is what is read of a colour picture'
    deep = server.post('/predict_raw', data=png(gray.astype(np.uint16) * 257))
    assert deep.status_code == 200
    alpha = np.dstack([photo, np.full(gray.shape, 7, np.uint8)])
    assert same(eight, server.post('/predict_raw', data=png(alpha)).json())


def test_exif_orientation_is_ignored(server, photo):
    exif = Image.Exif()
    exif[0x0112] = 6
    plain, turned = jpeg(photo), jpeg(photo, exif=exif)
    assert same(server.post('/predict_raw', data=plain).json(), server.post('/predict_raw', data=turned).json())


FIELDS = [
    {'max_keypoints': 10}, {'max_keypoints': 0}, {'max_keypoints': -1}, {'max_keypoints': 307200},
    {'keypoint_threshold': 0.25}, {'keypoint_threshold': 0}, {'keypoint_threshold': 1}, {'keypoint_threshold': 0.015},
    {'nms_radius': 0, 'max_keypoints': 50}, {'nms_radius': 32}, {'nms_radius': 9}, {'return_descriptors': False},
    {'return_descriptors': True}, {'max_keypoints': 7, 'keypoint_threshold': 0.1, 'nms_radius': 2, 'return_descriptors': False},
]


@pytest.mark.parametrize('fields', FIELDS, ids=str)
def test_fields_do_what_they_say(server, photo, fields):
    red = np.ascontiguousarray(photo[::2, ::2, 0])
    file = png(red)
    answer = server.post('/predict', json={'image': text(file), **fields}).json()
    check_answer(answer, red.shape, dict(fields))
    if fields.get('max_keypoints', -1) >= 0:
        assert answer['num_keypoints'] <= fields['max_keypoints']
    if fields == {'max_keypoints': 10}:
        whole = server.post('/predict', json={'image': text(file)}).json()
        assert answer['keypoints'] == whole['keypoints'][:10]
    # Python's `requests` writes True and False; the other routes must give the same.
    assert same(answer, server.post('/predict_raw', params=fields, data=file).json())
    size = {'height': red.shape[0], 'width': red.shape[1]}
    assert same(answer, server.post('/predict_plane', params=fields | size, data=red.tobytes()).json())


def test_a_field_that_is_null_is_not_given(server, photo):
    file = text(png(photo[:64, :64]))
    fields = dict.fromkeys(['max_keypoints', 'keypoint_threshold', 'nms_radius', 'return_descriptors'])
    assert same(server.post('/predict', json={'image': file}).json(), server.post('/predict', json={'image': file, **fields}).json())


def test_whole_numbers_may_have_a_point_or_an_exponent(server, photo):
    file = png(photo[:64, :64])
    body = '{"image": "%s", "max_keypoints": 1e2, "nms_radius": 3.0}' % text(file)
    expected = {'max_keypoints': 100, 'keypoint_threshold': 0.005, 'nms_radius': 3, 'border_removal_distance': 4}
    assert server.post('/predict', data=body).json()['params'] == expected == \
        server.post('/predict_raw?max_keypoints=1e2&nms_radius=3.0', data=file).json()['params']


@pytest.mark.parametrize('words, given', [(('true', 'True', '1', 'yes', 'on', 'T', 'y'), True), (('false', 'FALSE', '0', 'no', 'off', 'F', 'n'), False)])
def test_truth_in_a_query_has_the_spellings_of_the_published_server(server, words, given):
    for word in words:
        answer = server.post('/predict_plane', params={'height': 1, 'width': 1, 'return_descriptors': word}, data=b'x').json()
        assert ('descriptors' in answer) == given, word


def test_planes_may_be_as_long_as_a_jpeg(server):
    sides = {'height': 1, 'width': 65535, 'max_keypoints': 1}
    check_answer(server.post('/predict_plane', params=sides, data=bytes(65535)).json(), (1, 65535), {'max_keypoints': 1})
    refused(server.post('/predict_plane', params=sides | {'width': 65536}, data=bytes(65536)), 400, 'width', '65536')


def test_no_keypoints_is_an_answer(server):
    answer = server.post('/predict_plane', params={'height': 1, 'width': 1, 'keypoint_threshold': 1}, data=b'\0').json()
    check_answer(answer, (1, 1), {'keypoint_threshold': 1})
    assert answer['num_keypoints'] == 0 and descriptors(answer).shape == (0, 256)


def test_base64_may_have_line_breaks(server, photo):
    whole, broken = (server.post('/predict', json={'image': encode(png(photo)).decode()}).json()
                     for encode in (base64.b64encode, base64.encodebytes))
    assert same(whole, broken)


def test_json_may_escape_slashes(server, photo):
    file = text(png(photo[:64, :64]))
    body = json.dumps({'image': file}).replace('/', '\\/')
    assert same(server.post('/predict', data=body).json(), server.post('/predict', json={'image': file}).json())


# --- Errors

def refused(reply, status, *words):
    assert reply.status_code == status, reply.text
    assert reply.headers['content-type'] == 'application/json'
    assert list(reply.json()) == ['detail']
    detail = reply.json()['detail']
    assert len(detail) < 500 and all(word in detail for word in words), detail
    if status == 503:
        assert int(reply.headers['retry-after']) > 0


BAD_VALUES = [
    ('max_keypoints', -2), ('max_keypoints', 307201), ('max_keypoints', 1.5), ('max_keypoints', '10'), ('max_keypoints', True),
    ('max_keypoints', [1]), ('max_keypoints', 10 ** 30), ('keypoint_threshold', -0.1), ('keypoint_threshold', 1.0000000001),
    ('keypoint_threshold', '0.1'), ('keypoint_threshold', {}), ('keypoint_threshold', False), ('nms_radius', -1),
    ('nms_radius', 33), ('nms_radius', 4.5), ('nms_radius', 'four'), ('return_descriptors', 'false'), ('return_descriptors', 1),
    ('return_descriptors', 0.0),
]


@pytest.mark.parametrize('name, value', BAD_VALUES)
def test_bad_values_in_json_are_named(server, name, value):
    refused(server.post('/predict', json={'image': 'AAAA', name: value}), 400, name)


@pytest.mark.parametrize('name, value', [
    ('max_keypoints', '-2'), ('max_keypoints', '307201'), ('max_keypoints', '1.5'), ('max_keypoints', 'ten'), ('max_keypoints', ''),
    ('keypoint_threshold', '-0.1'), ('keypoint_threshold', '1.1'), ('keypoint_threshold', 'nan'), ('keypoint_threshold', 'inf'),
    ('keypoint_threshold', ''), ('nms_radius', '33'), ('nms_radius', '-1'), ('nms_radius', '4.5'), ('nms_radius', '0x4'),
    ('return_descriptors', 'maybe'), ('return_descriptors', '2'), ('return_descriptors', '')])
def test_bad_values_in_a_query_are_named(server, name, value):
    refused(server.post('/predict_raw', params={name: value}, data=b'x'), 400, name)
    refused(server.post('/predict_plane', params={'height': 1, 'width': 1, name: value}, data=b'x'), 400, name)


@pytest.mark.parametrize('body, words', [
    (b'', ['JSON']), (b'{', ['JSON']), (b'hello', ['JSON']), (b'\xff\xfe', ['JSON']), (b'[]', ['object']), (b'"text"', ['object']),
    (b'null', ['object']), (b'{}', ['image is missing']), (b'{"image": null}', ['image is missing']),
    (b'{"image": 5}', ['image is 5']), (b'{"image": ["AAAA"]}', ['image']), (b'{"image": ""}', ['empty']),
    (b'{"image": "AAAA", "max_keypoint": 5}', ['max_keypoint', 'unknown']), (b'{"image": "AAAA", "image": "AAAA"}', ['duplicate']),
    (b'{"image": "AAAA"} x', ['JSON']), (b'{"image": "AA!A"}', ['base64', "'!'", 'position 2']),
    (b'{"image": "AAA"}', ['base64']), (b'{"image": "AAAA\\nAA!A"}', ['base64', "'!'", 'position 7']), (b'{"image": "\\ud800"}', ['image']),
    (b'{"image": "data:image/png;base64,AAAA"}', ['data URL']), (b'{"image": "AAAA"}', ['PNG or JPEG']),
    (b'{"image": "AAAA", "nms_radius": NaN}', ['JSON']), (b'[' * 10000, ['JSON']), (b'{"a":' * 10000, ['JSON'])],
    ids=lambda value: str(value)[:24])
def test_malformed_json_is_explained(server, body, words):
    refused(server.post('/predict', data=body), 400, *words)


def test_files_that_are_no_pictures(server, photo):
    file, photo_jpeg = png(photo), jpeg(photo, progressive=True)
    for bad in [b'', b'\0', b'GIF89a' + bytes(50), b'<html>', file[:100], file[:len(file) // 2], photo_jpeg[:200],
                photo_jpeg[:len(photo_jpeg) // 2], b'\xff\xd8\xff', b'\x89PNG\r\n\x1a\n']:
        refused(server.post('/predict_raw', data=bad), 400, 'PNG or JPEG')
        refused(server.post('/predict', json={'image': text(bad)}), 400, 'PNG or JPEG')


def huge_png(width, height):
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    header = chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0))
    return b'\x89PNG\r\n\x1a\n' + header + chunk(b'IDAT', zlib.compress(bytes(1000))) + chunk(b'IEND', b'')


def test_too_many_pixels_are_refused_before_they_are_decoded(server, photo):
    for file in [huge_png(100000, 100000), huge_png(2**31 - 1, 2**31 - 1), huge_png(65535, 2000)]:
        refused(server.post('/predict_raw', data=file), 413, 'pixels')
        refused(server.post('/predict', json={'image': text(file)}), 413, 'pixels')
    large = bytearray(jpeg(photo[:32, :32]))
    frame = large.index(b'\xff\xc0')
    large[frame + 5:frame + 9] = b'\xff\xff\xff\xff'
    refused(server.post('/predict_raw', data=bytes(large)), 413, 'pixels')


def test_planes_must_have_their_size(server):
    plane = lambda data=b'', **size: server.post('/predict_plane', params=size, data=data)  # noqa: E731
    refused(plane(bytes(11), height=3, width=4), 400, '11 bytes', '12')
    refused(plane(bytes(13), height=3, width=4), 400, '13 bytes', '12')
    refused(plane(bytes(12), width=4), 400, 'height is missing')
    refused(plane(bytes(12), height=3), 400, 'width is missing')
    for side in ['0', '-3', '65536', '3.5', 'x', '', '99999999999999999999999']:
        refused(plane(bytes(12), height=side, width=4), 400, 'height')
        refused(plane(bytes(12), height=3, width=side), 400, 'width')
    refused(plane(bytes(12), height=65535, width=65535), 400, '12 bytes')


def test_what_a_client_sent_is_named_but_not_at_length(server):
    reply = server.post('/predict', json={'x' * 100_000: 1})
    refused(reply, 400, 'unknown field', 'expected one of')
    assert len(reply.content) < 1000
    refused(server.post('/predict', json={'image': 'AAAA', 'max_keypoints': '5'}), 400, 'max_keypoints is "5", but')
    refused(server.post('/predict_raw?max_keypoints=+5', data=b'x'), 400, 'max_keypoints is ` 5`, but')


def test_unknown_and_repeated_fields_of_a_query(server):
    refused(server.post('/predict_raw?max_keypoint=5', data=b'x'), 400, 'max_keypoint', 'unknown')
    refused(server.post('/predict_raw?height=5', data=b'x'), 400, 'height', 'unknown')
    refused(server.post('/predict_raw?nms_radius=5&nms_radius=5', data=b'x'), 400, 'nms_radius', 'twice')
    refused(server.post('/predict_plane?height=1&width=1&x=1', data=b'x'), 400, 'x', 'unknown')
    refused(server.post('/predict?nms_radius=5', data=b'{}'), 400, 'query')


def test_a_body_that_nobody_wants_does_not_end_the_connection(server):
    connection = http.client.HTTPConnection(*server.address, timeout=20)
    for _ in range(10):
        for path, status in [('/nothing', 404), ('/health', 405)]:
            connection.request('POST', path, bytes(300_000))
            reply = connection.getresponse()
            assert (reply.status, bool(reply.read())) == (status, True)


def test_other_paths_and_methods(server):
    refused(server.get('/nothing'), 404, '/nothing')
    refused(server.post('/predict/'), 404)
    for path in ['/predict', '/predict_raw', '/predict_plane']:
        reply = server.get(path)
        refused(reply, 405, 'GET')
        assert 'POST' in reply.headers['allow']
    for path in ['/health', '/info', '/metrics', '/v1/models', '/docs', '/']:
        refused(server.post(path, data=b'x'), 405, 'POST')
    assert len(requests.request('A' * 5000, server.url + '/health', timeout=9).text) < 200


def test_a_body_over_the_limit_is_refused(server):
    limit = server.get('/info').json()['limits']['body_bytes']
    refused(server.post('/predict_raw', data=bytes(limit + 1)), 413, str(limit))
    chunks = (bytes(1 << 20) for _ in range(limit // (1 << 20) + 1))
    refused(server.post('/predict_raw', data=chunks), 413, str(limit))
    assert server.get('/health').status_code == 200


def test_a_body_and_a_picture_of_exactly_the_limit_are_taken(server):
    limits = server.get('/info').json()['limits']
    assert limits['body_bytes'] == limits['pixels'] == 8192 * 8192
    reply = server.post('/predict_plane?height=8192&width=8192&return_descriptors=false', data=bytes(8192 * 8192))
    assert reply.status_code == 200 and reply.json()['original_size'] == {'height': 8192, 'width': 8192}


@pytest.mark.parametrize('path', ['/predict', '/predict_raw', '/predict_plane?height=1&width=1'])
def test_bodies_that_have_to_be_unpacked_are_refused(server, path):
    refused(server.post(path, data=gzip.compress(b'{}'), headers={'Content-Encoding': 'gzip'}), 415, 'gzip')
    refused(server.post(path, files={'image': b'x'}), 415, 'multipart')
    twice = f'POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\nContent-Encoding: identity\r\nContent-Encoding: br\r\n\r\nx'
    assert exchange(server, twice.encode()).startswith(b'HTTP/1.1 415')
    assert server.post(path, data=b'x', headers={'Content-Encoding': 'identity'}).status_code != 415


def test_head_is_get_without_its_body(server):
    for path in ['/health', '/info', '/metrics', '/']:
        get, head = server.get(path), requests.head(server.url + path, timeout=10)
        assert head.status_code == 200 and head.content == b'' and head.headers['content-type'] == get.headers['content-type']


def exchange(server, request, timeout=10):
    """Bytes there and back; the connection is open until the server closes it."""
    with socket.create_connection(server.address, timeout=timeout) as connection:
        received = b''
        try:
            connection.sendall(request)
            while chunk := connection.recv(65536):
                received += chunk
        except ConnectionError:
            pass  # closed while more was being sent
        return received


def test_bytes_that_are_no_http(server):
    for request in [b'\x16\x03\x01\x02\0\x01\0', b'GET\r\n\r\n', b'POST /predict HTTP/1.1\r\nContent-Length: x\r\n\r\n',
                    b'GET / HTTP/1.1\r\n' + b'A: ' + b'b' * 1_000_000 + b'\r\n\r\n']:
        answer = exchange(server, request)
        assert not answer or re.match(rb'HTTP/1.1 4\d\d ', answer), answer[:100]
    assert server.get('/health').status_code == 200


# --- The other routes

def test_health(server):
    answer = server.get('/health')
    assert answer.status_code == 200 and answer.json()['status'] == 'ok'


def test_info(server):
    info = server.get('/info').json()
    assert info['model'] == 'superpoint-p150' and info['backend'] in ('cpu', 'p150')
    assert info['device']['state'] == 'ok' and info['device']['description']
    assert set(info['weights']) == {'repo', 'revision', 'sha256'} and re.fullmatch('[0-9a-f]{64}', info['weights']['sha256'])
    assert info['serving_path'] == {'traced': False, 'device_nms': False}
    assert info['image_size'] == {'height': 480, 'width': 640} in info['prepared_image_sizes']
    assert re.fullmatch(r'\d+\.\d+\.\d+.*', info['version'])
    assert info['limits'] == {'body_bytes': 64 << 20, 'pixels': 8192 * 8192, 'queue': 16, 'connections': 256,
                              'deadline_seconds': 30, 'receive_seconds': 30}
    assert info['defaults'] == {'max_keypoints': 1024, 'keypoint_threshold': 0.005, 'nms_radius': 4, 'border_removal_distance': 4,
                                'return_descriptors': True, 'postprocess': 'package', 'channel': 'first'}


def test_models(server):
    models = server.get('/v1/models').json()
    assert models['object'] == 'list'
    [model] = models['data']
    assert model['object'] == 'model' and model['id'] == 'superpoint-p150' and set(model) >= {'created', 'owned_by'}


def test_metrics(server, photo):
    def value(line):
        found = re.search(rf'^{re.escape(line)} (\S+)$', server.get('/metrics').text, re.M)
        return float(found.group(1)) if found else 0.0
    good = 'superpoint_http_requests_total{route="/predict_raw",status="200"}'
    bad = 'superpoint_http_requests_total{route="/predict_raw",status="400"}'
    stage = 'superpoint_stage_duration_seconds_count{stage="network"}'
    before = [value(good), value(bad), value(stage)]
    server.post('/predict_raw', data=png(photo))
    server.post('/predict_raw', data=b'x')
    assert [value(good), value(bad), value(stage)] == [before[0] + 1, before[1] + 1, before[2] + 1]
    assert value('superpoint_device_state{state="ok"}') == 1 and value('superpoint_device_state{state="failed"}') == 0
    assert value('superpoint_queue_limit') > 0
    server.get('/some/strange/path')
    reply = server.get('/metrics')
    text = reply.text
    assert reply.headers['content-type'].startswith('text/plain; version=0.0.4') and '# EOF' not in text
    assert 'strange' not in text and '# TYPE superpoint_http_requests_total counter\n' in text
    reply = server.get('/metrics', headers={'Accept': 'application/openmetrics-text;version=1.0.0,text/plain;q=0.5'})
    assert reply.headers['content-type'].startswith('application/openmetrics-text') and reply.text.endswith('# EOF\n')
    for name in ['queue_depth', 'frames_replaced_total', 'http_requests_abandoned_total', 'http_connections']:
        assert re.search(rf'^superpoint_{name} ', text, re.M), name
    for name in ['decode', 'queue', 'resize', 'network', 'keypoints', 'encode', 'total']:
        assert f'superpoint_stage_duration_seconds_count{{stage="{name}"}}' in text


def test_openapi_describes_every_route(server):
    api = server.get('/openapi.json').json()
    assert api['openapi'].startswith('3.')
    assert set(api['paths']) == {'/predict', '/predict_raw', '/predict_plane', '/health', '/info', '/v1/models', '/metrics'}
    schemas = api['components']['schemas']
    assert list(schemas['Response']['properties']) == ['num_keypoints', 'keypoints', 'scores', 'original_size', 'image_size', 'scale',
                                                       'params', 'serving_path', 'timing_ms', 'descriptors']
    assert 'descriptors' not in schemas['Response']['required']
    names = {parameter['name'] for parameter in api['paths']['/predict_plane']['post']['parameters']}
    assert names == {'height', 'width', 'max_keypoints', 'keypoint_threshold', 'nms_radius', 'return_descriptors'}
    for path in ['/predict', '/predict_raw', '/predict_plane']:
        assert set(api['paths'][path]['post']['responses']) >= {'200', '400', '413', '503', '504'}


@pytest.mark.parametrize('path', ['/', '/docs'])
def test_pages_need_nothing_from_outside(server, path):
    page = server.get(path)
    assert page.headers['content-type'].startswith('text/html')
    assert "default-src 'none'" in page.headers['content-security-policy']
    assert not re.search(r'(src|href)="(https?:)?//', page.text) and 'url(' not in page.text and '@import' not in page.text


def test_every_answer_has_an_id(server):
    first, second = server.get('/health'), server.get('/nothing')
    assert first.headers['x-request-id'] != second.headers['x-request-id']
    assert server.get('/health', headers={'X-Request-Id': 'mine-17'}).headers['x-request-id'] == 'mine-17'
    assert server.get('/health', headers={'X-Request-Id': 'x' * 1000}).headers['x-request-id'] != 'x' * 1000


def test_server_timing_names_the_stages(server, photo):
    timing = server.post('/predict_raw', data=png(photo)).headers['server-timing']
    stages = dict(re.findall(r'(\w+);dur=([\d.]+)', timing))
    assert list(stages) == ['decode', 'queue', 'resize', 'network', 'keypoints', 'encode', 'total']
    assert sum(map(float, list(stages.values())[:-1])) <= float(stages['total']) * 1.05
    # A picture of the network's own size need not wait, nor be resized.
    assert all(float(stages[stage]) > 0 for stage in ['decode', 'network', 'keypoints', 'encode']), timing
