"""What clients call this machine: a page of another site that leads here is no client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from socket import gethostname

import aiohttp
import pytest

from trivium.config import AuthConfig, Config, Listen, StorageConfig
from trivium.listen import names_this_machine
from trivium.runtime.broker import Broker

OURS = (
    "",
    "localhost",
    "LocalHost:15672",
    "localhost.",
    "broker.localhost",
    "127.0.0.1:15672",
    "127.1.2.3",
    "[::1]:15672",
    "[::ffff:127.0.0.1]",
    gethostname(),
)
FOREIGN = (
    "evil.example",
    "evil.example:15672",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example:127.0.0.1",
    "localhost@evil.example",
    "evil.example#localhost",
    "evil.example/localhost",
    "10.0.0.1",
    "0.0.0.0",
    "[",
    ":80",
    "notlocalhost",
)


@pytest.mark.parametrize("host", OURS)
def test_names_of_this_machine(host: str) -> None:
    assert names_this_machine(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_names_of_others(host: str) -> None:
    assert not names_this_machine(host)


@pytest.fixture
def config() -> Config:
    return Config(listen={"http": Listen(0)}, storage=StorageConfig(mode="memory"))


class Asks:
    """The statuses of what is asked by a host."""

    def __init__(self, broker: Broker, client: aiohttp.ClientSession) -> None:
        self._url = f"http://{broker.listeners['http']}"
        self._client = client

    async def ask(self, path: str, host: str, password: str = "") -> tuple[int, str]:
        headers = {"Host": host}
        if password:
            headers["Authorization"] = aiohttp.encode_basic_auth("guest", password)
        async with self._client.get(self._url + path, headers=headers) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def asks(config: Config) -> AsyncIterator[Asks]:
    async with Broker(config) as broker, aiohttp.ClientSession() as client:
        broker.vhost("/").declare_queue("q")
        yield Asks(broker, client)


MESSAGES = "/api/v1/vhosts/%2F/streams/none/partitions/0/records"


async def test_without_credentials_only_who_calls_this_machine_by_its_name_comes(
    asks: Asks,
) -> None:
    assert (await asks.ask(MESSAGES, "localhost:1"))[0] == 404
    assert (await asks.ask(MESSAGES, "127.0.0.1"))[0] == 404
    status, text = await asks.ask(MESSAGES, "evil.example")
    assert status == 401
    assert "who calls it localhost" in text


async def test_who_may_come_from_this_machine_alone_calls_it_by_its_name(asks: Asks) -> None:
    for path in ("/api/whoami", "/api/v1/whoami"):
        assert (await asks.ask(path, "localhost:1", "guest"))[0] == 200
        status, text = await asks.ask(path, "evil.example", "guest")
        assert status == 401
        assert "who calls it localhost" in text


async def test_probes_and_scrapes_call_it_what_they_like(asks: Asks) -> None:
    for path in ("/health/live", "/health/ready", "/metrics"):
        assert (await asks.ask(path, "pod.example"))[0] == 200


async def test_where_everybody_may_come_names_say_nothing(config: Config) -> None:
    config = replace(config, auth=AuthConfig(anonymous="always"))
    async with Broker(config) as broker, aiohttp.ClientSession() as client:
        assert (await Asks(broker, client).ask(MESSAGES, "broker.example"))[0] == 404
