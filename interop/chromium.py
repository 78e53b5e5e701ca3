"""A headless Chromium: started, and driven over the DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from websockets.sync.client import connect
from websockets.sync.connection import Connection

PATIENCE = 60.0
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-dev-shm-usage", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-proxy-server"),
)
#: what keys are called, and what they write
KEYS = {"Enter": "\r", "Tab": "", "Escape": "", " ": " "}


def trust(certificate: Path) -> str:
    """The argument by which Chromium trusts the key of a certificate."""
    key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    data = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    return f"--ignore-certificate-errors-spki-list={digest}"


@contextlib.contextmanager
def chromium(profile: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """One with these arguments, until it is not needed any more."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is missing (./dev test installs it)")
    is_driven = "--remote-debugging-port=0" in arguments
    process = subprocess.Popen(
        [program, *OPTIONS, f"--user-data-dir={profile}", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE if is_driven else subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()


@contextlib.contextmanager
def bounded(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process while one waits for it for too long: what it writes comes to its end."""
    timer = threading.Timer(PATIENCE, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Page:
    """A tab of a browser of its own."""

    def __init__(self, socket: Connection) -> None:
        self._socket = socket
        self._session: dict[str, str] = {}
        self._last = 0
        #: what went wrong on the page: errors of scripts, violations of its policy, failed requests
        self.troubles: list[str] = []
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        made = self.call("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = {"sessionId": made["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers."""
        self._last += 1
        wanted = self._last
        request = {"id": wanted, "method": method, "params": parameters, **self._session}
        self._socket.send(json.dumps(request))
        deadline = time.monotonic() + PATIENCE
        while True:
            found = json.loads(self._socket.recv(max(deadline - time.monotonic(), 0.0)))
            if found.get("id") == wanted:
                assert "error" not in found, (method, found["error"])
                answer: dict[str, Any] = found["result"]
                return answer
            self._heard(found)

    def _heard(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = about["exceptionDetails"]
                text = details.get("exception", {}).get("description", details["text"])
                self.troubles.append(f"exception: {text}")
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                values = [each.get("value", each.get("description")) for each in about["args"]]
                self.troubles.append(f"console: {values}")
            case "Log.entryAdded" if about["entry"]["level"] == "error":
                entry = about["entry"]
                self.troubles.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")

    def run(self, script: str) -> Any:
        """The value of an expression on the page; of a promise once it is there."""
        found = self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, url: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=url)

    def reload(self) -> None:
        """Load the page again."""
        self.run("void (window.isOld = true)")
        self.call("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def wait(self, condition: str) -> Any:
        """Wait until an expression is true on the page; its value."""
        deadline = time.monotonic() + PATIENCE
        value = f"const found = {condition}; return found instanceof Node || found"
        script = f"(() => {{ try {{ {value} }} catch (e) {{ return null }} }})()"
        # The browser waits for its next frame, and we for the browser.
        frame = "new Promise((done) => setTimeout(done, 20))"
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"{condition}\n{self.text()}\n{self.troubles}"
            self.run(frame)
        return value

    def text(self) -> str:
        """All that can be read."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def click(self, selector: str) -> None:
        """Click on the first of what a selector finds, once it is there."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"{found} && !{found}.disabled")
        self.run(f"{found}.click()")

    def type(self, text: str) -> None:
        """Write where the focus is."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, shift: bool = False) -> None:
        """Press a key."""
        about = {"key": key, "code": key, "modifiers": 8 if shift else 0}
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}
        about["windowsVirtualKeyCode"] = codes[key]
        self.call("Input.dispatchKeyEvent", type="keyDown", text=KEYS[key], **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def look(self, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Be so large, and of a system that is dark or light."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, file: Path) -> None:
        """A picture of the whole page: PNG, or the smaller WebP, by the name of the file."""
        kind: dict[str, Any] = {"format": file.suffix[1:]}
        if kind["format"] == "webp":
            kind["quality"] = 80
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, **kind)
        file.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def page(profile: Path, *arguments: str) -> Iterator[Page]:
    """A tab of a browser that is started for it."""
    with chromium(profile, "--remote-debugging-port=0", *arguments) as process:
        assert process.stderr is not None
        found = None
        with bounded(process):
            while found is None:
                line = process.stderr.readline()
                assert line, "chromium does not start"
                found = re.search("DevTools listening on (ws://.*)", line)
        # What it says from now on must not stop it.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        url = found.group(1).strip()
        with connect(url, max_size=None, proxy=None, open_timeout=PATIENCE) as socket:
            yield Page(socket)
