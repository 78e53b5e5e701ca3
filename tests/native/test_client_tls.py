"""Both clients by ``triviums://`` against a broker on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.certificates import Authority, Pair
from tests.support.live import TIMEOUT
from trivium import Broker, Config
from trivium.common.client_tls import ClientTls
from trivium.config import (
    EVERYTHING,
    AuthConfig,
    Listen,
    ListenerConfig,
    StorageConfig,
    TlsConfig,
    UserConfig,
)
from trivium_native import connect, errors, sync
from trivium_native.values import Publication


@dataclass
class Site:
    """A broker that speaks TLS and, elsewhere, not; both know the user ``ann``."""

    url: str
    plain_url: str
    ca: str
    ca_text: str
    client: Pair
    expired_url: str


def listener(name: str, pair: Pair, authority: Authority) -> ListenerConfig:
    files = TlsConfig(
        certificate=str(pair.certificate), key=str(pair.key), ca=str(authority.ca), user_from="cn"
    )
    return ListenerConfig(name=name, protocol="native", address="127.0.0.1:0", tls=files)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    authority = Authority(tmp_path)
    server = authority.pair("server", "127.0.0.1", "broker.example")
    expired = authority.pair("expired", "127.0.0.1", days=-1)
    config = Config(
        listen={"native": Listen(0)},
        listeners=(listener("tls", server, authority), listener("old", expired, authority)),
        storage=StorageConfig(mode="memory"),
        users={"ann": UserConfig(password="p", permissions=EVERYTHING)},
        auth=AuthConfig(anonymous="never"),
    )
    async with Broker(config) as broker:
        places = broker.listeners
        yield Site(
            f"triviums://{places['tls']}",
            f"trivium://{places['native']}",
            str(authority.ca),
            authority.ca.read_text(),
            authority.pair("ann"),
            f"triviums://{places['old']}",
        )


#: Publishes something by a client with these parameters.
Publish = Callable[..., Awaitable[None]]


async def publish_async(url: str, **options: object) -> None:
    async with asyncio.timeout(TIMEOUT), connect(url, **options) as client:  # type: ignore[arg-type]
        await client.publish(b"x" * 300_000, routing_key="a")


async def publish_sync(url: str, **options: object) -> None:
    def run() -> None:
        with sync.connect(url, timeout=TIMEOUT, **options) as client:  # type: ignore[arg-type]
            client.publish_batch([Publication(payload=b"x" * 300_000, routing_key="a")])

    await asyncio.to_thread(run)


@pytest.fixture(params=[publish_async, publish_sync], ids=["asyncio", "blocking"])
def publish(request: pytest.FixtureRequest) -> Publish:
    found: Publish = request.param
    return found


async def test_a_verified_broker_is_spoken_to(site: Site, publish: Publish) -> None:
    tls = ClientTls(ca=site.ca)
    await publish(site.url.replace("//", "//ann:p@"), tls=tls)
    await publish(site.url, tls=tls, username="ann", password="p")
    named = ClientTls(ca=site.ca_text, server_name="broker.example")
    await publish(site.url, tls=named, username="ann", password="p")
    await publish(site.url, tls=ClientTls(verify=False), username="ann", password="p")


async def test_a_client_certificate_says_who_it_is(site: Site, publish: Publish) -> None:
    tls = ClientTls(ca=site.ca, certificate=str(site.client.certificate), key=str(site.client.key))
    await publish(site.url, tls=tls)
    with pytest.raises(errors.AuthenticationFailed):
        await publish(site.url, tls=ClientTls(ca=site.ca))


async def test_what_keeps_a_client_from_a_broker_is_one_line(site: Site, publish: Publish) -> None:
    tls = ClientTls(ca=site.ca)
    elsewhere = ClientTls(ca=site.ca, server_name="other.example")
    for url, options, text in [
        (site.url, {}, "the certificate does not verify: "),
        (site.url, {"tls": elsewhere}, "certificate is not valid for 'other.example'"),
        (site.expired_url, {"tls": tls}, "certificate has expired"),
        (site.plain_url.replace("trivium", "triviums"), {"tls": tls}, "does not speak TLS there"),
        (site.url.replace("triviums", "trivium"), {}, "the URL begins with triviums://"),
    ]:
        with pytest.raises(errors.ConnectionFailed) as raised:
            await publish(url, **options)
        assert text in raised.value.text
        assert "\n" not in raised.value.text
    with pytest.raises(ValueError, match="does not begin with triviums://"):
        await publish(site.plain_url, tls=tls)
    with pytest.raises(ValueError, match="No such file"):
        await publish(site.url, tls=ClientTls(ca="/nonexistent.pem"))
