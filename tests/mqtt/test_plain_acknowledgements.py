"""The fast path of PUBACK and the like: it recognises what the decoder reads so, and has the same
effect."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.support.mqtt import Client, Server, acknowledge, puback, publish, pubrec
from tests.support.server import ShortTurns
from trivium.runtime.framed import CLOCK_FRAMES
from trivium_mqtt.codec.packets import (
    PLAIN_SIZE,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Acknowledgement,
    plain_acknowledgement,
)
from trivium_mqtt.codec.reasons import RemoteError
from trivium_mqtt.codec.wire import read_fixed_header
from trivium_mqtt.reader import LONGEST_PUBACK_RUN

VERSIONS = [3, 4, 5]


FIRSTS = [PUBACK, PUBREC, PUBREL, PUBCOMP]


def recognised(first: int, data: bytes, at: int, end: int) -> tuple[list[int], int]:
    """The identifiers of the run of plain packets at ``at``, and where it ends."""
    found: list[int] = []
    while packet_id := plain_acknowledgement(first, data, at, end):
        found.append(packet_id)
        at += PLAIN_SIZE
    return found, at


def decoded(first: int, data: bytes, at: int, end: int, version: int) -> tuple[list[int], int]:
    """The same, of packets that are read one by one."""
    found: list[int] = []
    while at < end and data[at] == first:
        try:
            body, after = read_fixed_header(data, at, end)
            if after > end or after - body > 2:
                # It is not whole, or says more than which message it is for.
                break
            packet = Acknowledgement(first, data, body, after, version)
        except RemoteError:
            break
        assert packet.reason == 0
        found.append(packet.packet_id)
        at = after
    return found, at


identifiers = st.one_of(st.integers(0, 3), st.integers(0, 65_535))


def plain(first: int, packet_id: int) -> bytes:
    return bytes([first, 2]) + packet_id.to_bytes(2, "big")


def parts(first: int) -> st.SearchStrategy[bytes]:
    """What may be in a stream: mostly plain packets, and what is alike."""
    head = bytes([first])
    return st.one_of(
        identifiers.map(lambda packet_id: plain(first, packet_id)),
        identifiers.map(lambda packet_id: plain(first, packet_id)),
        identifiers.map(lambda packet_id: plain(first, packet_id)),
        st.builds(acknowledge, st.just(first), identifiers, st.sampled_from([0, 0x10, 0x80, 0x91])),
        identifiers.map(lambda packet_id: acknowledge(first, packet_id, 0) + b"\x00"),
        st.builds(plain, st.sampled_from(FIRSTS), identifiers),
        st.sampled_from([head + b"\x00", head + b"\x01\x01", head + b"\x82\x00\x00\x01"]),
        st.binary(max_size=5),
    )


@st.composite
def streams(draw: st.DrawFn, first: int) -> bytes:
    """A run of plain packets and others, with a few bytes changed, and cut."""
    run = draw(
        st.lists(st.integers(1, 65_535).map(lambda number: plain(first, number)), max_size=6)
    )
    data = bytearray(b"".join(run + draw(st.lists(parts(first), max_size=4))))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        if data:
            at = draw(st.integers(0, len(data) - 1))
            data[at] = draw(st.sampled_from([0, 1, 2, 3, *FIRSTS, first + 1, 0x82, 0xFF]))
    return bytes(data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))])


@settings(max_examples=500)
@pytest.mark.parametrize("first", FIRSTS)
@given(st.sampled_from(VERSIONS), st.data(), st.binary(max_size=5), st.binary(max_size=5))
def test_a_run_is_what_the_decoder_reads_one_by_one(
    first: int, version: int, draw: st.DataObject, before: bytes, behind: bytes
) -> None:
    """Whatever lies before it, and whatever lies behind what was read."""
    data = draw.draw(streams(first))
    at, end = len(before), len(before) + len(data)
    found = recognised(first, before + data + behind, at, end)
    event(f"a run of {len(found[0])}")
    assert found == decoded(first, before + data + behind, at, end, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("first", FIRSTS)
def test_any_first_two_bytes_and_any_identifier_are_recognised_as_they_are_read(
    version: int, first: int
) -> None:
    for two in range(65_536):
        changing = two.to_bytes(2, "big")
        for data in (changing + b"\x00\x01", bytes([first, 2]) + changing):
            assert recognised(first, data, 0, 4) == decoded(first, data, 0, 4, version), data.hex()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("first", FIRSTS)
def test_a_run_ends_where_what_was_read_does(version: int, first: int) -> None:
    data = plain(first, 1) + plain(first, 2) + plain(first, 3)
    for end in range(len(data) + 1):
        expected = ([1, 2, 3][: end // 4], end // 4 * 4)
        assert recognised(first, data, 0, end) == expected
        assert decoded(first, data, 0, end, version) == expected


# What it does


def with_reason(first: int, packet_id: int) -> bytes:
    """The form of MQTT 5 that says in full what a plain one says, and that is decoded."""
    return bytes([first, 3]) + packet_id.to_bytes(2, "big") + b"\x00"


class World:
    """A client to which messages were sent: identifiers 1, 3, 5 at QoS 1 and 2, 4 at QoS 2.

    Of 4 it has sent PUBREC. It has itself sent 1 and 2 at QoS 2.
    """

    def __init__(self) -> None:
        self.server = Server()
        self.client: Client = self.server.open("c", 5)
        self.client.subscribe("t", 2)
        self.sender = self.server.open("sender", 5)
        for number in range(1, 6):
            self.sender.feed(publish("t", b"%d" % number, 1 + (number % 2 == 0), number, 5))
        self.client.feed(pubrec(4))
        self.client.feed(publish("of its own", b"", 2, 1, 5) + publish("of its own", b"", 2, 2, 5))
        self.client.take_bytes()

    def seen(self, data: bytes) -> object:
        """What the client is sent once it has sent ``data``, and what is left for it."""
        self.client.feed(data)
        for number in (6, 7, 8):
            self.sender.feed(publish("t", b"%d" % number, 1, number, 5))
        queues = [len(queue) for queue in self.server.vhost.queues.values()]
        found = self.client.take_bytes(), self.client.is_closed, queues
        self.client.lose()
        return found, self.server.adapter.metrics.protocol_errors


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(FIRSTS), st.one_of(st.sampled_from([1, 3, 5]), st.integers(0, 7))
        ),
        max_size=7,
    )
)
def test_a_run_has_the_effect_of_its_packets_read_one_by_one(sent: list[tuple[int, int]]) -> None:
    short = b"".join(plain(first, packet_id) for first, packet_id in sent)
    in_full = b"".join(with_reason(first, packet_id) for first, packet_id in sent)
    assert World().seen(short) == World().seen(in_full)


def test_a_run_ends_with_the_turn() -> None:
    server = Server()
    client = server.open("c", 4)
    client.subscribe("t", 1)
    driver = ShortTurns()
    server.broker.driver = server.driver = driver
    count = 5000
    client.connection.feed(b"".join(puback(1 + number) for number in range(count)) + b"\xc0\x00")
    turns = 1
    while driver.next:
        assert driver.next == [client.connection]
        driver.next.clear()
        client.connection.next_turn()
        turns += 1
        client.feed()
    assert client.take_bytes() == b"\xd0\x00"
    assert turns >= count // (LONGEST_PUBACK_RUN + CLOCK_FRAMES)
