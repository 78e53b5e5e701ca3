"""What the clients hand over, without a connection."""

from __future__ import annotations

from trivium.messages.message import PROTOCOL_NATIVE, Address, Message
from trivium.streams.records import encode_batch
from trivium_native.values import StoredBatch


def test_a_sparse_batch_gives_its_own_offsets() -> None:
    messages = [
        Message(PROTOCOL_NATIVE, Address("amq.topic", b"a"), b"", b"%d" % n, 1, True, 0)
        for n in (0, 3, 4)
    ]
    stored = StoredBatch(100, encode_batch(messages, None, 0, [0, 3, 4], 9))
    for start, expected in ((0, [100, 103, 104]), (101, [103, 104]), (104, [104]), (105, [])):
        assert [record.offset for record in stored.records(start)] == expected
    assert [record.payload for record in stored.records()] == [b"0", b"3", b"4"]
