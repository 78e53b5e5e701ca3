"""Retained messages: kept, replaced, cleared, walked by filter."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core import message
from trivium.common.quotas import RETAINED_BYTES, RETAINED_MESSAGES
from trivium.messages.message import RecordError
from trivium.messages.topics import filter_pattern, hides_dollar, levels_of, matches
from trivium.routing.retained import RetainedMessages, RetainedWalk
from trivium.storage.memory import MemoryTable


def next_key(walk: RetainedWalk) -> bytes | None:
    """The key of the next message; None at the end."""
    walk.advance(1 << 30)
    assert walk.is_at_match != walk.is_finished
    if walk.is_finished:
        return None
    found = walk.message
    assert found is not None
    return found.address.key


def found(retained: RetainedMessages, topic_filter: bytes, after: bytes = b"") -> list[bytes]:
    """The keys that a whole walk comes to, in its order."""
    walk = retained.walk(filter_pattern(topic_filter), after)
    keys: list[bytes] = []
    while (key := next_key(walk)) is not None:
        keys.append(key)
    return keys


def sequence_of(retained: RetainedMessages, topic: bytes) -> int:
    walk = retained.walk(filter_pattern(topic), b"")
    assert next_key(walk) == topic
    return walk.sequence


def table_of(*keys: bytes) -> tuple[RetainedMessages, MemoryTable]:
    table = MemoryTable()
    retained = RetainedMessages(table)
    for key in keys:
        retained.keep(message(b"1", key))
    return retained, table


def test_wildcards_find_all_levels() -> None:
    retained, _ = table_of(b"a", b"a.b", b"a.b.c", b".a", b"$x.x")
    assert found(retained, b"#") == [b".a", b"a", b"a.b", b"a.b.c"]
    assert found(retained, b"a/#") == [b"a", b"a.b", b"a.b.c"]
    assert found(retained, b"+/b") == [b"a.b"]
    assert found(retained, b"+/a") == [b".a"]
    assert found(retained, b"$x/#") == [b"$x.x"]
    assert found(retained, b"+/x") == []


def test_a_start_reads_no_record_before_its_message_is_wanted() -> None:
    table = MemoryTable()
    table.put(b"a.b", message(b"1", b"a.b").record())
    table.put(b"a.c", b"no record")
    retained = RetainedMessages(table)
    assert len(retained) == 2
    kept = retained.get(b"a.b")
    assert kept is not None
    assert kept.payload == b"1"
    assert retained.get(b"a.b") is kept, "decoded once"
    with pytest.raises(RecordError):
        retained.get(b"a.c")
    retained.keep(message(b"2", b"a.c"))
    assert found(retained, b"a/+") == [b"a.b", b"a.c"]
    retained.clear(b"a.b")
    assert found(retained, b"a/+") == [b"a.c"]
    assert len(retained) == 1


def test_mqtt_3_3_1_5_a_new_message_replaces_the_old() -> None:
    retained, _ = table_of(b"a")
    retained.keep(message(b"2", b"a"))
    assert found(retained, b"a") == [b"a"]
    kept = retained.get(b"a")
    assert kept is not None
    assert kept.payload == b"2"
    assert len(retained) == 1


def test_mqtt_3_3_1_6_an_empty_payload_clears() -> None:
    retained, table = table_of(b"a.b", b"a.b.c")
    retained.keep(message(b"", b"a.b"))
    assert found(retained, b"#") == [b"a.b.c"]
    retained.keep(message(b"", b"never.kept"))
    assert len(retained) == 1
    assert len(table) == 1


def test_nothing_is_kept_for_the_brokers_own_topics() -> None:
    retained, table = table_of(b"$SYS", b"$SYS.x")
    assert (len(retained), len(table)) == (0, 0)
    # As a broker wrote it that did not know better.
    table.put(b"$SYS.x", message(b"1", b"$SYS.x").record())
    assert found(RetainedMessages(table), b"$SYS/#") == []


def test_rows_are_loaded_again() -> None:
    _, table = table_of(b"a.b", b"c")
    assert found(RetainedMessages(table), b"#") == [b"a.b", b"c"]


def test_a_walk_finds_each_message_as_it_is_at_its_turn() -> None:
    retained, _ = table_of(b"a", b"b.x", b"b.y", b"c")
    walk = retained.walk(filter_pattern(b"#"), b"")
    assert next_key(walk) == b"a"
    begun = retained.sequence
    retained.keep(message(b"", b"b.x"))
    retained.keep(message(b"2", b"b.y"))
    # It goes and comes back, on another branch of the tree.
    retained.keep(message(b"", b"c"))
    retained.keep(message(b"2", b"c"))
    for key in (b"b.y", b"c"):
        assert next_key(walk) == key
        kept = walk.message
        assert kept is not None
        assert kept.payload == b"2"
        assert walk.sequence > begun
    assert next_key(walk) is None


def test_where_a_walk_stands_the_newest_message_is_read() -> None:
    retained, _ = table_of(b"a")
    walk = retained.walk(filter_pattern(b"+"), b"")
    walk.advance(100)
    retained.keep(message(b"2", b"a"))
    kept = walk.message
    assert kept is not None
    assert kept.payload == b"2"
    retained.clear(b"a")
    assert walk.message is None
    assert not walk.is_finished


def test_a_walk_takes_no_more_steps_than_it_may() -> None:
    retained, _ = table_of(*(b"%d" % n for n in range(100)), *(b"%d.b" % n for n in range(100)))
    walk = retained.walk(filter_pattern(b"+/c"), b"")
    for _ in range(9):
        assert walk.advance(10) == 0
        assert not walk.is_finished
        assert not walk.is_at_match
    while not walk.is_finished:
        walk.advance(10)
    assert not walk.is_at_match


levels = st.sampled_from([b"", b"a", b"a-", b"b", b"ab", b"$x", b"b/c"])
keys = st.lists(levels, min_size=1, max_size=4).map(b".".join).filter(lambda key: key != b"")
filters = st.builds(
    lambda parts, last: b"/".join([*parts, *last]),
    st.lists(st.sampled_from([b"", b"a", b"b", b"a-", b"$x", b"+", b"+"]), max_size=4),
    st.sampled_from([[], [b"#"]]),
).filter(lambda text: text != b"")


@given(st.lists(keys, max_size=20), filters, st.data())
def test_a_walk_that_is_taken_up_again_finds_the_rest(
    known: list[bytes], topic_filter: bytes, data: st.DataObject
) -> None:
    pattern = filter_pattern(topic_filter)
    expected = {
        key
        for key in known
        if matches(pattern, levels_of(key)) and not (hides_dollar(pattern) and key[:1] == b"$")
    }
    retained, table = table_of(*known)
    whole = found(retained, topic_filter)
    assert whole == sorted(expected, key=levels_of)
    # Wherever it stopped, and however the table comes back from the disk.
    stop = data.draw(st.integers(0, len(whole)))
    shuffled = MemoryTable()
    for key in data.draw(st.permutations(list(dict(table.items())))):
        shuffled.put(key, dict(table.items())[key])
    after = whole[stop - 1] if stop else b""
    assert found(RetainedMessages(shuffled), topic_filter, after) == whole[stop:]


def test_many_keys_stay_in_order_however_they_come_and_go() -> None:
    retained, table = table_of()
    numbers = random.Random(7)
    known: dict[bytes, None] = {}
    for number in range(20_000):
        # They become many, and then few.
        key = b".".join(b"%d" % numbers.randrange(40) for _ in range(numbers.randrange(1, 5)))
        if known and numbers.random() < (0.1 if number < 12_000 else 0.95):
            key = next(iter(known))
            retained.clear(key)
            del known[key]
        else:
            retained.keep(message(b"1", key))
            known[key] = None
        if number % 2_000 == 0:
            ordered = sorted(known, key=levels_of)
            for same in (retained, RetainedMessages(table)):
                assert found(same, b"#") == ordered
                assert found(same, b"+/7/#") == [k for k in ordered if k.split(b".")[1:2] == [b"7"]]
                assert len(same) == len(known)


@pytest.mark.parametrize("alphabet", [b"01az/~\xff", b"01az-!\x01\xff"])
@pytest.mark.parametrize("last", [b"zz", b"zz-1", b"zz\x01.a"])
def test_a_start_puts_keys_in_the_order_of_their_levels(alphabet: bytes, last: bytes) -> None:
    """Also where some bytes, or those of the last of many keys, are less than the dot."""
    numbers = random.Random(3)
    retained, table = table_of()
    keys = {last}
    for _ in range(2500):
        levels = [
            bytes(numbers.choices(alphabet, k=numbers.randrange(4)))
            for _ in range(numbers.randrange(1, 4))
        ]
        keys.add(b".".join(levels))
    known = sorted(keys - {b""}, key=lambda key: (key == last, numbers.random()))
    for key in known:
        retained.keep(message(b"1", key))
    ordered = sorted(known, key=levels_of)
    assert found(RetainedMessages(table), b"#") == found(retained, b"#") == ordered


def test_what_a_message_does_not_say_is_kept_with_it() -> None:
    retained, table = table_of()
    sent = message(b"1", b"a")
    sent.origin = b"publisher"
    retained.keep(sent)
    kept = retained.get(b"a")
    assert kept is not None
    assert (kept.origin, sequence_of(retained, b"a")) == (b"publisher", 1)
    # Another one has another origin, and so has none from before a start.
    retained.keep(message(b"2", b"a"))
    for same, number in ((retained, 2), (RetainedMessages(table), 0)):
        kept = same.get(b"a")
        assert kept is not None
        assert (kept.payload, kept.origin, sequence_of(same, b"a")) == (b"2", None, number)


def test_subscribers_of_the_same_message_share_it() -> None:
    retained, _ = table_of(b"a", *(b"n.%d" % n for n in range(2_000)))
    first = retained.get(b"a")
    assert first is retained.get(b"a")
    # What others read meanwhile is not kept for ever.
    for number in range(2_000):
        retained.get(b"n.%d" % number)
    assert first is not retained.get(b"a")


def test_a_retained_message_costs_its_row_and_its_place_among_the_keys() -> None:
    count = 10_000
    body = bytes(20)
    retained = RetainedMessages(MemoryTable())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            retained.keep(message(body, b"retained.%06d" % number, "amq.topic"))
        cost = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    # A key of 15 bytes (48), a record of 80 (113), a slot of a dict that is full to a third or more
    # (80 at most), and three places in lists that are full to a half or more (48 at most).
    assert cost < 300


def test_no_more_are_kept_than_may_be() -> None:
    refused: list[int] = []
    table = MemoryTable()
    retained = RetainedMessages(table, refused.append)
    retained.most = 2
    for key in (b"a", b"b", b"c", b"d"):
        retained.keep(message(b"1", key))
    assert found(retained, b"#") == [b"a", b"b"]
    # Those that are there may change, and make room when they go.
    retained.keep(message(b"2", b"b"))
    retained.clear(b"a")
    retained.keep(message(b"1", b"c"))
    assert found(retained, b"#") == [b"b", b"c"]
    assert len(table) == 2
    assert refused == [RETAINED_MESSAGES, RETAINED_MESSAGES]


def test_no_more_bytes_are_kept_than_may_be() -> None:
    refused: list[int] = []
    table = MemoryTable()
    retained = RetainedMessages(table, refused.append)
    size = len(message(bytes(100), b"a").record())
    retained.most_bytes = 2 * size
    for key in (b"a", b"b", b"c"):
        retained.keep(message(bytes(100), key))
    assert (found(retained, b"#"), retained.bytes, refused) == (
        [b"a", b"b"],
        2 * size,
        [RETAINED_BYTES],
    )
    # What is too large for its place changes nothing; what is smaller makes room.
    retained.keep(message(bytes(101), b"b"))
    assert retained.bytes == 2 * size
    retained.keep(message(bytes(50), b"b"))
    retained.keep(message(bytes(1), b"c"))
    assert found(retained, b"#") == [b"a", b"b", b"c"]
    assert retained.bytes == sum(len(record) for _, record in table.items())
    assert RetainedMessages(table).bytes == retained.bytes
    for key in (b"a", b"b", b"c"):
        retained.clear(key)
    assert retained.bytes == 0
