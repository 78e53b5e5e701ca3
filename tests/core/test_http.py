"""Health and metrics over real sockets, asked with plain bytes."""

import asyncio
import base64
import contextlib
import gc
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

from tests.support.rest import until
from trivium.config import AuthConfig, Config, Listen, UserConfig
from trivium.observability.http import MAX_SCRAPES, HttpServer, Metrics
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.authentication import make_authenticator
from trivium.security import hash_queue
from trivium.security.passwords import hash_password
from trivium.security.permissions import Permissions


class Loop:
    """Calls the server as the event loop does."""

    def call_later(self, seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, work)

    def begin_turn(self) -> None:
        pass

    def is_turn_long(self) -> bool:
        return False


class Site:
    """A running server whose readiness the test sets."""

    def __init__(self) -> None:
        self.reason: str | None = None
        #: what asking for it raises
        self.fault: Exception | None = None
        self.port = 0
        self.server: HttpServer | None = None
        #: passwords that were hashed
        self.hashed = 0
        #: answers with metrics that were begun, and whether none of them ends
        self.scrapes = 0
        self.is_held = False
        #: how long an answer is, beyond what it says
        self.length = 0
        self.are_many = asyncio.Event()

    def unready(self) -> str | None:
        if self.fault is not None:
            raise self.fault
        return self.reason

    def metrics(self, path: str, query: list[tuple[str, str]]) -> Iterator[str]:
        if query:
            raise ValueError("no parameters here")
        return self.pieces()

    def pieces(self) -> Iterator[str]:
        self.scrapes += 1
        if self.scrapes == MAX_SCRAPES:
            self.are_many.set()
        yield "#" * self.length
        yield "up "
        while self.is_held:
            yield ""
        yield "1\n"

    async def ask(self, path: str, *headers: str) -> tuple[int, dict[str, str], str]:
        lines = [f"GET {path} HTTP/1.1", "Host: test", "Connection: close", *headers, "", ""]
        return await self.send("\r\n".join(lines).encode())

    async def send(self, request: bytes) -> tuple[int, dict[str, str], str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await writer.wait_closed()
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *fields = head.decode().split("\r\n")
        names = dict(field.split(": ", 1) for field in fields)
        return int(status.split()[1]), names, body.decode()


async def run_in_pool(work: Callable[[], bool], done: Callable[[bool], None]) -> None:
    done(await asyncio.to_thread(work))


@contextlib.asynccontextmanager
async def serve(config: Config, handshake_seconds: float = 10.0) -> AsyncIterator[Site]:
    tasks = set()
    site = Site()

    def pool(work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        site.hashed += 1
        tasks.add(asyncio.create_task(run_in_pool(work, done)))

    server = HttpServer(
        Loop(),
        make_authenticator(config, pool),
        Permissions(),
        site.unready,
        Metrics(("/metrics", "/metrics/long"), site.metrics, ProtocolMetrics()),
        config.all_listeners()[-1],
        handshake_seconds,
    )
    site.server = server
    with socket.create_server(("127.0.0.1", 0)) as bound:
        site.port = bound.getsockname()[1]
        await server.start()
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(server.connect, sock=bound)
        try:
            yield site
        finally:
            listener.close()
            await server.stop()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serve(Config()) as site:
        yield site


async def test_live_answers_200(site: Site) -> None:
    status, headers, body = await site.ask("/health/live")
    assert (status, json.loads(body)) == (200, {"status": "live"})
    assert headers["Content-Type"].startswith("application/json")


async def test_ready_answers_503_with_the_reason(site: Site) -> None:
    assert (await site.ask("/health/ready"))[0] == 200
    site.reason = "disk is nearly full"
    status, _, body = await site.ask("/health/ready")
    assert (status, json.loads(body)["reason"]) == (503, "disk is nearly full")


async def test_metrics_have_the_prometheus_content_type(site: Site) -> None:
    status, headers, body = await site.ask("/metrics")
    assert (status, body) == (200, "up 1\n")
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_metrics_that_there_are_not_answer_400_with_the_reason(site: Site) -> None:
    assert (await site.ask("/metrics?x=1"))[::2] == (400, "no parameters here\n")


async def test_others_are_served_while_metrics_are_made_but_no_more_metrics(site: Site) -> None:
    site.is_held = True
    asking = [asyncio.create_task(site.ask("/metrics")) for _ in range(MAX_SCRAPES)]
    await site.are_many.wait()
    assert (await site.ask("/metrics"))[0] == 503
    assert (await site.ask("/health/live"))[0] == 200
    site.is_held = False
    assert {(await each)[0] for each in asking} == {200}
    assert (await site.ask("/metrics"))[0] == 200


LONG = b"GET /metrics/long HTTP/1.1\r\nHost: a\r\n\r\n"


async def begin_unread(site: Site) -> socket.socket:
    """A client that has got the beginning of a long answer, and takes no more of it."""
    site.length = 8_000_000
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", site.port))
    await loop.sock_sendall(client, LONG)
    assert await loop.sock_recv(client, 1) == b"H"
    site.length = 0
    return client


async def test_short_metrics_wait_for_no_long_ones(site: Site) -> None:
    site.is_held = True
    asking = [asyncio.create_task(site.ask("/metrics/long")) for _ in range(MAX_SCRAPES)]
    await site.are_many.wait()
    assert (await site.ask("/metrics/long"))[0] == 503
    short = asyncio.create_task(site.ask("/metrics"))
    await until(lambda: site.scrapes > MAX_SCRAPES)
    site.is_held = False
    assert {(await each)[0] for each in [short, *asking]} == {200}


async def test_who_takes_no_metrics_gives_way_to_who_asks_for_some(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    clients = [await begin_unread(site) for _ in range(MAX_SCRAPES + 2)]
    for _ in range(2 * MAX_SCRAPES):
        assert (await site.ask("/metrics/long"))[0] == 200
    for client in clients:
        client.close()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_client_that_leaves_a_long_answer_unread_is_no_error(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    client = await begin_unread(site)
    tasks = asyncio.all_tasks()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    await until(lambda: asyncio.all_tasks() != tasks)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("path", ["/health/live", "/metrics", "/nowhere", "/health/ready"])
async def test_an_answer_names_no_versions(site: Site, path: str) -> None:
    site.fault = RuntimeError("ours") if path == "/health/ready" else None
    assert (await site.ask(path))[1]["Server"] == "Trivium"


@pytest.mark.parametrize(
    ("head", "status", "kind"),
    [
        ("GET /etc/passwd HTTP/1.1", 404, "not-found"),
        ("GET /%00%ff HTTP/1.1", 404, "not-found"),
        ("POST /health/live HTTP/1.1", 405, "method-not-allowed"),
        ("GET /health/live HTTP/1.1\r\nExpect: x", 417, "expectation-failed"),
    ],
    ids=["path", "characters", "method", "expectation"],
)
async def test_what_is_nowhere_is_refused_by_a_problem(
    site: Site, head: str, status: int, kind: str
) -> None:
    request = f"{head}\r\nHost: a\r\nConnection: close\r\n\r\n"
    found, headers, body = await site.send(request.encode())
    problem = json.loads(body)
    assert found == problem["status"] == status
    assert problem["type"] == f"urn:trivium:problem:{kind}"
    assert headers["Content-Type"].startswith("application/problem+json")
    assert (headers.get("Allow") == "GET,HEAD") is (status == 405)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\r\n\r\n",
        b"AMQP\x00\x00\x09\x01\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHostx\r\n\r\n",
    ],
)
async def test_hostile_request_answers_400_and_touches_nothing_else(
    site: Site, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    status, headers, _ = await site.send(request_bytes)
    assert (status, headers["Server"]) == (400, "Trivium")
    assert (await site.ask("/health/live"))[0] == 200
    # Nor does it fill the log: no traceback, and one line.
    records = [record for record in caplog.records if record.name.startswith("trivium")]
    assert [(record.levelname, record.exc_info) for record in records] == [("INFO", None)]
    assert not any(record.exc_info for record in caplog.records)


async def test_a_fault_of_our_own_is_logged_with_a_traceback(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.fault = RuntimeError("ours")
    assert (await site.ask("/health/ready"))[0] == 500
    assert any(record.exc_info and "ours" in str(record.exc_info[1]) for record in caplog.records)


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What came before the connection was closed."""
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("begun", [b"", b"GET /health/live HTTP/1.1\r\nHost:"])
async def test_a_connection_that_asks_nothing_is_closed(begun: bytes) -> None:
    async with serve(Config(), handshake_seconds=0.05) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(begun)
        assert await closed(reader) == b""
        writer.close()


LIVE = b"GET /health/live HTTP/1.1\r\nHost: test\r\n"


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"GET /health/live HTTP/1.1\r\nHost: a\r\n\r\n", 1),
        (b"GET /health/live HTTP/1.1\r\nHost: a\r\n\r\n" * 3, 3),
        (b"GET /health/live HTTP/1.1\r\nHost: a\r\n\r\nGET /hea", 1),
        (b"POST /none HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", 1),
        (b"", 0),
        (b"GET /hea", 0),
    ],
)
async def test_a_client_that_sends_no_more_gets_its_answers(
    site: Site, sent: bytes, answers: int
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(sent)
    writer.write_eof()
    assert (await reader.read()).count(b"HTTP/1.1 ") == answers
    writer.close()


async def test_a_client_that_goes_before_it_may_send_its_body_is_no_error(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    head = b"POST /none HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    writer.write(head)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def open_another(site: Site) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One that has been answered, and is kept alive."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(LIVE + b"\r\n")
    assert await reader.readuntil(b"}") != b""
    return reader, writer


@pytest.mark.parametrize("begun", ["", "nothing more", "half a request", "a body"])
async def test_the_oldest_idle_connection_gives_way_to_a_new_one(
    begun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivium.observability.http.MAX_CONNECTIONS", 2)
    async with serve(Config()) as site:
        if begun:
            reader, writer = await open_another(site)
            if begun == "half a request":
                writer.write(LIVE)
            elif begun == "a body":
                writer.write(LIVE + b"Content-Length: 9\r\n\r\n1")
                assert await reader.readuntil(b"}") != b""
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        other = await open_another(site)
        for _ in range(2):
            # As many as there may be, so that the first goes, and then the one that came after it.
            assert not other[0].at_eof()
            newer = await open_another(site)
            assert await closed(reader) == b""
            writer.close()
            (reader, writer), other = other, newer
        writer.close()
        other[1].close()


class Layer:
    """Stands between a socket and HTTP, as that of TLS does, with a client that reads nothing."""

    def __init__(self) -> None:
        self.is_aborted = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return self.is_aborted

    def write(self, data: bytes) -> None:
        """Nobody reads it."""

    def close(self) -> None:
        """What was written is to be read first."""

    def abort(self) -> None:
        self.is_aborted = True


async def test_an_idle_connection_gives_way_though_its_client_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trivium.observability.http.MAX_CONNECTIONS", 1)
    async with serve(Config()) as site:
        assert site.server is not None
        layers = [Layer(), Layer()]
        for layer in layers:
            site.server.connect().connection_made(cast("asyncio.Transport", layer))
        assert [layer.is_aborted for layer in layers] == [True, False]


@pytest.mark.parametrize("turns", range(4))
async def test_a_connection_may_give_way_at_any_time_before_its_answer(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr("trivium.observability.http.MAX_CONNECTIONS", 1)
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    async with serve(Config()) as site:
        assert site.server is not None
        for _ in range(3):
            connection = site.server.connect()
            connection.connection_made(cast("asyncio.Transport", Layer()))
            if turns:
                await asyncio.sleep(0)
                connection.data_received(LIVE + b"\r\n")
            for _ in range(turns - 1):
                await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)
        del connection
        gc.collect()
    assert faults == []


async def test_whose_credentials_were_accepted_does_not_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trivium.observability.http.MAX_CONNECTIONS", 1)
    user = UserConfig(password="x", tags=("monitoring",))
    monkeypatch.setattr("trivium.observability.http.MAX_SCRAPES", 1)
    monkeypatch.setattr(f"{__name__}.MAX_SCRAPES", 1)
    async with serve(Config(users={"ann": user})) as site:
        site.is_held = True
        asking = asyncio.create_task(site.ask("/metrics", basic("ann:x")))
        await site.are_many.wait()
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", site.port)
        assert await closed(other_reader) == b""
        other_writer.close()
        site.is_held = False
        assert (await asking)[0] == 200


async def test_strangers_whose_passwords_are_looked_at_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trivium.observability.http.MAX_CONNECTIONS", 8)
    hashing, go_on = asyncio.Event(), asyncio.Event()

    async def run(work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        hashing.set()
        await go_on.wait()
        done(work())

    monkeypatch.setitem(globals(), "run_in_pool", run)
    user = UserConfig(password=hash_password(b"x"), tags=("monitoring",))
    async with serve(Config(users={"ann": user})) as site:
        request = LIVE.replace(b"/health/live", b"/metrics") + basic("ann:y").encode()
        strangers = []
        for _ in range(7):
            streams = await asyncio.open_connection(
                "127.0.0.1", site.port, local_addr=("127.0.0.2", 0)
            )
            streams[1].write(request + b"\r\n\r\n")
            strangers.append(streams)
        await hashing.wait()
        ends = [asyncio.create_task(closed(reader)) for reader, _ in strangers]
        asking = [asyncio.create_task(site.ask("/metrics", basic("ann:x"))) for _ in range(2)]
        gone, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert (await site.ask("/health/live"))[0] == 200
        go_on.set()
        assert [(await each)[0] for each in asking] == [200, 200]
        assert {each.result() for each in gone} == {b""}
        for each in ends:
            each.cancel()
        for _, writer in strangers:
            writer.close()


def basic(text: str) -> str:
    return "Authorization: Basic " + base64.b64encode(text.encode()).decode()


async def test_metrics_want_credentials_where_anonymous_is_not_admitted() -> None:
    users = {
        "ann": UserConfig(password="plain", tags=("monitoring",)),
        "bob": UserConfig(password=hash_password("pa:ß".encode()), tags=("monitoring",)),
        "cid": UserConfig(password="plain", tags=("policymaker",)),
    }
    config = Config(listen={"http": Listen(0, "0.0.0.0")}, users=users)
    async with serve(config) as site:
        status, headers, _ = await site.ask("/metrics")
        assert (status, headers["WWW-Authenticate"][:5]) == (401, "Basic")
        assert (await site.ask("/metrics", basic("ann:plain")))[0] == 200
        assert (await site.ask("/metrics", basic("bob:pa:ß")))[0] == 200
        assert (await site.ask("/metrics", basic("cid:plain")))[0] == 403
        assert (await site.ask("/metrics", basic("ann:wrong")))[0] == 401
        assert (await site.ask("/metrics", "Authorization: Basic ???"))[0] == 401
        assert (await site.ask("/metrics", "Authorization: Bearer x"))[0] == 401
        assert (await site.ask("/health/ready"))[0] == 200


@pytest.mark.parametrize("user", ["bob", "nobody"])
async def test_a_refusal_takes_the_work_of_a_hash_whoever_is_refused(user: str) -> None:
    async with serve(
        Config(users={"bob": UserConfig(password=hash_password(b"x"), tags=("monitoring",))})
    ) as site:
        assert (await site.ask("/metrics", basic(f"{user}:wrong")))[0] == 401
        assert site.hashed == 1


async def test_who_cannot_be_looked_at_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hash_queue, "MAX_PER_ADDRESS", 0)
    users = {"bob": UserConfig(password=hash_password(b"x"), tags=("monitoring",))}
    async with serve(Config(users=users)) as site:
        for user in ("bob", "nobody"):
            status, headers, _ = await site.ask("/metrics", basic(f"{user}:x"))
            assert (status, headers["Retry-After"]) == (503, "1")


async def test_wrong_credentials_are_refused_even_where_anonymous_is_admitted() -> None:
    async with serve(Config(auth=AuthConfig(anonymous="always"))) as site:
        assert (await site.ask("/metrics"))[0] == 200
        assert (await site.ask("/metrics", basic("ann:wrong")))[0] == 401


@pytest.mark.parametrize(
    ("head", "status", "kind"),
    [
        # RFC 9110, 15.5.15; RFC 6585, 5; RFC 9112, 2.2
        (f"GET /api/v1/queues?name={'x' * 40_000} HTTP/1.1", 414, "uri-too-long"),
        (f"GET / HTTP/1.1\r\nX-Long: {'x' * 9_000}", 431, "header-too-large"),
        ("GET / HTTP/1.1" + "\r\nX: x" * 2_000, 431, "header-too-large"),
        ("GET / HTTP/1.1\r\nX-Cut", 400, "bad-request"),
    ],
    ids=["line", "field", "fields", "malformed"],
)
async def test_a_request_that_cannot_be_read_is_refused_by_a_problem(
    site: Site, head: str, status: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    found, headers, body = await site.send(f"{head}\r\n\r\n".encode())
    problem = json.loads(body)
    assert found == problem["status"] == status
    assert headers["Content-Type"].startswith("application/problem+json")
    assert problem["type"] == f"urn:trivium:problem:{kind}"
    # RFC 9110, 15.5.15: not what it was called before.
    assert problem["title"] in ("Bad Request", "URI Too Long", "Request Header Fields Too Large")
    assert "xxx" not in body
    # Nor does it fill the log: no traceback, and one line.
    records = [record for record in caplog.records if record.name.startswith("trivium")]
    assert [(record.levelname, record.exc_info) for record in records] == [("INFO", None)]


async def test_an_internal_error_is_a_problem_that_tells_nothing(site: Site) -> None:
    site.fault = RuntimeError("s3cret")
    status, headers, body = await site.ask("/health/ready")
    assert status == json.loads(body)["status"] == 500
    assert headers["Content-Type"].startswith("application/problem+json")
    assert "s3cret" not in body
