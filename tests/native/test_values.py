"""What the clients hand over, without a connection."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.messages.message import PROTOCOL_NATIVE, Address, Message, Properties
from trivium.streams.records import encode_batch
from trivium_native.values import AssignedPartition, FramedMessages, Publication, StoredBatch

PUBLICATIONS = st.builds(
    Publication,
    payload=st.sampled_from([b"", b"1", b"2", b"longer"]),
    routing_key=st.sampled_from([b"a", "a", "b"]),
    exchange=st.sampled_from(["", "e"]),
    properties=st.sampled_from([None, None, Properties(type_="t")]),
    mode=st.integers(0, 2),
    persistent=st.sampled_from([None, False, True]),
    retain=st.booleans(),
    mandatory=st.booleans(),
    priority=st.integers(0, 1),
)
KEYS = st.sampled_from([None, b"", b"k", b"l", b"k" * 256])


def framed(publications: list[Publication]) -> FramedMessages:
    """Each by itself."""
    entries = [publication.encode() for publication in publications]
    return FramedMessages(len(entries), b"".join(entries))


@given(PUBLICATIONS, st.lists(st.tuples(PUBLICATIONS, KEYS, st.booleans()), max_size=8))
def test_many_messages_are_framed_as_each_is(
    first: Publication, others: list[tuple[Publication, bytes | None, bool]]
) -> None:
    """Those that are like the one before them, but for payload and key, share its head."""
    publications = [first]
    for other, key, is_like in others:
        found = other
        if is_like:
            found = replace(publications[-1], payload=other.payload)
        publications.append(replace(found, key=None if found.properties else key))
    assert FramedMessages.of(publications) == framed(publications)


@pytest.mark.parametrize("key", [b"", b"k", b"k" * 255, b"k" * 256])
def test_a_key_is_short_for_properties_with_a_key(key: bytes) -> None:
    long = Publication(payload=b"p", properties=Properties(key=key))
    assert Publication(payload=b"p", key=key).encode() == long.encode()
    with pytest.raises(ValueError, match="belongs into the properties"):
        replace(long, key=key).encode()


def test_publications_are_values() -> None:
    one, other = (Publication(payload=b"p", key=b"k") for _ in range(2))
    assert one == other
    assert {one, other} == {replace(one, priority=0)}
    for mode, priority in ((3, 0), (-1, 0), (1, 256)):
        with pytest.raises(ValueError, match="not 0, 1 or 2"):
            Publication(payload=b"", mode=mode, priority=priority)


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
    one_by_one = framed([replace(like, payload=payload) for payload in payloads])
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
    assert made == framed(one_by_one)
    with pytest.raises(ValueError, match="zip"):
        FramedMessages.from_payloads(payloads, like, keys[:-1])
    other = replace(like, properties=Properties(content_type="text/plain"))
    with pytest.raises(ValueError, match="no other properties"):
        FramedMessages.from_payloads(payloads, other, keys)


def test_records_begin_where_the_reader_goes_on() -> None:
    messages = [
        Message(PROTOCOL_NATIVE, Address("amq.topic", b"a"), b"", b"%d" % n, 1, True, 0)
        for n in range(5)
    ]
    stored = StoredBatch(100, encode_batch(messages, None, 0), 102)
    for start, expected in ((0, 102), (101, 102), (104, 104)):
        assert next(stored.records(start)).offset == expected


def test_assigned_partitions_are_sorted_by_stream_and_partition() -> None:
    """Also those that the group has no offset in."""
    places = [("s", 10, None), ("a", 3, 5), ("s", 2, None), ("s", 2, 7), ("a", 0, None)]
    assigned = [AssignedPartition(stream, "i", number, at) for stream, number, at in places]
    assert [(each.stream, each.partition) for each in sorted(assigned)] == [
        *(("a", 0), ("a", 3), ("s", 2), ("s", 2), ("s", 10))
    ]
