"""MQTT.js in a browser: over wss, from a page that is admitted and from one that is not."""

from __future__ import annotations

import functools
import json
import queue
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from interop.brokers import LOOPBACK
from interop.chromium import chromium, trust
from interop.site import Site

pytestmark = [pytest.mark.one_build, pytest.mark.timeout(120)]

BUNDLE = Path(__file__).parent / "node_modules" / "mqtt" / "dist"
PATIENCE = 60

PAGE = """\
<!doctype html><meta charset="utf-8"><script src="/mqtt.min.js"></script><script>
const places = JSON.parse(decodeURIComponent(location.hash.slice(1)));
const options = { reconnectPeriod: 0, connectTimeout: 10000, protocolVersion: 5 };

async function roundtrip(url) {
  const client = await mqtt.connectAsync(url, options, false);
  const arrived = new Promise((done) =>
    client.on('message', (topic, payload) => done([topic, payload.toString()])));
  await client.subscribeAsync('browser/#', { qos: 1 });
  await client.publishAsync('browser/é', 'from a page', { qos: 1 });
  const found = await arrived;
  await client.endAsync();
  return found;
}

(async () => {
  const found = {};
  for (const [name, url] of Object.entries(places)) {
    try { found[name] = await roundtrip(url); } catch { found[name] = 'refused'; }
  }
  await fetch('/found', { method: 'POST', body: JSON.stringify(found) });
})();
</script>
"""


class Pages(SimpleHTTPRequestHandler):
    """Serves the page and MQTT.js's own bundle, and takes what the page has found."""

    found: queue.Queue[Any]

    def do_GET(self) -> None:
        if self.path != "/":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.found.put(json.loads(body))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing is logged."""


@pytest.fixture
def pages() -> Iterator[tuple[int, queue.Queue[Any]]]:
    found: queue.Queue[Any] = queue.Queue()
    handler = type("Handler", (Pages,), {"found": found})
    server = ThreadingHTTPServer((LOOPBACK, 0), functools.partial(handler, directory=str(BUNDLE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, found
    server.shutdown()
    server.server_close()


def test_a_page_is_served_if_its_origin_is_admitted(
    pages: tuple[int, queue.Queue[Any]], tmp_path: Path
) -> None:
    if not BUNDLE.is_dir():
        pytest.skip("interop/node_modules is missing (./dev test installs it)")
    port, found = pages
    admitted = {
        f"TRIVIUM_LISTENERS__web__{key}": value
        for key, value in {
            "PROTOCOL": "mqtt",
            "ADDRESS": f"{LOOPBACK}:0",
            "TLS": "true",
            "WEBSOCKET": "/mqtt",
            "WEBSOCKET_ORIGINS": json.dumps([f"http://{LOOPBACK}:{port}"]),
        }.items()
    }
    # Chromium opens no WebSocket to who asks for a certificate.
    off = {"TRIVIUM_TLS__CLIENT_CERTIFICATES": "off"}
    site = Site(tmp_path, "interpreted", admitted | off)
    try:
        places = {
            "admitted": f"wss://{LOOPBACK}:{site.port('web')}/mqtt",
            # Pages of the same host and port alone.
            "stranger": f"wss://{LOOPBACK}:{site.port('wss')}/mqtt",
        }
        url = f"http://{LOOPBACK}:{port}/#{json.dumps(places, separators=(',', ':'))}"
        with chromium(tmp_path / "profile", trust(tmp_path / "server.pem"), url):
            assert found.get(timeout=PATIENCE) == {
                "admitted": ["browser/é", "from a page"],
                "stranger": "refused",
            }
    finally:
        site.close()
