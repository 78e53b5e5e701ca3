"""Arbitrary and damaged input: no exception, no effect on others, the same however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.hostile import mqtt_streams
from tests.support.mqtt import (
    Client,
    Server,
    connect,
    publish,
    split,
)
from tests.support.steps import calls
from trivium_mqtt.reader import Reader


class Outcome:
    """What a stream did: to its sender, to a listener, and what remained."""

    def __init__(self, pieces: list[bytes]) -> None:
        server = Server()
        listener = server.open("listener", 5)
        listener.subscribe("#", 2)
        client = server.connect()
        client.feed(*pieces)
        self.written = client.take_bytes()
        self.is_closed = client.is_closed
        self.heard = listener.take_bytes()
        self.check(server, listener, client)
        self.retained = len(server.broker.vhosts["/"].retained)
        self.sessions = sorted(server.broker.vhosts["/"].queues)

    @staticmethod
    def check(server: Server, listener: Client, client: Client) -> None:
        assert not listener.is_closed
        client.lose()
        listener.take_bytes()
        sender = server.open("sender", 5)
        sender.feed(publish("a", b"still alive", version=5))
        assert listener.take_bytes() == publish("a", b"still alive", version=5)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(mqtt_streams(), st.integers(1, 50))
def test_a_stream_has_one_meaning_however_it_is_cut(data: bytes, size: int) -> None:
    whole = Outcome([data])
    by_byte = Outcome([data[at : at + 1] for at in range(len(data))])
    by_size = Outcome([data[at : at + size] for at in range(0, len(data), size)])
    for other in (by_byte, by_size):
        assert split_kinds(other.written) == split_kinds(whole.written)
        assert other.heard == whole.heard
        assert other.is_closed == whole.is_closed
        assert other.retained == whole.retained
        assert other.sessions == whole.sessions


def split_kinds(written: bytes) -> dict[int, list[bytes]]:
    """Answers and deliveries by their kind: each kind is in order, not one beside the other."""
    kinds: dict[int, list[bytes]] = {}
    for first, body in split(written):
        kinds.setdefault(first & 0xF6, []).append(body)
    return kinds


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans())
def test_any_bytes(pieces: list[bytes], is_connected: bool) -> None:
    Outcome([connect("x", 5), *pieces] if is_connected else pieces)


@pytest.mark.pure
@pytest.mark.parametrize("size", [1 << 16, 1 << 18, 1 << 20])
def test_a_packet_in_small_pieces_is_put_together_once(size: int) -> None:
    """Also when it has the topic and size of the packet before, which it is compared with."""
    server = Server()
    receiver = server.open("receiver")
    receiver.subscribe("t")
    sender = server.open("sender")
    data = publish("t", bytes(size))
    sender.feed(data)
    pieces = [data[at : at + 1460] for at in range(0, len(data), 1460)]
    assert calls(Reader.take_frames, lambda: sender.feed(*pieces)) <= 3
    assert receiver.take_bytes() == data * 2
