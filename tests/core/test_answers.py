"""Answers of the HTTP API that are made in parts, and bodies that are large, over real sockets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest

from trivium.config import Config
from trivium.listen import ListenerConfig
from trivium.observability import http
from trivium.observability.api import ApiAnswer, ApiPlace, ApiRefused, ApiRequest, refusal
from trivium.observability.http import HttpServer, Metrics
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.authentication import make_authenticator
from trivium.security.permissions import Permissions

AUTHORIZATION = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


GET = "GET /api/x HTTP/1.1\r\nHost: localhost\r\nAuthorization: {Authorization}\r\n\r\n".format(
    **AUTHORIZATION
)


class Loop:
    #: how often a turn is long, from now on
    long_turns = 0

    def call_later(self, seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, work)

    def begin_turn(self) -> None:
        pass

    def is_turn_long(self) -> bool:
        self.long_turns -= 1
        return self.long_turns >= 0


class Api:
    """Answers with what the test says; ``large`` takes a large body."""

    def __init__(self, answer: Callable[[ApiRequest], ApiAnswer]) -> None:
        self._answer = answer
        self.requests: list[ApiRequest] = []

    def place(self, method: str, path: tuple[str, ...]) -> ApiPlace:
        if path == ("none",):
            raise ApiRefused(refusal(404, "Object Not Found", "Not Found"))
        return ApiPlace(is_public=path == ("public",), most_bytes=10_000_000, most_values=100_000)

    def ask(self, request: ApiRequest, done: Callable[[ApiAnswer], None]) -> None:
        self.requests.append(request)
        done(self._answer(request))

    def go_on(self, request: ApiRequest, work: Callable[[], None]) -> None:
        work()

    def waits(self, request: ApiRequest) -> bool:
        return False

    def left(self, request: ApiRequest) -> None:
        pass


@contextlib.asynccontextmanager
async def serve(
    answer: Callable[[ApiRequest], ApiAnswer], driver: Loop | None = None
) -> AsyncIterator[tuple[Api, str]]:
    def run(work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        done(work())

    api = Api(answer)
    server = HttpServer(
        driver or Loop(),
        make_authenticator(Config(), run),
        Permissions(),
        lambda: None,
        Metrics((), lambda path, query: iter(()), ProtocolMetrics()),
        ListenerConfig(protocol="http", address="127.0.0.1:0"),
        api=api,
    )
    await server.start()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: server.connect() or asyncio.Protocol(), "127.0.0.1")
    host, port = listener.sockets[0].getsockname()[:2]
    try:
        yield api, f"http://{host}:{port}/api/"
    finally:
        listener.close()
        await server.stop()


def in_parts(parts: Iterator[bytes]) -> ApiAnswer:
    return ApiAnswer(200, parts=parts)


async def ask(url: str, method: str = "GET", **options: Any) -> tuple[int, Any, Any]:
    async with (
        aiohttp.ClientSession(headers=AUTHORIZATION) as client,
        client.request(method, url, **options) as answer,
    ):
        return answer.status, answer.headers, await answer.read()


async def test_requests_have_their_turns_however_long_others_make_each() -> None:
    loop = Loop()
    running = asyncio.get_running_loop()
    turns = 0
    asked: list[int] = []

    def turn() -> None:
        nonlocal turns
        turns += 1
        if loop.long_turns > 0:
            running.call_soon(turn)

    def answer(_: ApiRequest) -> ApiAnswer:
        asked.append(turns)
        return in_parts(iter([b"1"]))

    async with serve(answer, loop) as (_, url):
        loop.long_turns = 1_000_000_000
        turn()
        answers = await asyncio.gather(*(ask(url + "x") for _ in range(8)))
        loop.long_turns = 0
    assert [body for _, _, body in answers] == [b"1"] * 8
    assert len(set(asked)) == 8, "one in a turn"


async def test_of_answers_that_are_made_at_once_one_goes_on_in_a_turn() -> None:
    running = asyncio.get_running_loop()
    turns: list[int] = [0]
    made: list[int] = []

    def turn() -> None:
        turns[0] += 1
        if turns[0] >= 0:
            running.call_soon(turn)

    def parts() -> Iterator[bytes]:
        for _ in range(20):
            made.append(turns[0])
            yield b"1"

    async with serve(lambda _: in_parts(parts())) as (_, url):
        turn()
        answers = await asyncio.gather(*(ask(url + "x") for _ in range(6)))
        turns[0] = -2
    assert [body for _, _, body in answers] == [b"1" * 20] * 6
    # One that comes while nobody stands in line need not wait.
    assert max(made.count(number) for number in made) <= 2
    assert len(set(made)) >= len(made) - 12


async def test_a_short_answer_has_its_length_and_is_no_page() -> None:
    async with serve(lambda _: in_parts(iter([b"", b"[1", b"", b",2]"]))) as (_, url):
        status, headers, body = await ask(url + "x")
        assert (status, body) == (200, b"[1,2]")
        assert headers["Content-Length"] == "5"
        assert headers["Content-Type"].partition(";")[0] == "application/json"
        assert headers["X-Content-Type-Options"] == "nosniff"
        status, headers, body = await ask(url + "x", "HEAD")
        assert (status, body, headers["Content-Length"]) == (200, b"", "5")


async def test_a_refusal_before_the_first_part_is_the_answer() -> None:
    def parts() -> Iterator[bytes]:
        yield b""
        raise ApiRefused(refusal(400, "page_out_of_range", "no"))

    async with serve(lambda _: in_parts(parts())) as (_, url):
        status, _, body = await ask(url + "x")
        assert (status, json.loads(body)["error"]) == (400, "page_out_of_range")


async def test_a_long_answer_goes_as_fast_as_its_client_reads() -> None:
    part = b"x" * 65_536
    made = [0]

    def parts() -> Iterator[bytes]:
        for _ in range(1000):
            made[0] += 1
            yield part

    async with serve(lambda _: in_parts(parts())) as (_, url):
        host, port = url.split("/")[2].split(":")
        # A client that takes next to nothing.
        reader, writer = await asyncio.open_connection(host, int(port), limit=4096)
        lines = [
            "GET /api/x HTTP/1.1",
            "Host: localhost",
            f"Authorization: {AUTHORIZATION['Authorization']}",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await reader.readline()
        before = -1
        while made[0] != before:
            before = made[0]
            # Another is served meanwhile.
            assert (await ask(url + "none"))[0] == 404
        assert made[0] < 200
        writer.close()
        status, headers, body = await ask(url + "x")
        assert (status, len(body)) == (200, 1000 * len(part))
        assert headers["Transfer-Encoding"] == "chunked"


async def test_a_client_that_takes_nothing_for_long_is_dropped(monkeypatch: Any) -> None:
    monkeypatch.setattr(http, "SEND_SECONDS", 0.01)
    is_ended = asyncio.Event()

    def parts() -> Iterator[bytes]:
        try:
            while True:
                yield b"x" * 65_536
        finally:
            is_ended.set()

    async with serve(lambda _: in_parts(parts())) as (_, url):
        host, port = url.split("/")[2].split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=4096)
        lines = [
            "GET /api/x HTTP/1.1",
            "Host: localhost",
            f"Authorization: {AUTHORIZATION['Authorization']}",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await asyncio.wait_for(is_ended.wait(), 10)
        writer.close()


async def test_a_large_body_is_read_whole_and_one_that_is_too_large_refused() -> None:
    async with serve(lambda request: ApiAnswer(200, len(str(request.body)))) as (api, url):
        body = {"queues": [{"name": f"q{number}"} for number in range(20_000)]}
        assert (await ask(url + "x", "POST", json=body))[0] == 200
        assert api.requests[0].body == body
        large = io.BytesIO(b'"' + b"x" * 10_000_000 + b'"')
        assert (await ask(url + "x", "POST", data=large))[0] == 413
        for wrong in (b"[" * 100_000, b'{"a":' * 100_000, b"\xff" * 100_000):
            headers = {"Content-Type": "application/json"}
            body_of = io.BytesIO(wrong)
            assert (await ask(url + "x", "POST", data=body_of, headers=headers))[0] == 400


async def test_a_body_that_says_that_it_is_too_large_is_refused_before_it_comes() -> None:
    async with serve(lambda _: ApiAnswer(200)) as (api, url):
        host, port = url.split("/")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = GET.replace("GET", "POST").removesuffix("\r\n")
        writer.write(f"{head}Content-Length: 10000001\r\n\r\n".encode())
        assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 413 ")
        writer.close()
        assert api.requests == []


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 413)])
async def test_a_body_without_a_length_is_refused_once_it_is_too_large(
    more: int, status: int
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b'"' + b"x" * (10_000_000 - 2 + more)
        yield b'"'

    async with serve(lambda _: ApiAnswer(200)) as (api, url):
        headers = {"Content-Type": "application/json"}
        assert (await ask(url + "x", "POST", data=parts(), headers=headers))[0] == status
        assert len(api.requests) == (status == 200)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 204),
        ({"Content-Type": "application/json; charset=utf-8", "Origin": "http://x"}, 204),
        ({}, 204),
        ({"Origin": "http://x"}, 415),
        ({"Sec-Fetch-Site": "cross-site"}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
async def test_a_page_of_another_site_cannot_send_a_body(
    headers: dict[str, str], status: int
) -> None:
    """Those are what a page may send without being asked for leave (Fetch, 2.2.2), and a browser
    says where it comes from."""
    async with serve(lambda _: ApiAnswer(204)) as (api, url):
        options: Any = {"skip_auto_headers": ["Content-Type"]}
        found, _, _ = await ask(url + "x", "POST", data=b"{}", headers=headers, **options)
        assert found == status
        assert len(api.requests) == (status == 204)


async def test_what_stands_behind_the_path_and_who_need_not_say_who_they_are() -> None:
    async with serve(lambda _: ApiAnswer(204)) as (api, url):
        await ask(url + "a%2Fb/c?page=1&name=%3Cb%3E&name=x&empty")
        assert api.requests[0].path == ("a/b", "c")
        assert api.requests[0].query == {"page": "1", "name": "<b>", "empty": ""}
        async with aiohttp.ClientSession() as client:
            async with client.get(url + "public") as answer:
                assert answer.status == 204
            async with client.get(url + "private") as answer:
                assert answer.status == 401
        assert api.requests[1].identity.name == ""


async def send(url: str, text: bytes) -> tuple[int, dict[str, str], bytes]:
    """What plain bytes are answered by the server of a URL."""
    host, port = url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text)
    head, _, body = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    writer.close()
    status, *fields = head.decode().split("\r\n")
    return int(status.split()[1]), dict(field.split(": ", 1) for field in fields), body


def encoded(line: str, coding: str, body: bytes) -> bytes:
    """A request whose body is said to have a coding."""
    lines = [f"{line} HTTP/1.1", "Host: a", "Connection: close", f"Content-Encoding: {coding}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "identity, GZIP"])
@pytest.mark.parametrize(
    ("line", "is_problem"),
    [
        ("GET /health/live", True),
        ("GET /nowhere", True),
        ("POST /health/ready", True),
        ("GET /mqtt", True),
        ("POST /api/v1/public", True),
        ("PUT /api/v1/private", True),
        ("PUT /api/queues", False),
    ],
)
async def test_a_body_with_a_coding_is_refused_on_every_path(
    line: str, is_problem: bool, coding: str
) -> None:
    """RFC 9110, 12.5.3 and 15.5.16: whoever sends it is told that none is taken."""
    async with serve(lambda _: ApiAnswer(204)) as (api, url):
        status, headers, body = await send(url, encoded(line, coding, b"x"))
        assert (status, headers["Accept-Encoding"]) == (415, "identity")
        key = "type" if is_problem else "error"
        assert "unsupported" in json.loads(body)[key]
        assert api.requests == []


async def test_a_body_as_it_is_may_say_so() -> None:
    async with serve(lambda _: ApiAnswer(204)) as (api, url):
        assert (await send(url, encoded("POST /api/public", "identity", b"[1]")))[0] == 204
        assert api.requests[0].body == [1]


async def test_nothing_is_inflated_nor_what_is_broken_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before a request is refused, nor while what is left of its body is read."""

    def inflate(*_: Any, **__: Any) -> Any:
        raise AssertionError

    async with serve(lambda _: ApiAnswer(204)) as (_, url):
        zeros = zlib.compress(bytes(1 << 20), wbits=31)
        monkeypatch.setattr(zlib, "decompressobj", inflate)
        for body in (zeros, b"\x1f\x8b broken", b""):
            assert (await send(url, encoded("GET /health/live", "gzip", body)))[0] == 415
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("path", ["/api/v1/a%zzb", "/api/v1/%2", "/api/a%", "/api/%ff"])
async def test_a_path_with_what_encodes_nothing_is_malformed(path: str) -> None:
    """RFC 3986, 2.1."""
    async with serve(lambda _: ApiAnswer(204)) as (api, url):
        request = GET.replace("/api/x", path).replace("Host", "Connection: close\r\nHost")
        found, headers, _ = await send(url, request.encode())
        assert found == 400
        assert ("problem" in headers["Content-Type"]) is path.startswith("/api/v1/")
        assert api.requests == []


@pytest.mark.parametrize(
    ("target", "path"),
    [("http://localhost/api/a%2Fb?x", ("a/b",)), ("http://localhost:1/api/v1/", ("v1", ""))],
)
async def test_the_path_of_a_whole_url_is_asked_for(target: str, path: tuple[str, ...]) -> None:
    """RFC 9112, 3.2.2."""
    async with serve(lambda _: ApiAnswer(204)) as (api, url):
        request = GET.replace("/api/x", target).replace("Host", "Connection: close\r\nHost")
        assert (await send(url, request.encode()))[0] == 204
        assert api.requests[0].path == path


async def test_the_root_of_our_own_api_is_refused_by_a_problem() -> None:
    async with serve(lambda _: refusal(404, "not_found", "Not Found")) as (_, url):
        _, headers, _ = await ask(url + "v1")
        assert headers["Content-Type"].startswith("application/problem+json")
