"""What the clients hand over, without a connection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trivium.messages.message import PROTOCOL_NATIVE, Address, Message, Properties
from trivium.streams.records import encode_batch
from trivium_native.values import FramedMessages, Publication, StoredBatch


def test_a_sparse_batch_gives_its_own_offsets() -> None:
    messages = [
        Message(PROTOCOL_NATIVE, Address("amq.topic", b"a"), b"", b"%d" % n, 1, True, 0)
        for n in (0, 3, 4)
    ]
    stored = StoredBatch(100, encode_batch(messages, None, 0, [0, 3, 4], 9))
    for start, expected in ((0, [100, 103, 104]), (101, [103, 104]), (104, [104]), (105, [])):
        assert [record.offset for record in stored.records(start)] == expected
    assert [record.payload for record in stored.records()] == [b"0", b"3", b"4"]


@pytest.mark.parametrize("sizes", [[], [1], [5, 5, 0, 300, 5]])
def test_messages_made_of_payloads_are_those_made_one_by_one(sizes: list[int]) -> None:
    like = Publication(
        payload=b"not this",
        routing_key="a.b",
        exchange="e",
        properties=Properties(content_type="text/plain"),
        retain=True,
        priority=3,
    )
    payloads = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    one_by_one = FramedMessages.of([replace(like, payload=payload) for payload in payloads])
    assert FramedMessages.from_payloads(payloads, like) == one_by_one


def test_messages_made_of_payloads_and_keys_are_those_made_one_by_one() -> None:
    like = Publication(payload=b"", exchange="", routing_key="s", mode=2)
    payloads = [b"1", b"22", b"", b"22"]
    keys = [b"", b"k", b"k" * 255, b"k" * 256]
    one_by_one = [
        replace(like, payload=payload, properties=Properties(key=key))
        for payload, key in zip(payloads, keys, strict=True)
    ]
    made = FramedMessages.from_payloads(payloads, like, keys)
    assert made == FramedMessages.of(one_by_one)
    with pytest.raises(ValueError, match="zip"):
        FramedMessages.from_payloads(payloads, like, keys[:-1])
    other = replace(like, properties=Properties(content_type="text/plain"))
    with pytest.raises(ValueError, match="no other properties"):
        FramedMessages.from_payloads(payloads, other, keys)
