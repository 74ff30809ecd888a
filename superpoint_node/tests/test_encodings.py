"""Images of every encoding, size and layout: the answer is compared with that to the plane that numpy makes of them."""

import io

import numpy as np
import pytest
from PIL import Image as Picture
from sensor_msgs.msg import CompressedImage, Image

from conftest import Running, compressed, image, same


def gray(plane):
    return image(np.ascontiguousarray(plane), 'mono8' if plane.dtype == np.uint8 else 'mono16')


def luma(red, green, blue):
    """As Pillow's convert('L'), also for 16 bits."""
    weighted = red.astype(np.uint64) * 19595 + green.astype(np.uint64) * 38470 + blue.astype(np.uint64) * 7471
    return (weighted + 0x8000 >> 16).astype(red.dtype)


# --- Colour, gray, padding, byte order

@pytest.mark.parametrize('encoding', ['8UC1', 'rgb8', 'bgr8', 'rgba8', 'bgra8', '8UC3', '8UC4', 'mono16', '16UC1'])
@pytest.mark.parametrize('padding', [0, 13])
def test_every_encoding_gives_the_same_red(shared, reference, picture, encoding, padding):
    red, alpha = picture[:, :, 0], np.full((480, 640, 1), 7, np.uint8)
    pixels = {
        '8UC1': lambda: red,
        'rgb8': lambda: picture,
        '8UC3': lambda: picture,
        'bgr8': lambda: picture[:, :, ::-1],
        'rgba8': lambda: np.dstack([picture, alpha]),
        '8UC4': lambda: np.dstack([picture, alpha]),
        'bgra8': lambda: np.dstack([picture[:, :, ::-1], alpha]),
        'mono16': lambda: red.astype('<u2') * 257,
        '16UC1': lambda: red.astype('<u2') * 257,
    }[encoding]()
    pixels = np.ascontiguousarray(pixels)
    row_bytes = pixels.nbytes // len(pixels)
    assert same(shared.detect(image(pixels, encoding, step=row_bytes + padding)), reference)


def test_big_endian_matters_for_16_bits_only(shared, reference, picture):
    red = picture[:, :, 0]
    wide = (red.astype('<u2') * 257 & 0xFF00 | 0x12).astype('>u2')
    little = shared.detect(image(wide.astype('<u2'), 'mono16'))
    assert same(shared.detect(image(wide, 'mono16', is_bigendian=1)), little)
    assert not same(shared.detect(image(wide, 'mono16', is_bigendian=0)), little)
    assert same(shared.detect(image(red.copy(), 'mono8', is_bigendian=1)), reference)


def test_luma_channel(shared, picture):
    gray_picture = np.asarray(Picture.fromarray(picture).convert('L')).copy()
    expected = shared.detect(image(gray_picture, 'mono8'))
    with shared.changed(channel='luma'):
        alpha, reversed_picture = np.full((480, 640, 1), 7, np.uint8), picture[:, :, ::-1]
        for encoding, pixels in [
                ('rgb8', picture), ('8UC3', picture), ('bgr8', reversed_picture), ('mono8', gray_picture),
                ('rgba8', np.dstack([picture, alpha])), ('8UC4', np.dstack([picture, alpha])),
                ('bgra8', np.dstack([reversed_picture, alpha]))]:
            assert same(shared.detect(image(np.ascontiguousarray(pixels), encoding)), expected), encoding


def test_range_of_16_bit_images(shared, picture):
    # A camera of 12 bits that sees between 100 and 2140: each 8-bit step is 8 values wide.
    red = picture[:, :, 0]
    twelve_bits = red.astype('<u2') * 8 + 100
    full = red.astype('<u2') * 257
    with shared.changed(range_16bit=[100, 2140]):
        answer = shared.detect(image(twelve_bits, 'mono16'))
        dark = shared.detect(image(full, 'mono16'))
    expected = shared.detect(image(full, 'mono16'))
    # Both are value / 255 of the network's range; they are rounded differently in the last bit of a float.
    assert list(answer.points) == list(expected.points)
    np.testing.assert_allclose(answer.scores, expected.scores, rtol=1e-3)
    assert not same(dark, expected)


# --- Bayer

def mosaic(colours, pattern):
    """One colour a pixel, as the pattern (such as 'rggb') orders it."""
    flat = np.empty(colours.shape[:2], colours.dtype)
    for index, colour in enumerate(pattern):
        y, x = divmod(index, 2)
        flat[y::2, x::2] = colours[y::2, x::2, 'rgb'.index(colour)]
    return flat


def demosaic(flat, pattern, colour):
    """Bilinear, rounded half up, the border mirrored: the slow and obvious way."""
    height, width = flat.shape
    padded = np.pad(flat.astype(np.int64), 1, mode='reflect')
    has = np.zeros((2, 2), bool)
    for index, letter in enumerate(pattern):
        has[divmod(index, 2)] = letter == colour
    here = np.pad(np.tile(has, (height // 2 + 1, width // 2 + 1))[:height, :width], 1, mode='reflect')
    result = np.empty((height, width), np.int64)
    for y in range(2):
        for x in range(2):
            # The nearest sites of the colour around a pixel of this parity: itself, else edges, else corners.
            rings = [[(0, 0)], [(-1, 0), (1, 0), (0, -1), (0, 1)], [(-1, -1), (-1, 1), (1, -1), (1, 1)]]
            for ring in rings:
                sites = [(dy, dx) for dy, dx in ring if here[1 + y + dy, 1 + x + dx]]
                if sites:
                    break
            total = sum(padded[1 + dy:1 + dy + height, 1 + dx:1 + dx + width] for dy, dx in sites)
            mean = (2 * total + len(sites)) // (2 * len(sites))
            result[y::2, x::2] = mean[y::2, x::2]
    return result.astype(flat.dtype)


@pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
@pytest.mark.parametrize('bits', [8, 16])
def test_bayer(shared, picture, pattern, bits):
    # Odd sides: the pattern ends in the middle of a square.
    colours = picture[:479, :637] if bits == 8 else picture[:479, :637].astype('<u2') * 199 + 7
    flat = mosaic(colours, pattern)
    red = demosaic(flat, pattern, 'r')
    encoding = f'bayer_{pattern}{bits}'
    step = flat.strides[0] + 5
    expected = shared.detect(gray(red))
    assert len(expected.scores) > 100
    assert same(shared.detect(image(flat, encoding, step=step)), expected)
    if bits == 16:
        assert same(shared.detect(image(flat.astype('>u2'), encoding, is_bigendian=1)), expected)
        with shared.changed(range_16bit=[5000, 40000]):
            ranged = shared.detect(image(flat, encoding))
            assert same(ranged, shared.detect(gray(red))) and not same(ranged, expected)
    whole = luma(red, demosaic(flat, pattern, 'g'), demosaic(flat, pattern, 'b'))
    with shared.changed(channel='luma'):
        assert same(shared.detect(image(flat, encoding)), shared.detect(gray(whole)))


# --- YUV

@pytest.mark.parametrize('encoding, first', [('yuv422', 1), ('uyvy', 1), ('yuv422_yuy2', 0), ('yuyv', 0)])
def test_packed_yuv(shared, reference, picture, encoding, first):
    pixels = np.full((480, 640, 2), 0x80, np.uint8)
    pixels[:, :, first] = picture[:, :, 0]
    pixels[:, :, 1 - first] = picture[:, :, 2]
    assert same(shared.detect(image(pixels, encoding, step=1280 + 6)), reference)
    with shared.changed(channel='luma'):
        assert same(shared.detect(image(pixels, encoding)), reference)


@pytest.mark.parametrize('encoding, colour_rows', [('nv12', 240), ('nv21', 240), ('nv24', 960)])
def test_planar_yuv(shared, reference, picture, encoding, colour_rows):
    message = image(picture[:, :, 0].copy(), encoding)
    message.data = bytes(message.data) + bytes([0x80]) * (640 * colour_rows)
    assert same(shared.detect(message), reference)


# --- Sizes

def test_sizes_may_change_from_frame_to_frame(shared, reference, picture):
    red = picture[:, :, 0]
    for height, width in [(1, 1), (1, 640), (480, 1), (33, 47), (479, 641), (4320, 7680), (480, 640)]:
        pixels = np.asarray(Picture.fromarray(red).resize((width, height), Picture.Resampling.NEAREST))
        answer = shared.detect(image(pixels.copy(), 'mono8'))
        assert (answer.image_height, answer.image_width) == (height, width)
        points = np.asarray(answer.points).reshape(-1, 2)
        assert len(points) == len(answer.scores)
        if len(points):
            assert points.min() > -0.5 and np.all(points.max(0) < [width - 0.5, height - 0.5])
    assert same(answer, reference)


# --- Compressed images

@pytest.fixture(scope='module')
def compressed_node(ros, tmp_path_factory):
    node = Running(ros, tmp_path_factory.mktemp('compressed') / 'log', '-p', 'image_transport:=compressed',
                   image_topic='image/compressed', kind=CompressedImage)
    yield node
    node.close()


def decoded(message):
    return np.asarray(Picture.open(io.BytesIO(bytes(message.data))))


@pytest.mark.parametrize('kind, claimed', [
    ('png', 'png'), ('png', 'rgb8; png compressed bgr8'), ('png', 'jpeg'), ('png', ''), ('png', 'yuv422; nonsense'),
])
def test_png(compressed_node, reference, picture, kind, claimed):
    assert same(compressed_node.detect(compressed(picture, kind, claimed)), reference)


def test_gray_and_deep_png(compressed_node, shared, reference, picture):
    assert same(compressed_node.detect(compressed(picture[:, :, 0], 'png')), reference)
    wide = picture[:, :, 0].astype(np.uint16) * 250 + 9
    assert same(compressed_node.detect(compressed(wide, 'png')), shared.detect(image(wide, 'mono16')))


def test_range_and_channel_of_a_compressed_image(compressed_node, shared, picture):
    wide = picture[:, :, 0].astype(np.uint16) * 8 + 100
    for changes, message, raw in [({'range_16bit': [100, 2140]}, compressed(wide, 'png'), image(wide, 'mono16')),
                                  ({'channel': 'luma'}, compressed(picture, 'png'), image(picture, 'rgb8'))]:
        as_usual = compressed_node.detect(message)
        with compressed_node.changed(**changes), shared.changed(**changes):
            answer = compressed_node.detect(message)
            assert same(answer, shared.detect(raw)) and not same(answer, as_usual), changes


def test_overlay_of_a_compressed_image_is_in_its_range(compressed_node):
    x = np.mgrid[:48, :64][1]
    overlays = compressed_node.subscribe(Image, 'superpoint/overlay')
    with compressed_node.changed(keypoint_threshold=1.0, range_16bit=[1000, 1000 + 255 * 8]):
        for _ in range(20):
            compressed_node.detect(compressed((1000 + x * 4 * 8).astype(np.uint16), 'png'))
            compressed_node.spin(0.2)
            if overlays:
                break
    compressed_node.unsubscribe(overlays)
    shown = np.frombuffer(bytes(overlays[-1].data), np.uint8).reshape(48, 64, 3)
    np.testing.assert_array_equal(shown, np.dstack([(x * 4).astype(np.uint8)] * 3))


@pytest.mark.parametrize('claimed', ['jpeg', 'png', 'bgr8; jpeg compressed bgr8'])
def test_jpeg(compressed_node, shared, picture, claimed):
    # Gray, so that two decoders differ by rounding only, not by how they spread colours.
    message = compressed(picture[:, :, 0], 'jpeg', claimed, quality=95)
    points = np.asarray(compressed_node.detect(message).points).reshape(-1, 2)
    expected = np.asarray(shared.detect(image(decoded(message), 'mono8')).points).reshape(-1, 2)
    common = {tuple(point) for point in points} & {tuple(point) for point in expected}
    assert len(common) > 0.97 * len(expected) > 100


def test_header_of_a_compressed_image_is_copied(compressed_node, picture):
    message = compressed(picture, 'png')
    answer = compressed_node.detect(message)
    assert answer.header == message.header and answer.image_width == 640


def test_what_is_no_picture_is_refused(compressed_node, reference, picture):
    before = int(compressed_node.diagnosis()[2]['rejected'])
    whole = compressed(picture, 'png')
    for count, data in enumerate([b'', b'GIF89a and so on', bytes(whole.data)[:5000]], 1):
        compressed_node.send(CompressedImage(format='png', data=data))
        compressed_node.wait(lambda: int(compressed_node.diagnosis(reports=1)[2]['rejected']) == before + count,
                             'the count')
    assert same(compressed_node.detect(whole), reference)
    assert compressed_node.log().count('frame rejected: not a readable PNG or JPEG') == 1, compressed_node.log()


def test_remapping_the_image_means_the_compressed_topic_beside_it(start, reference, picture):
    node = start('-p', 'image_transport:=compressed', '-r', 'image:=cam/image_raw',
                 image_topic='cam/image_raw/compressed', kind=CompressedImage)
    assert same(node.detect(compressed(picture, 'png')), reference)
