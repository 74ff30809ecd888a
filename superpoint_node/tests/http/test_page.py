"""The playground in a headless Chromium: a picture, a slider, a button, a second picture, at two widths."""

import base64
import os
import pathlib
import shutil
import subprocess
import time

import numpy as np
import pytest
import requests
from PIL import Image

from servers import photo, serve  # noqa: F401

CHROMIUM, DRIVER = shutil.which('chromium'), shutil.which('chromedriver')
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason='needs the Debian packages chromium and chromium-driver')
TIMEOUT_SECS = 30


class Browser:
    """As much of W3C's WebDriver as is needed here; a session of a chromedriver of its own."""

    def __init__(self, width, height, log):
        self.driver = subprocess.Popen([DRIVER, '--port=0'], stdout=open(log, 'w'), stderr=subprocess.STDOUT)
        self.wait(lambda: 'started successfully on port' in pathlib.Path(log).read_text())
        port = pathlib.Path(log).read_text().split('started successfully on port ')[1].split('.')[0]
        self.url = f'http://127.0.0.1:{port}/session'
        arguments = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars']
        options = {'binary': CHROMIUM, 'args': arguments}
        always = {'browserName': 'chrome', 'goog:chromeOptions': options, 'goog:loggingPrefs': {'browser': 'ALL'}}
        self.url += '/' + self('POST', '', capabilities={'alwaysMatch': always})['sessionId']
        metrics = {'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': width < 500}
        self('POST', '/goog/cdp/execute', cmd='Emulation.setDeviceMetricsOverride', params=metrics)

    def __call__(self, method, path, **body):
        reply = requests.request(method, self.url + path, json=body if method == 'POST' else None, timeout=TIMEOUT_SECS).json()['value']
        assert not (isinstance(reply, dict) and reply.get('error')), reply
        return reply

    def wait(self, condition):
        deadline = time.monotonic() + TIMEOUT_SECS
        while not condition():
            assert time.monotonic() < deadline, 'it did not come'
            time.sleep(0.05)

    def run(self, script):
        return self('POST', '/execute/sync', script=script, args=[])

    def element(self, identifier):
        return '/element/' + next(iter(self('POST', '/element', using='css selector', value='#' + identifier).values()))

    def text(self, identifier):
        return self.run(f'return document.getElementById("{identifier}").textContent')

    def type(self, identifier, text):
        self('POST', self.element(identifier) + '/value', text=text)

    def click(self, identifier):
        self('POST', self.element(identifier) + '/click')

    def number(self, name):
        """The first figure of this name under the picture, once it is there."""
        return self.run('for (const box of document.querySelectorAll("#numbers div"))'
                        f'if (box.querySelector("dt").textContent === "{name}") return box.querySelector("dd").textContent')

    def save(self, name):
        """Pictures to look at, in the folder SUPERPOINT_SCREENSHOTS."""
        if folder := os.environ.get('SUPERPOINT_SCREENSHOTS'):
            pathlib.Path(folder, name + '.png').write_bytes(base64.b64decode(self('GET', '/screenshot')))

    def close(self):
        try:
            self('DELETE', '')
        finally:
            self.driver.terminate()
            self.driver.wait()


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=['desktop', 'phone'])
def browser(request, tmp_path):
    browser = Browser(*request.param, tmp_path / 'driver.log')
    yield browser
    browser.close()


ARROW_RIGHT, TAB = '\ue014', '\ue004'


def test_playground(serve, browser, photo, tmp_path, request):  # noqa: F811
    size = request.node.callspec.id
    server = serve('--weights', 'bundled')
    left, right = tmp_path / 'left.png', tmp_path / 'right.png'
    Image.fromarray(photo[:, :800]).save(left)
    Image.fromarray(photo[:, 60:860]).save(right)
    browser('POST', '/url', url=server.url)
    browser.wait(lambda: 'weights' in browser.text('about'))
    assert browser.run('return document.getElementById("thresholdOut").value') == '0.005'

    browser.type('file1', str(left))
    browser.wait(lambda: browser.number('Keypoints'))
    many = int(browser.number('Keypoints'))
    assert many > 100
    # Rings are on the canvas: red to yellow, colours that the photo hardly has.
    pixels = np.array(browser.run(
        'const c = document.getElementById("canvas");'
        'return Array.from(c.getContext("2d").getImageData(0, 0, c.width, c.height).data)'), np.uint8).reshape(-1, 4)
    assert ((pixels[:, 0] > 240) & (pixels[:, 2] < 15)).sum() > 500
    browser.save(f'one-{size}')

    # The slider by keyboard: a higher threshold, fewer keypoints.
    browser.type('threshold', ARROW_RIGHT * 20)
    browser.wait(lambda: int(browser.number('Keypoints')) < many)
    # A click: back to the defaults.
    browser.click('reset')
    browser.wait(lambda: int(browser.number('Keypoints')) == many)

    browser.type('file2', str(right))
    browser.wait(lambda: browser.number('Matches'))
    assert int(browser.number('Matches')) > 50
    browser.save(f'two-{size}')
    browser.click('remove')
    browser.wait(lambda: browser.number('Matches') is None)

    # A file that is no picture is said to be none, and the page goes on.
    (tmp_path / 'text.png').write_text('no picture')
    browser.type('file1', str(tmp_path / 'text.png'))
    browser.wait(lambda: 'no picture' in browser.text('status'))

    # Nothing wider than the screen, everything reachable by Tab.
    fits = 'return document.documentElement.scrollWidth <= document.documentElement.clientWidth'
    assert browser.run(fits)
    reached = set()
    for _ in range(14):
        keys = [{'type': kind, 'value': TAB} for kind in ('keyDown', 'keyUp')]
        browser('POST', '/actions', actions=[{'type': 'key', 'id': 'keyboard', 'actions': keys}])
        reached.add(browser.run('return document.activeElement.id'))
    assert {'file1', 'file2', 'threshold', 'radius', 'count', 'reset'} <= reached, reached

    browser('POST', '/url', url=server.url + '/docs')
    browser.wait(lambda: browser.run('return document.querySelectorAll("section").length') == 7)
    browser.save(f'docs-{size}')
    assert browser.run(fits)
    entries = browser('POST', '/se/log', type='browser')
    wrong = [entry for entry in entries if entry['level'] == 'SEVERE' and 'favicon' not in entry['message']]
    assert not wrong, wrong
