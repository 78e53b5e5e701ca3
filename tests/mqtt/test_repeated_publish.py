"""The fast path of PUBLISH: it recognises exactly what the decoder says the same of."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.mqtt import KEPT, Client, Server, packet, publish, subscribe, text
from tests.support.simulated import Host
from trivium_mqtt.codec.publish import PublishDecoder, RepeatedPublish
from trivium_mqtt.codec.reasons import RemoteError
from trivium_mqtt.codec.wire import read_fixed_header
from trivium_mqtt.options import MqttOptions

#: more packets than there are
MANY = 1_000
#: bytes of the largest packet, so small that tests get there
MOST = 400


@dataclass(frozen=True)
class Said:
    """What the decoder says of a packet, without payload and packet identifier."""

    first: int
    topic: bytes
    has_properties: bool
    size: int


def read(data: bytes, at: int, is_v5: bool) -> tuple[Said, int, bytes] | None:
    """The packet at ``at``, where it ends, and its payload; None unless a whole, valid one."""
    try:
        body, end = read_fixed_header(data, at, len(data))
        if end > len(data) or end - at > MOST or data[at] >> 4 != 3:
            return None
        found = PublishDecoder(is_v5).decode(data[at], data, body, end)
    except RemoteError:
        return None
    payload = data[found.payload_at : end]
    return Said(data[at], found.topic, found.properties is not None, end - at), end, payload


def follow(data: bytes, at: int, is_v5: bool, like: Said) -> tuple[int, int]:
    """The run at ``at`` of packets of which the decoder says the same as ``like``, one by one."""
    count = 0
    while at < len(data):
        found = read(data, at, is_v5)
        if found is None:
            break
        said, end, _ = found
        if said.first & 0x06:
            is_same = said == like
        else:
            # At QoS 0 any size, but for those with a fixed header of four bytes and more.
            is_same = (
                end - at < 0x4000
                and Said(said.first, said.topic, said.has_properties, like.size) == like
            )
        if not is_same:
            break
        at = end
        count += 1
    return at, count


topics = st.sampled_from([b"a", b"a", b"ab", b"a/b", b"\xff", b"\x00\x01"])


@st.composite
def packets(draw: st.DrawFn, is_v5: bool) -> bytes:
    qos = draw(st.sampled_from([0, 0, 1, 1, 2, 3]))
    first = 0x30 | qos << 1 | draw(st.sampled_from([0, 0, 0, 0, 1, 8]))
    body = text(draw(topics))
    if qos:
        body += bytes((0, draw(st.sampled_from([0, 1, 2, 2]))))
    if is_v5:
        body += draw(st.sampled_from([b"\x00", b"\x00", b"\x00", b"\x02\x01\x01", b"\x80\x00"]))
    size = draw(st.sampled_from([0, 1, 1, 1, 2, 120, 125, 126, 130, MOST]))
    return packet(first, body + draw(st.sampled_from([b"x", b"\x00", b"\x30"])) * size)


BYTES = [0, 1, 2, 3, 4, 5, 0x30, 0x32, 0x7F, 0x80, 0x81, 0xFF]


@st.composite
def streams(draw: st.DrawFn, is_v5: bool, first: bytes) -> bytes:
    """``first`` and others again and again, with a few bytes changed, and cut."""
    some = [first, first, *draw(st.lists(packets(is_v5), max_size=3))]
    picked = [bytearray(one) for one in draw(st.lists(st.sampled_from(some), max_size=12))]
    for one in picked:
        change = draw(st.integers(0, 5))
        if change == 0 and one[1] < 0x80:
            # A remaining length of more bytes than it needs.
            one[1:2] = bytes((one[1] | 0x80, 0))
        elif change == 1 and one[1] < 0x80:
            # Behind fixed header and topic: packet identifier 0, or properties.
            begin = 4 + one[3]
            changed = draw(st.sampled_from([b"\0\0", b"\0\1\1", b"\2\1\1"]))
            one[begin : begin + len(changed)] = changed[: len(one) - begin]
        elif change == 2:
            one[draw(st.integers(0, min(9, len(one) - 1)))] = draw(st.sampled_from(BYTES))
    data = b"".join([first, *picked])
    return data[: draw(st.one_of(st.just(len(data)), st.integers(1, len(data))))]


@settings(max_examples=1500)
@given(st.booleans(), st.data())
def test_a_run_is_what_the_decoder_says_the_same_of(is_v5: bool, draws: st.DataObject) -> None:
    first = draws.draw(packets(is_v5))
    check(is_v5, first, draws.draw(streams(is_v5, first)))


def check(is_v5: bool, first: bytes, data: bytes) -> None:
    repeated = RepeatedPublish(is_v5, MOST)
    assert repeated.run(data, 0, len(data), MANY) == (0, 0), "nothing is remembered"
    found = read(first, 0, is_v5)
    if found is None:
        return
    said, end, _ = found
    body, _ = read_fixed_header(first, 0, len(first))
    publish = PublishDecoder(is_v5).decode(first[0], first, body, end)
    is_usual = said.first in (0x30, 0x32, 0x34) and not said.has_properties
    assert repeated.remember(first, 0, body, end, publish) == is_usual
    if not is_usual:
        return
    for start in (0, min(len(first), len(data)), len(data) // 2):
        after, count = repeated.run(data, start, len(data), MANY)
        assert (after, count) == follow(data, start, is_v5, said)
        check_payloads(repeated, data, start, after, is_v5)


def check_payloads(
    repeated: RepeatedPublish, data: bytes, at: int, after: int, is_v5: bool
) -> None:
    """Where it says that payloads begin is where the decoder finds them."""
    while at < after:
        found = read(data, at, is_v5)
        assert found is not None
        _, end, payload = found
        body, _ = read_fixed_header(data, at, len(data))
        begin = at if repeated.qos else body
        assert data[begin + repeated.payload_at : end] == payload
        at = end


def test_a_packet_of_the_maximum_is_recognised_and_one_byte_more_is_not() -> None:
    first = publish("a", b"")
    most = publish("a", b"x" * (MOST - 6))
    assert len(most) == MOST
    repeated = RepeatedPublish(False, MOST)
    publication = PublishDecoder(False).decode(0x30, first, 2, len(first))
    assert repeated.remember(first, 0, 2, len(first), publication)
    assert repeated.run(most, 0, len(most), MANY) == (MOST, 1)
    more = publish("a", b"x" * (MOST - 5))
    assert repeated.run(more, 0, len(more), MANY) == (0, 0)


@given(st.integers(0, 20_000))
@example(0x3FFF - 3)
@example(0x4000 - 3)
def test_sizes_from_a_fixed_header_of_four_bytes_on_are_left_to_the_decoder(size: int) -> None:
    repeated = RepeatedPublish(False, 1 << 20)
    first = publish("a", b"first")
    publication = PublishDecoder(False).decode(0x30, first, 2, len(first))
    assert repeated.remember(first, 0, 2, len(first), publication)
    data = publish("a", b"y" * size)
    is_recognised = size + 3 < 0x4000
    assert repeated.run(data, 0, len(data), MANY) == ((len(data), 1) if is_recognised else (0, 0))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 0x3A),  # DUP
        (0, 0x33),  # RETAIN
        (0, 0x36),  # QoS 3
        (1, 0x0A),  # another size
        (4, ord("b")),  # another topic
        (6, 0),  # packet identifier 0
        (7, 1),  # properties
    ],
)
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_special_ends_a_run_with_identifiers(place: int, value: int, qos: int) -> None:
    usual = publish("a", b"xxx", qos, 2, 5)
    special = bytearray(usual)
    special[place] = value
    check(True, usual, usual * 2 + special + usual)
    repeated = RepeatedPublish(True, MOST)
    decoded = PublishDecoder(True).decode(usual[0], usual, 2, len(usual))
    assert repeated.remember(usual, 0, 2, len(usual), decoded)
    data = usual * 2 + special + usual
    assert repeated.run(data, 0, len(data), MANY) == (2 * len(usual), 2)


@pytest.mark.parametrize(
    "special",
    [
        b"\x30\x02\x00\x01",  # ends before its topic, which follows it
        b"\x30\x00",
        b"\x30\x83\x00\x00\x01a",  # a remaining length of more bytes than it needs
        b"\x30\x83\x80\x00\x00\x01a",
        b"\x30\x83\x80\x80\x00\x00\x01a",
        b"\x31\x03\x00\x01a",  # RETAIN
        b"\x38\x03\x00\x01a",  # DUP
        b"\x30\x03\x00\x01b",  # another topic
        b"\x30\xff\xff\x7f\x00\x01a",  # not whole, and too large
        b"\x30",
        b"\x30\x83",
        b"\xc0\x00",
    ],
)
@pytest.mark.parametrize("behind", [b"", b"a", b"ab\x00", b"\x00\x01a" * 50])
def test_what_is_special_ends_a_run_at_qos_0(special: bytes, behind: bytes) -> None:
    usual = publish("a", b"xyz")
    data = usual + publish("a", b"") + special + behind
    check(False, usual, data)
    repeated = RepeatedPublish(False, 1 << 28)
    decoded = PublishDecoder(False).decode(usual[0], usual, 2, len(usual))
    assert repeated.remember(usual, 0, 2, len(usual), decoded)
    assert repeated.run(data, 0, len(data), MANY) == (len(usual) + 5, 2)


def test_a_remaining_length_of_three_bytes_is_left_to_the_decoder() -> None:
    usual = publish("a", b"xyz")
    repeated = RepeatedPublish(False, 1 << 28)
    decoded = PublishDecoder(False).decode(usual[0], usual, 2, len(usual))
    assert repeated.remember(usual, 0, 2, len(usual), decoded)
    # Read as one of two bytes, this is a whole packet with the same topic.
    data = b"\x30\x83\x80" + b"\x00\x01a" + bytes(1 << 15)
    assert repeated.run(data, 0, len(data), MANY) == (0, 0)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (1, 2, 3, 4)])
def test_no_more_packets_than_are_wanted(qos: int, sizes: tuple[int, ...]) -> None:
    usual = publish("a", b"xxx", qos, 7)
    repeated = RepeatedPublish(False, MOST)
    decoded = PublishDecoder(False).decode(usual[0], usual, 2, len(usual))
    assert repeated.remember(usual, 0, 2, len(usual), decoded)
    packets = [publish("a", b"x" * size, qos, 7) for size in sizes]
    if qos and sizes[0] != 3:
        return
    data = b"".join(packets)
    for most in range(len(sizes) + 1):
        assert repeated.run(data, 0, len(data), most) == (len(b"".join(packets[:most])), most)


class World:
    """A publisher, and subscribers at these levels of QoS, of whom some stay, on disk or not.

    A subscriber takes four messages at a time; in memory six may wait for it, and the publisher may
    send seven before it is answered. Each has a queue, also those at QoS 0.
    """

    def __init__(self, version: int, levels: list[int], is_on_disk: bool) -> None:
        options = MqttOptions(maximum_queued=6, receive_maximum=7)
        self.server = Server(host=Host() if is_on_disk else None, options=options)
        self.others: list[Client] = []
        for number, qos in enumerate(levels):
            # Receive maximum 4.
            other = self.server.open_kept(f"o{number}", 5, properties=KEPT + b"\x21\x00\x04")
            for topic, level in (("a", qos), ("b", 1)):
                other.feed(subscribe(topic, level, version=5))
                self.server.sync()
                assert other.take_first() == (0x90, bytes((0, 1, 0, level)))
            self.others.append(other)
        self.client = self.server.open("c", version)

    def seen(self, data: bytes) -> object:
        """What the clients are sent once one has sent ``data``, and what was counted."""
        self.client.feed(data)
        clients = [self.client, *self.others]
        sent = [(each.take_bytes(), each.is_closed) for each in clients]
        self.server.sync()
        metrics = self.server.adapter.metrics
        counts = [metrics.messages_received, metrics.messages_dropped, metrics.protocol_errors]
        for name, queue in sorted(self.server.vhost.queues.items()):
            if name.startswith("amq.mqtt-session.o"):
                counts += [len(queue), queue.counters.published, queue.unsettled]
        return sent, [(each.take_bytes(), each.is_closed) for each in clients], counts


def release(packet_id: int) -> bytes:
    return b"\x62\x02" + packet_id.to_bytes(2, "big")


@settings(max_examples=300)
@given(
    st.sampled_from([4, 5]),
    st.sampled_from([[2, 0], [1], [2], [0], []]),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from([1, 1, 1, 1, 2, 2, "release"]),
            st.sampled_from([1, 2, 3, 40_000]),
            st.sampled_from([b"xxx", b"yyy", b"longer"]),
        ),
        max_size=16,
    ),
)
@example(4, [1], False, [(1, number, b"xxx") for number in range(1, 12)])
@example(5, [2], True, [(1, number, b"xxx") for number in range(1, 12)])
def test_a_run_has_the_effect_of_its_packets_read_one_by_one(
    version: int, levels: list[int], is_on_disk: bool, sent: list[tuple[int | str, int, bytes]]
) -> None:
    runs = one_by_one = b""
    for what, packet_id, payload in sent:
        if isinstance(what, str):
            runs += release(packet_id)
            one_by_one += release(packet_id)
            continue
        usual = publish("a", payload, what, packet_id, version)
        runs += usual
        # Said to be a repetition it means the same, and is special.
        one_by_one += bytes([usual[0] | 8]) + usual[1:]
    worlds = [World(version, levels, is_on_disk) for _ in range(2)]
    assert worlds[0].seen(runs) == worlds[1].seen(one_by_one)


@pytest.mark.parametrize("size", [100, 50_000])
def test_a_decoder_does_not_keep_large_properties(size: int) -> None:
    decoder = PublishDecoder(True)
    pair = b"\x26" + text(b"name") + text(b"v" * size)
    data = publish("a", b"x", properties=pair, version=5)
    body, _ = read_fixed_header(data, 0, len(data))
    first = decoder.decode(data[0], data, body, len(data)).properties
    again = decoder.decode(data[0], data, body, len(data)).properties
    assert first is not None
    assert again is not None
    assert (first is again) == (size == 100)
    assert first.raw == again.raw
