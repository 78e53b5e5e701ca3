"""The section ``[native]``: what each key of it does, by the frames that clients see."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.support.native import Client, Server, code, entry, limited, publish
from trivium.config import Config, LimitsConfig, Listen, ListenerConfig
from trivium.errors import ConfigError
from trivium_native.server.options import NativeOptions
from trivium_native.wire import frames


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_message_bytes", -1),
        ("max_heartbeat", -1),
        ("max_subscriptions", 0),
        ("max_fetches", 0),
        ("max_fetch_bytes", 0),
        ("max_fetch_wait_ms", 0),
        ("max_unconfirmed", 0),
    ],
)
def test_a_value_out_of_its_range_is_refused(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be from "):
        NativeOptions(**{key: value})


@pytest.mark.parametrize(("own", "of_all", "held_to"), [(90, 200, 90), (0, 80, 80), (300, 70, 70)])
def test_the_largest_message_is_the_smaller_of_both_limits(
    own: int, of_all: int, held_to: int
) -> None:
    config = Config(
        listen={"native": Listen(0)},
        limits=LimitsConfig(max_message_bytes=of_all),
        protocols={"native": NativeOptions(max_message_bytes=own)},
    )
    client = Server(None, config).open()
    client.ask(frames.DECLARE, kind="queue", name="q")

    def answer(size: int) -> int:
        received = client.send(frames.PUBLISH, 1, publish(entry(payload=bytes(size))))
        return received[0][0]

    assert answer(held_to) == frames.CONFIRM
    assert answer(held_to + 1) == frames.ERROR


def test_a_longer_heartbeat_is_refused() -> None:
    server = Server(None, limited(max_heartbeat=10))
    server.open(heartbeat=10)
    client = server.connect()
    hello = {"protocol": "trivium", "version": 1, "heartbeat": 11}
    assert code(client.send(frames.HELLO, 1, hello)) == 100


LIVE = {"mode": "pubsub", "exchange": "amq.topic", "pattern": b"t"}


def test_the_number_of_subscriptions_is_bounded() -> None:
    client = Server(None, limited(max_subscriptions=2)).open()
    for number in (1, 2):
        client.ask(frames.SUBSCRIBE, subscription=number, **LIVE)
    assert client.refused(frames.SUBSCRIBE, subscription=3, **LIVE) == 403


@pytest.fixture
def reader() -> Client:
    """A client of a stream with three records of 100 bytes, each in a batch of its own."""
    limits = limited(max_fetches=2, max_fetch_bytes=150, max_fetch_wait_ms=50)
    client = Server(None, limits).open()
    client.ask(frames.DECLARE, kind="stream", name="s")
    client.ask(frames.BIND, exchange="amq.topic", kind="stream", name="s", pattern=b"#")
    for number in range(1, 4):
        one = entry(payload=bytes(100), exchange=b"amq.topic", key=b"t")
        assert client.send(frames.PUBLISH, number, publish(one))[0][0] == frames.CONFIRM
    return client


def fetch(client: Client, **fields: Any) -> list[tuple[int, int, bytes]]:
    return client.send(frames.FETCH, 8, {"stream": "s", "partition": 0, **fields})


def test_a_fetch_is_bounded_in_bytes(reader: Client) -> None:
    for wanted in ({}, {"max_bytes": 1 << 20}):
        ((kind, _, body),) = fetch(reader, offset=0, **wanted)
        assert kind == frames.FETCHED
        assert len(body) < 400


def test_waiting_fetches_are_bounded(reader: Client) -> None:
    for _ in range(2):
        assert fetch(reader, offset=3, max_wait_ms=40) == []
    ((kind, _, body),) = fetch(reader, offset=3, max_wait_ms=40)
    assert (kind, msgpack.unpackb(body)[0]) == (frames.ERROR, 403)


def test_a_fetch_waits_no_longer_than_is_set(reader: Client) -> None:
    assert fetch(reader, offset=3, max_wait_ms=60_000) == []
    reader.server.broker.now_ms += 49
    reader.server.broker.end_turn()
    assert reader.take() == []
    reader.server.broker.now_ms += 1
    reader.server.broker.end_turn()
    assert len(reader.take()) == 1


def test_a_listener_has_options_of_its_own() -> None:
    own = NativeOptions(max_subscriptions=1)
    listener = ListenerConfig(protocol="native", address="127.0.0.1:0", options=own)
    client = Server(None, Config(listen={}, listeners=(listener,))).open()
    client.ask(frames.SUBSCRIBE, subscription=1, **LIVE)
    assert client.refused(frames.SUBSCRIBE, subscription=2, **LIVE) == 403
