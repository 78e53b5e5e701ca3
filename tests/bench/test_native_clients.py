"""The native clients: their bytes beside the documents', and loads on a real broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import native_frames
from bench.endpoints import Address, PeerError
from bench.frames import SEQUENCE, FrameBlock, payload
from bench.load import run_count, run_paced
from bench.native_clients import NativeConsumer, NativePublisher, NativeSetup
from bench.scenarios import SCENARIOS, Scenario, open_lanes
from bench.servers import TriviumInterpreted
from bench.verify import Tally
from tests.native import vectors
from tests.support.endpoints import ADDRESS, BODY, feed, native_server_end
from trivium_native.wire.frames import FrameReader
from trivium_native.wire.messages import decode_message

FRAMES = vectors.frames()
NATIVE = [scenario for scenario in SCENARIOS.values() if scenario.source == "native"]


def test_requests_are_the_documents() -> None:
    hello = native_frames.request(
        native_frames.HELLO, 1, protocol="trivium", version=1, heartbeat=30, client="doc"
    )
    assert hello == FRAMES["HELLO"]
    fetch = native_frames.request(
        native_frames.FETCH, 9, stream="s", partition=0, offset=42, min_bytes=1, max_wait_ms=500
    )
    assert fetch == FRAMES["FETCH"]


def test_an_acknowledgement_is_the_documents() -> None:
    block = FrameBlock(*native_frames.ack(1), 1)
    block.column(native_frames.FIRST_TAG)[:] = 1
    block.column(native_frames.LAST_TAG)[:] = 5
    assert bytes(block.take(1)) == FRAMES["ACK"]


@pytest.mark.parametrize("producer", [b"", b"p1"])
def test_the_broker_reads_a_block_of_publishes(producer: bytes) -> None:
    frame, fields = native_frames.publish("q", BODY, 3, producer, 2)
    block = FrameBlock(frame, fields, 2)
    block.column(native_frames.CORRELATION)[:] = [7, 8]
    block.column(native_frames.MESSAGES)[SEQUENCE][:] = [[0, 1, 2], [3, 4, 5]]
    if producer:
        block.column(native_frames.NUMBER)[:] = [300, 303]
    reader = FrameReader(1 << 20)
    reader.feed(bytes(block.take(2)))
    first, second = reader.frames()
    assert (first.kind, first.correlation, second.correlation) == (0x10, 7, 8)
    head = bytes.fromhex("03 00 00 00")
    if producer:
        head += (
            bytes.fromhex("01 00 00 00  02 00 00 00 02 00 00 00 2f 01 00 00 00 00 00 00") + b"p1"
        )
    else:
        head += bytes(4)
    assert second.body.startswith(head)
    at, bodies = len(head), []
    while at < len(second.body):
        message, at = decode_message(second.body, at)
        assert (message.flags, message.exchange, message.key) == (5, b"", b"q")
        bodies.append(message.payload)
    assert bodies == [number.to_bytes(8, "little") + BODY[8:] for number in (3, 4, 5)]


def test_a_delivery_is_laid_out_as_the_documents() -> None:
    vector = FRAMES["DELIVER"]
    message = b"amq.topic" + b"a.b"
    head, size, fields = native_frames.delivery(1, message.decode(), payload(16))
    assert size == len(vector) - len(b"hi") + 16
    assert head[4:] == vector[4 : len(head)]
    tag_at = fields[native_frames.TAG][1]
    assert vector[tag_at : tag_at + 8] == (5).to_bytes(8, "little")
    assert vector[fields[SEQUENCE][1] :] == b"hi"


def test_a_record_batch_of_payloads_of_other_sizes_is_not_taken() -> None:
    with pytest.raises(ValueError, match="payloads of other sizes"):
        native_frames.payloads(vectors.record_batch(), 0, 2)
    with pytest.raises(ValueError, match="not a plain record batch"):
        native_frames.payloads(bytes(64), 0, 2)


def confirm(first: int, requests: int) -> bytes:
    return native_frames.frame(native_frames.CONFIRM, first, requests.to_bytes(4, "little"))


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 60))
def test_confirms_of_runs_settle_the_messages_of_their_requests(
    amounts: list[int], piece: int
) -> None:
    with native_server_end() as server:
        publisher = NativePublisher(ADDRESS, "q", BODY, 40, 7)
        sizes = []
        for amount in amounts:
            left = amount
            while left:
                count = publisher.publish(left)
                each = 7 if left >= 7 else 1
                sizes += [each] * (count // each)
                left -= count
        assert publisher.unsettled == sum(amounts) == sum(sizes)
        if sizes:
            half = max(1, len(sizes) // 2)
            feed(publisher, server, confirm(1, half), piece)
            assert publisher.settled == sum(sizes[:half])
            if half < len(sizes):
                feed(publisher, server, confirm(1 + half, len(sizes) - half), piece)
            assert publisher.unsettled == 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (confirm(2, 1), "request 2 confirmed where 1 is next"),
        (confirm(1, 2), "1 requests confirmed that were never sent"),
        (native_frames.frame(native_frames.ERROR, 1, b"\x92\xcd\x01\x90\xa4full"), "400 full"),
        (native_frames.frame(native_frames.DELIVER, 1, bytes(4)), "0x22 where CONFIRM"),
    ],
)
def test_a_publisher_takes_no_other_answers(answer: bytes, message: str) -> None:
    with native_server_end() as server:
        publisher = NativePublisher(ADDRESS, "q", BODY, 10)
        publisher.publish(1)
        with pytest.raises(PeerError, match=message):
            feed(publisher, server, answer, 1000)


@pytest.mark.parametrize("piece", [1, 50, 100000])
def test_a_consumer_settles_every_so_many_with_a_range_and_the_rest_at_the_end(piece: int) -> None:
    head, size, fields = native_frames.delivery(1, "q", BODY)
    block = FrameBlock(head.ljust(size, b"\0"), fields, 25)
    block.column(native_frames.TAG)[:] = range(1, 26)
    block.column(SEQUENCE)[:] = range(25)
    ok = native_frames.request(native_frames.OK, 1)
    with native_server_end(ok) as server:
        consumer = NativeConsumer(NativeSetup(ADDRESS), "q", BODY, 1000, 10, 10000)
        server.recv(10000)
        feed(consumer, server, bytes(block.take(25)), piece)
        consumer.finish()
        acks = FrameBlock(*native_frames.ack(1), 3)
        acks.column(native_frames.FIRST_TAG)[:] = [1, 11, 21]
        acks.column(native_frames.LAST_TAG)[:] = [10, 20, 25]
        assert server.recv(10000) == bytes(acks.take(3))
        assert consumer.check.tally(25) == Tally(0, 0, 0)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Address]]:
    """The addresses of an interpreted broker on disk."""
    directory: Path = tmp_path_factory.mktemp("broker")
    server = TriviumInterpreted(directory, on_disk=True)
    server.start()
    try:
        yield server.addresses
    finally:
        server.stop()


@pytest.mark.parametrize("scenario", NATIVE, ids=lambda scenario: scenario.name)
def test_every_message_of_a_native_load_is_accounted_for(
    scenario: Scenario, addresses: Mapping[str, Address]
) -> None:
    with open_lanes(scenario, addresses) as lanes:
        result = run_count(lanes, scenario.limits, 2550, lambda: 0.0)
    assert result.total_sent == 2550
    assert result.total_delivered == 2550 * max(1, scenario.receivers)
    assert (result.unconfirmed, result.tally) == (0, Tally(0, 0, 0))


@pytest.mark.parametrize("name", ["native-queue", "native-fetch-1to10"])
def test_a_paced_native_run_times_each_delivery(
    name: str, addresses: Mapping[str, Address]
) -> None:
    scenario = SCENARIOS[name]
    with open_lanes(scenario, addresses) as lanes:
        result = run_paced(lanes, 1000, 0.0, 0.1, lambda: 0.0)
    assert result.total_sent > 0
    assert result.tally == Tally(0, 0, 0)
    assert len(result.delays) == result.total_sent * scenario.receivers


def test_a_broker_that_refuses_says_why(addresses: Mapping[str, Address]) -> None:
    setup = NativeSetup(addresses["native"])
    try:
        with pytest.raises(PeerError, match="refused: 301"):
            setup.delete("queue", "no-such-queue")
    finally:
        setup.close()
