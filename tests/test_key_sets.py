"""Keys that are fetched by a real broker from a real server, while they are rotated."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tests.support.mqtt import connect
from trivium.security.tokens import MAX_KEY_SET_BYTES

KEYS = {kid: ec.generate_private_key(ec.SECP256R1()) for kid in ("first", "second", "other")}

#: A broker that may ask again after as many milliseconds as its first argument says.
PROGRAM = """
import sys
from trivium.cli import main
from trivium.security import tokens
tokens.MIN_FETCH_MS = int(sys.argv.pop(1))
sys.exit(main())
"""


class KeyServer:
    """Serves a key set, as it is told."""

    def __init__(self) -> None:
        self.kids: list[str] = ["first"]
        #: what it answers in place of the set
        self.answer: bytes | None = None
        self.status = 200
        #: while it is not set no answer comes
        self.answers = threading.Event()
        self.answers.set()
        self.requests = 0
        self.has_been_asked = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.requests += 1
                owner.has_been_asked.set()
                owner.answers.wait()
                body = owner.key_set() if owner.answer is None else owner.answer
                self.send_response(owner.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                # The broker may have gone away.
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing is said."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def key_set(self) -> bytes:
        rows: list[dict[str, str]] = [
            json.loads(ECAlgorithm.to_jwk(KEYS[kid].public_key())) | {"kid": kid}
            for kid in self.kids
        ]
        return json.dumps({"keys": rows}).encode()

    def stop(self) -> None:
        """Nobody listens any more."""
        if self._thread.is_alive():
            self.answers.set()
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


@pytest.fixture
def keys() -> Iterator[KeyServer]:
    server = KeyServer()
    yield server
    server.stop()


@contextlib.contextmanager
def broker(keys: KeyServer, least_ms: int) -> Iterator[int]:
    """The MQTT port of a broker that has fetched the keys once."""
    environment = {
        "TRIVIUM_JWT__JWKS_URL": keys.url,
        "TRIVIUM_JWT__REFRESH_SECONDS": "3600",
        "TRIVIUM_JWT__TIMEOUT_SECONDS": "0.3",
        "TRIVIUM_JWT__SCOPES_CLAIM": "scope",
        "TRIVIUM_LISTENERS__m__PROTOCOL": "mqtt",
        "TRIVIUM_LISTENERS__m__ADDRESS": "0",
        "TRIVIUM_LISTENERS__m__METHODS": '["jwt"]',
        "TRIVIUM_LISTENERS__m__ANONYMOUS": "never",
    }
    arguments = ["--memory", "--amqp", "off", "--native", "off", "--http", "off"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(least_ms), "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r" m=127\.0\.0\.1:(\d+)", line)
        assert found is not None, line + process.communicate(timeout=30)[1]
        assert keys.has_been_asked.wait(30)
        yield int(found[1])
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate(timeout=30)


def is_admitted(port: int, kid: str, user: str, key: str = "") -> bool:
    """Whether a client comes in by a token that names a key, and is signed by it or another."""
    claims = {"sub": user, "exp": int(time.time()) + 600, "scope": "read:*/*"}
    token = jwt.encode(claims, KEYS[key or kid], "ES256", {"kid": kid})
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(connect("c", 4, username=user, password=token.encode()))
        code = client.recv(4)
    assert code in (b"\x20\x02\x00\x00", b"\x20\x02\x00\x04")
    return code[3] == 0


def test_a_key_that_is_new_is_fetched_when_a_token_names_it(keys: KeyServer) -> None:
    with broker(keys, 0) as port:
        assert is_admitted(port, "first", "ann")
        asked = keys.requests
        assert is_admitted(port, "first", "bob")
        assert keys.requests == asked, "it has the key"
        keys.kids = ["second"]
        assert is_admitted(port, "second", "cid")
        assert keys.requests == asked + 1
        # The former one is gone from the set; nobody signs by another's name.
        assert not is_admitted(port, "first", "dan")
        assert not is_admitted(port, "second", "eve", key="other")


def test_keys_that_nobody_has_are_not_asked_for_again_and_again(keys: KeyServer) -> None:
    with broker(keys, 600_000) as port:
        keys.kids = ["first", "second"]
        assert is_admitted(port, "first", "ann")
        for number in range(5):
            assert not is_admitted(port, "second", f"u{number}")
        assert keys.requests == 1


ANSWERS = {
    "garbage": b"\x00\xff<html>",
    "another form": b'{"keys": {"kid": "second"}}',
    "deep": b'{"keys":' + b"[" * 100_000,
    "too large": b'{"keys": [], "x": "' + b"x" * MAX_KEY_SET_BYTES + b'"}',
}


def test_whatever_the_server_does_the_keys_before_it_hold(keys: KeyServer) -> None:
    with broker(keys, 0) as port:
        assert is_admitted(port, "first", "ann")
        for name, answer in ANSWERS.items():
            keys.answer, asked = answer, keys.requests
            assert not is_admitted(port, "second", name)
            assert keys.requests == asked + 1
            assert is_admitted(port, "first", name)
        keys.answer, keys.status = None, 500
        keys.kids = ["second"]
        assert not is_admitted(port, "second", "error")
        assert is_admitted(port, "first", "error")
        keys.status = 200
        keys.answers.clear()
        assert not is_admitted(port, "second", "slow")
        assert is_admitted(port, "first", "slow")
        keys.answers.set()
        assert is_admitted(port, "second", "once it is back")
        keys.stop()
        assert not is_admitted(port, "other", "down")
        assert is_admitted(port, "second", "down")
