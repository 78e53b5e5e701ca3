"""The HTTP authenticator: what it asks, what answers mean, and how it fails."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pika
import pytest
import yarl
from aiohttp import web
from pika.exceptions import ProbableAccessDeniedError

from tests.support.authentication import Pool
from trivium.config import Config, HttpAuthConfig, Listen, ListenerConfig, StorageConfig
from trivium.runtime.authentication import Authentication
from trivium.runtime.broker import Broker
from trivium.runtime.fetching import Fetcher
from trivium.security import http_authenticator as module
from trivium.security.attempts import Attempt, Login
from trivium.security.permissions import Grants
from trivium.security.web import WebAnswer, WebRequest
from trivium_native import connect
from trivium_native.errors import AuthenticationFailed

URL = "http://auth.example/check"
#: ann and her password
SHOWN = {"Authorization": "Basic YW5uOnNlY3JldA=="}


class Asked:
    """A broker that asks, and the server's side of it."""

    def __init__(self, **keys: Any) -> None:
        self.now_ms = 1000
        self.requests: list[WebRequest] = []
        self.answers: list[Callable[[WebAnswer | None], None]] = []
        config = Config(http_auth=HttpAuthConfig(url=URL, **keys))
        found = Authentication(config, Pool(), self.fetch, now_ms=lambda: self.now_ms)
        self.authenticator = found.authenticator

    def fetch(self, request: WebRequest, done: Callable[[WebAnswer | None], None]) -> None:
        self.requests.append(request)
        self.answers.append(done)

    def start(self, username: str | None = "ann", **fields: Any) -> list[Login | None]:
        answers: list[Login | None] = []
        shown = {"password": b"secret", "client_id": "c"} | fields
        self.authenticator.authenticate(Attempt(username=username, **shown), answers.append)
        return answers

    def login(self, answer: WebAnswer | None, **fields: Any) -> Login | None:
        answers = self.start(**fields)
        self.answers.pop()(answer)
        (found,) = answers
        return found


def answer(status: int = 200, **body: Any) -> WebAnswer:
    return WebAnswer(status, json.dumps(body).encode())


def test_what_is_asked() -> None:
    asked = Asked(headers={"X-Token": "t"}, timeout_seconds=2)
    asked.start(address="10.0.0.1", protocol="mqtt", vhost="/", certificate_user="cn")
    (request,) = asked.requests
    assert (request.url, request.timeout_ms) == (URL, 2000)
    assert request.headers == (("X-Token", "t"),)
    assert json.loads(request.body or b"") == {
        "username": "ann",
        "password": "secret",
        "clientid": "c",
        "peerhost": "10.0.0.1",
        "protocol": "mqtt",
        "vhost": "/",
        "cert_common_name": "cn",
    }


def test_allow_admits_and_a_superuser_is_an_administrator() -> None:
    login = Asked().login(answer(result="allow"))
    assert login is not None
    assert (login.identity.name, login.identity.tags) == ("ann", frozenset())
    login = Asked().login(answer(result="allow", is_superuser=True, tags=["a"]))
    assert login is not None
    assert login.identity.tags == {"administrator", "a"}
    login = Asked().login(answer(result="allow", expire_at=5))
    assert login is not None
    assert login.expires_ms == 5000
    assert Asked().login(answer(result="allow", expire_at=1)) is None, "expired"
    assert Asked().login(WebAnswer(204, b"")) is not None


@pytest.mark.parametrize(
    "found",
    [
        None,
        answer(result="deny"),
        answer(result="ignore"),
        answer(result="Allow"),
        answer(result=True),
        answer(),
        WebAnswer(200, b""),
        WebAnswer(200, b"allow"),
        WebAnswer(200, b"[" * 60_000),
        WebAnswer(200, b'"allow"'),
        answer(201, result="allow"),
        answer(302, result="allow"),
        answer(400, result="allow"),
        answer(404),
        answer(500, result="allow"),
        answer(result="allow", tags="administrator"),
        answer(result="allow", tags=["x" * 65]),
        answer(result="allow", expire_at="never"),
    ],
)
def test_whatever_else_is_answered_refuses(found: WebAnswer | None) -> None:
    assert Asked().login(found) is None


@pytest.mark.parametrize(("status", "is_admitted"), [(200, True), (403, False), (401, False)])
def test_the_status_alone_may_count(status: int, is_admitted: bool) -> None:
    login = Asked(answer="status").login(WebAnswer(status, b"whatever"))
    assert (login is not None) == is_admitted
    if login is not None:
        assert login.identity.tags == frozenset()
    assert Asked(answer="status").login(WebAnswer(302, b"")) is None


@pytest.mark.parametrize("username", [None, ""])
def test_who_shows_nothing_is_refused_and_nobody_is_asked(username: str | None) -> None:
    asked = Asked()
    assert asked.start(username, password=b"") == [None]
    assert not asked.requests


def test_who_shows_nothing_is_anonymous_only_where_anonymous_clients_may_come() -> None:
    asked = Asked()
    (login,) = asked.start(None, password=b"", admits_anonymous=True)
    assert login is not None
    assert login.identity.is_anonymous
    assert asked.start(None, password=b"", admits_anonymous=False) == [None]


def test_the_first_method_that_knows_the_user_decides() -> None:
    asked = Asked()
    assert asked.start("guest", password=b"wrong", is_loopback=True) == [None]
    assert not asked.requests, "the broker knows guest itself"


def test_an_answer_is_remembered_for_a_time() -> None:
    asked = Asked(cache_seconds=60)
    assert asked.login(answer(result="allow")) is not None
    assert asked.start()[0] is not None
    assert asked.start(password=b"wrong") == []
    assert asked.start(client_id="d") == []
    assert len(asked.requests) == 3
    asked.now_ms += 60_000
    assert asked.start() == []


def test_a_refusal_is_remembered_and_a_failure_is_not() -> None:
    asked = Asked()
    assert asked.login(answer(result="deny")) is None
    assert asked.start() == [None]
    assert len(asked.requests) == 1
    assert asked.login(None, username="bob") is None
    assert asked.start("bob") == []


def test_an_answer_that_expires_is_remembered_no_longer() -> None:
    asked = Asked(cache_seconds=60)
    assert asked.login(answer(result="allow", expire_at=5)) is not None
    asked.now_ms = 5000
    assert asked.start() == []


def test_nothing_may_be_remembered() -> None:
    asked = Asked(cache_seconds=0)
    assert asked.login(answer(result="allow")) is not None
    assert asked.start() == []


def test_so_many_answers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_SIZE", 2)
    asked = Asked()
    for name in ("a", "b", "c"):
        assert asked.login(answer(result="allow"), username=name) is not None
    assert asked.start("c")[0] is not None
    assert asked.start("b")[0] is not None
    assert asked.start("a") == []


def test_a_request_does_not_show_its_secrets() -> None:
    asked = Asked(headers={"X-Token": "hidden"})
    asked.start()
    assert "secret" not in repr(asked.requests)
    assert "hidden" not in repr(asked.requests)
    assert "hidden" not in repr(HttpAuthConfig(url=URL, headers={"X": "hidden"}))


# By the network


class WebServer:
    """Answers one path, and keeps what it was asked."""

    def __init__(self, answer: web.Response, refuses: tuple[str, ...] = ()) -> None:
        self._answer = answer
        self._refuses = refuses
        self.asked: list[dict[str, Any]] = []
        app = web.Application()
        app.router.add_post("/check", self._check)
        self._runner = web.AppRunner(app)
        self.url = ""

    async def _check(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.asked.append(asked)
        if self._refuses:
            result = "deny" if asked["vhost"] in self._refuses else "allow"
            return web.json_response({"result": result})
        return self._answer

    async def __aenter__(self) -> WebServer:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/check"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Answer nobody any more."""
        await self._runner.cleanup()


async def fetched(request: WebRequest) -> WebAnswer | None:
    fetcher = Fetcher(lambda work: work())
    answer: asyncio.Future[WebAnswer | None] = asyncio.get_running_loop().create_future()
    fetcher.fetch(request, answer.set_result)
    try:
        return await answer
    finally:
        await fetcher.stop()


def post(url: str, max_bytes: int = 1000) -> WebRequest:
    return WebRequest(url=url, timeout_ms=5000, max_bytes=max_bytes, body=b'{"a": 1}')


async def test_a_request_is_a_post_of_json() -> None:
    async with WebServer(web.json_response({"result": "allow"})) as server:
        found = await fetched(post(server.url))
    assert found is not None
    assert (found.status, json.loads(found.body)) == (200, {"result": "allow"})
    assert server.asked == [{"a": 1}]


async def test_an_answer_that_is_too_long_is_none() -> None:
    async with WebServer(web.Response(body=b"x" * 1001)) as server:
        assert await fetched(post(server.url)) is None


async def test_an_answer_is_not_inflated() -> None:
    """One that came so is no JSON: it says nothing."""
    zeros = zlib.compress(bytes(1 << 20), wbits=31)
    headers = {"Content-Encoding": "gzip"}
    async with WebServer(web.Response(body=zeros, headers=headers)) as server:
        found = await fetched(post(server.url, 2000))
    assert found is not None
    assert found.body == zeros


async def test_a_redirection_is_not_followed() -> None:
    headers = {"Location": "http://127.0.0.1:1/"}
    async with WebServer(web.Response(status=302, headers=headers)) as server:
        found = await fetched(post(server.url))
    assert found is not None
    assert found.status == 302


async def test_a_server_that_is_not_there_answers_none() -> None:
    async with WebServer(web.Response()) as server:
        url = server.url
    assert await fetched(post(url)) is None


@pytest.mark.parametrize("said", [1, "false", "true", [0], {}])
def test_a_superuser_is_said_by_true_alone(said: Any) -> None:
    login = Asked().login(answer(result="allow", is_superuser=said))
    assert login is not None
    assert login.identity.tags == set()


@pytest.mark.parametrize("name", ["a\nb", "x" * 256, "\ud800"])
def test_what_no_user_may_be_called_is_refused_whatever_is_answered(name: str) -> None:
    assert Asked().login(answer(result="allow"), username=name) is None


# By virtual host


@asynccontextmanager
async def asking(server: WebServer, own: str = "", **keys: Any) -> AsyncIterator[Broker]:
    """A broker whose user ann may do everything in two virtual hosts, if the server lets her."""
    config = Config(
        listen={},
        listeners=tuple(
            ListenerConfig(protocol=name, address="127.0.0.1:0", name=name, virtual_host=own)
            for name in ("amqp", "native")
        ),
        storage=StorageConfig(mode="memory"),
        http_auth=HttpAuthConfig(url=server.url, **keys),
    )
    async with Broker(config) as broker:
        broker.virtual_hosts.declare("shop")
        grants = Grants()
        for name in ("/", "shop"):
            grants.permit(name, ".*", ".*", ".*")
        broker.permissions.set_user("ann", grants)
        yield broker


async def open_amqp(broker: Broker, vhost: str) -> str:
    """What a client is told that opens a virtual host; "" where it is in."""
    port = int(str(broker.listeners["amqp"]).rpartition(":")[2])

    def opened() -> str:
        shown = pika.PlainCredentials("ann", "secret")
        address = pika.ConnectionParameters("127.0.0.1", port, vhost, shown)
        try:
            pika.BlockingConnection(address).close()
        except ProbableAccessDeniedError as error:
            return str(error)
        return ""

    return await asyncio.to_thread(opened)


REFUSED_SHOP = (
    "ConnectionClosedByBroker: (530)"
    """ "NOT_ALLOWED - access to vhost 'shop' refused for user 'ann'\""""
)


async def test_an_amqp_client_is_asked_about_again_for_the_virtual_host_that_it_opens() -> None:
    async with WebServer(web.Response(), ("shop",)) as server, asking(server) as broker:
        told: list[tuple[str, dict[str, object]]] = []
        broker.events.listen(lambda event, about: told.append((event, about)))
        assert await open_amqp(broker, "/") == ""
        assert await open_amqp(broker, "shop") == REFUSED_SHOP
        asked = [(each["vhost"], each["username"], each["password"]) for each in server.asked]
        assert asked == [("", "ann", "secret"), ("/", "ann", "secret"), ("shop", "ann", "secret")]
        assert await open_amqp(broker, "shop") == REFUSED_SHOP
        assert len(server.asked) == 3, "each virtual host has its own answer in the cache"
        denied = [about["reason"] for event, about in told if event == "permission.denied"]
        assert denied == ["access to vhost 'shop' refused for user 'ann'"] * 2
        assert "secret" not in repr(told)


async def test_an_authenticator_that_fails_at_the_virtual_host_refuses_it() -> None:
    async with WebServer(web.Response(), ("-",)) as server, asking(server) as broker:
        assert await open_amqp(broker, "/") == ""
        await server.stop()
        # What is remembered lets it in as far as that goes.
        assert await open_amqp(broker, "/") == ""
        assert await open_amqp(broker, "shop") == REFUSED_SHOP


async def test_a_listener_with_a_virtual_host_asks_for_it_once() -> None:
    async with (
        WebServer(web.Response(), ("",)) as server,
        asking(server, "shop", cache_seconds=0) as broker,
    ):
        assert await open_amqp(broker, "/") == ""
        assert [each["vhost"] for each in server.asked] == ["shop"]


@pytest.mark.parametrize("own", ["", "shop"])
async def test_a_native_client_names_its_virtual_host_with_what_it_shows(own: str) -> None:
    async with WebServer(web.Response(), ("shop",)) as server, asking(server, own) as broker:
        at = broker.listeners["native"]
        with pytest.raises(AuthenticationFailed):
            async with connect(f"trivium://ann:secret@{at}/{'' if own else 'shop'}"):
                pass
        assert [each["vhost"] for each in server.asked] == ["shop"]


@asynccontextmanager
async def asking_http(server: WebServer) -> AsyncIterator[Callable[..., Awaitable[int]]]:
    """Such a broker with HTTP: what asks it as ann, and gets the status; no login fails."""
    config = Config(
        listen={"http": Listen(0)},
        storage=StorageConfig(mode="memory"),
        http_auth=HttpAuthConfig(url=server.url, cache_seconds=0),
    )
    async with Broker(config) as broker, aiohttp.ClientSession() as client:
        broker.virtual_hosts.declare("shop")
        grants = Grants()
        for name in ("/", "shop"):
            grants.permit(name, ".*", ".*", ".*")
        broker.permissions.set_user("ann", grants)
        events: list[str] = []
        broker.events.listen(lambda event, _: events.append(event))

        async def ask(method: str, path: str) -> int:
            url = yarl.URL(f"http://{broker.listeners['http']}/api/{path}", encoded=True)
            async with client.request(method, url, headers=SHOWN, json={}) as answer:
                assert "user.authentication.failure" not in events
                return answer.status

        yield ask


async def test_a_request_over_http_is_asked_about_again_for_the_virtual_host_that_it_names() -> (
    None
):
    async with WebServer(web.Response(), ("shop",)) as server, asking_http(server) as ask:
        found = [
            await ask("GET", "v1/whoami"),
            await ask("POST", "v1/vhosts/%2F/queues/q/leases"),
            await ask("POST", "v1/vhosts/shop/queues/q/leases"),
        ]
        assert [each["vhost"] for each in server.asked] == ["", "", "/", "", "shop"]
    assert found == [403, 404, 403]


async def test_a_virtual_host_that_is_denied_over_http_is_no_failed_login() -> None:
    async with WebServer(web.Response(), ("shop",)) as server, asking_http(server) as ask:
        # Further ones would wait, and so would those for another virtual host.
        found = [await ask("POST", "v1/vhosts/shop/queues/q/leases") for _ in range(8)]
        found.append(await ask("GET", "queues/shop"))
        assert found == [403] * 8 + [401]
        assert await ask("POST", "v1/vhosts/%2F/queues/q/leases") == 404
