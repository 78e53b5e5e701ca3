"""Large payloads: in parts, and part of the record once there is one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trivium.common.pieces import Piece
from trivium.messages.large import LARGE_PAYLOAD, LargePayload, content_parts, content_size
from trivium.messages.message import AT_LEAST_ONCE, PROTOCOL_NONE, Address, Message, decode_record

DATA = bytes(range(256)) * (LARGE_PAYLOAD // 256)


def large() -> LargePayload:
    return LargePayload([DATA[:1000], memoryview(DATA)[1000:]])


def message(content: bytes | LargePayload) -> Message:
    return Message(
        PROTOCOL_NONE, Address("x", b"k"), b"header", content, AT_LEAST_ONCE, True, timestamp=12
    )


def test_a_message_has_its_payload_in_parts() -> None:
    sent = message(large())
    assert (sent.size, sent.payload) == (len(DATA), DATA)
    assert content_size(sent.content) == content_size(DATA) == len(DATA)
    assert b"".join(content_parts(sent.content)) == b"".join(content_parts(DATA)) == DATA


def test_its_record_is_that_of_the_payload_in_one() -> None:
    assert message(large()).record() == message(DATA).record()


def test_the_payload_is_a_part_of_the_record() -> None:
    sent = message(large())
    record = sent.record()
    assert isinstance(sent.content, LargePayload)
    (part,) = sent.content.parts
    assert isinstance(part, memoryview)
    assert part.obj is record
    assert part == DATA


def test_a_payload_that_is_read_back_is_a_part_of_the_record() -> None:
    record = message(large()).record()
    read = decode_record(record)
    assert isinstance(read.content, LargePayload)
    (part,) = read.content.parts
    assert isinstance(part, memoryview)
    assert part.obj is record
    assert read.payload == DATA
    assert read.record() is record


def test_a_payload_below_the_limit_is_read_back_in_one() -> None:
    read = decode_record(message(DATA[1:]).record())
    assert read.content == DATA[1:]


@given(st.lists(st.integers(1, 9), max_size=9), st.integers(1, 12))
def test_it_is_cut_as_its_bytes_are(sizes: list[int], size: int) -> None:
    parts: list[Piece] = []
    data = b""
    for number, length in enumerate(sizes):
        parts.append(bytes((number,)) * length)
        data += parts[-1]
    cut = [b"".join(run) for run in LargePayload(parts).cut(size)]
    assert cut == [data[at : at + size] for at in range(0, len(data), size)]
