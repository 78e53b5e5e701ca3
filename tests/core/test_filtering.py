"""A partition by topic: which records a page has, that pages add up, and what one costs at most."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core import broker_of, message, open_broker
from trivium.messages.topics import key_of
from trivium.streams.filtering import LEAST_COPIED, PAGE_COST, FilteredPage, TopicFilter
from trivium.streams.records import ROUTING_KEY, RecordBatch
from trivium.streams.stream import Partition, Stream

ALL = 1 << 40


@pytest.mark.parametrize(
    ("text", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("+/b", "a/b", True),
        ("#", "a/b", True),
        ("a.b/+", "a.b/c", True),
        ("a/b", "a.b", False),
        ("é/+", "é/日本", True),
    ],
)
def test_a_topic_matches_as_in_mqtt(text: str, topic: str, expected: bool) -> None:
    wanted = TopicFilter(text)
    # The second time it is remembered.
    assert [wanted.matches(key_of(topic.encode())) for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize(("text", "expected"), [("#", False), ("+/x", False), ("$SYS/#", True)])
def test_mqtt_4_7_2_1_a_first_wildcard_does_not_match_dollar(text: str, expected: bool) -> None:
    assert TopicFilter(text).matches(b"$SYS.x") is expected


@pytest.mark.parametrize("text", ["", "a+", "a/b#", "#/a", "a\0", "/".join("a" * 129)])
def test_mqtt_4_7_1_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it |its |wildcard"):
        TopicFilter(text)


def test_what_is_remembered_is_bounded() -> None:
    wanted = TopicFilter("#")
    tracemalloc.start()
    try:
        for number in range(20_000):
            assert wanted.matches(b"%d" % number + bytes(200))
        for number in range(100):
            assert wanted.matches(b"%d" % number + bytes(60_000))
        assert tracemalloc.get_traced_memory()[0] < 3 << 20
        wanted.forget()
        assert tracemalloc.get_traced_memory()[0] < 1 << 18
    finally:
        tracemalloc.stop()


def join(partition: Partition) -> None:
    """Have the small batches joined that there are."""
    owner = partition.log.owner
    assert owner is not None
    owner.join_records()


def declare(partitions: int = 1, **arguments: str) -> Stream:
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return open_broker().vhosts["/"].declare_stream("s", partitions, {**given})


def add(stream: Stream, keys: list[bytes], payload: bytes = b"x") -> None:
    """A turn with these routing keys."""
    for key in keys:
        stream.accept(message(payload, key, "amq.topic"))
    broker_of(stream.vhost).end_turn()


def read(page: FilteredPage, start: int) -> list[int]:
    """The offsets of what a page has of ``start`` and later."""
    assert page.more()
    found: list[int] = []
    for base, batch in page.batches():
        view = RecordBatch(batch)
        found += [base + view.delta(row) for row in range(view.count)]
    assert found == sorted(set(found))
    return [offset for offset in found if offset >= start]


def read_all(partition: Partition, text: str, start: int, most: int = ALL) -> tuple[list[int], int]:
    """The offsets of all pages, and how many pages that were."""
    found: list[int] = []
    pages = 0
    while start < partition.high_watermark:
        page = FilteredPage(partition, start, TopicFilter(text), most)
        found += read(page, start)
        assert page.next_offset > start
        start = page.next_offset
        pages += 1
    return found, pages


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pages_have_the_records_that_match_each_once(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(["none", "lz4"]))
    stream = declare(compression=codec)
    keys = [b"a.x", b"a.y", b"b", b"a"]
    turns = data.draw(st.lists(st.lists(st.sampled_from(keys), min_size=1, max_size=9), max_size=9))
    for turn in turns:
        add(stream, turn, b"payload" * 20)
    (partition,) = stream.partitions
    if data.draw(st.booleans()):
        join(partition)
    every = [key for turn in turns for key in turn]
    start = data.draw(st.integers(0, len(every)))
    text = data.draw(st.sampled_from(["a/+", "a/#", "b", "c", "#"]))
    most = data.draw(st.sampled_from([0, 500, ALL]))
    expected = [
        offset
        for offset, key in enumerate(every)
        if offset >= start and TopicFilter(text).matches(key)
    ]
    assert read_all(partition, text, start, most)[0] == expected


def test_a_batch_of_which_all_matches_is_handed_over_as_it_is() -> None:
    stream = declare()
    add(stream, [b"a.x", b"a.y"])
    (partition,) = stream.partitions
    page = FilteredPage(partition, 1, TopicFilter("a/+"), ALL)
    assert page.more()
    assert page.batches() == partition.read(0, ALL)


def test_what_matches_of_several_batches_is_put_together() -> None:
    stream = declare()
    for _ in range(5):
        add(stream, [b"a", b"b"])
    (partition,) = stream.partitions
    page = FilteredPage(partition, 0, TopicFilter("b"), ALL)
    assert page.more()
    ((base, batch),) = page.batches()
    view = RecordBatch(batch)
    assert (base, view.count, page.next_offset) == (1, 5, 10)
    assert {view.binary(ROUTING_KEY, row) for row in range(5)} == {b"b"}


def test_no_record_comes_twice_where_batches_are_joined_while_a_page_waits() -> None:
    stream = declare()
    (partition,) = stream.partitions
    page = FilteredPage(partition, 0, TopicFilter("a"), ALL)
    for _ in range(3):
        add(stream, [b"a", b"b"])
        assert page.more()
        page.wait()
    join(partition)
    add(stream, [b"a"])
    assert len(partition.read(0, ALL)) == 2
    assert read(page, 0) == [0, 2, 4, 6]


def test_no_record_that_does_not_match_comes_where_batches_are_joined_while_a_page_waits() -> None:
    stream = declare()
    (partition,) = stream.partitions
    page = FilteredPage(partition, 0, TopicFilter("a"), ALL)
    add(stream, [b"b"])
    assert page.more()
    add(stream, [b"a"])
    join(partition)
    assert len(partition.read(0, ALL)) == 1
    assert read(page, 0) == [1]


def test_a_page_that_finds_nothing_ends_after_a_bound() -> None:
    stream = declare()
    for turn in range(10):
        add(stream, [b"k%d.%d" % (turn, number) for number in range(PAGE_COST // 10)])
    (partition,) = stream.partitions
    found, pages = read_all(partition, "other", 0)
    # Each key is another one, so looking at a record costs ten.
    assert (found, 10 <= pages <= 15) == ([], True)


def test_what_a_page_waits_for_counts_for_the_same_bound() -> None:
    stream = declare()
    (partition,) = stream.partitions
    page = FilteredPage(partition, 0, TopicFilter("other"), ALL)
    turns = 0
    while not page.is_full():
        add(stream, [b"%d" % number for number in range(1000)])
        assert page.more()
        page.wait()
        turns += 1
    assert turns <= 3
    # It ends where it is, and not at the end of a batch.
    assert 0 < page.next_offset < partition.high_watermark


def test_a_large_batch_of_which_half_matches_takes_several_pages() -> None:
    stream = declare()
    add(stream, [b"a", b"b"] * (PAGE_COST // 2))
    (partition,) = stream.partitions
    assert len(partition.read(0, ALL)) == 1
    found, pages = read_all(partition, "b", 0)
    assert found == list(range(1, PAGE_COST, 2))
    # Half of what a page costs is for records that it copies, at most 1,024 more.
    assert 2 < pages < 8


def test_a_large_batch_of_which_all_matches_is_one_page() -> None:
    stream = declare()
    add(stream, [b"a.%d" % number for number in range(PAGE_COST)])
    (partition,) = stream.partitions
    assert len(partition.read(0, ALL)) == 1
    assert read_all(partition, "#", 0) == (list(range(PAGE_COST)), 1)


def test_a_large_batch_of_which_one_record_does_not_match_takes_few_pages() -> None:
    stream = declare()
    add(stream, [b"a.%d" % number for number in range(PAGE_COST - 1)] + [b"b"])
    (partition,) = stream.partitions
    found, pages = read_all(partition, "a/+", 0)
    assert (found, pages <= PAGE_COST // LEAST_COPIED) == (list(range(PAGE_COST - 1)), True)


def test_a_damaged_batch_is_handed_over_for_the_reader_to_say_so() -> None:
    stream = declare()
    add(stream, [b"a"])
    (partition,) = stream.partitions
    ((base, batch),) = partition.read(0, ALL)
    damaged = batch[:-1] + bytes([batch[-1] ^ 1])
    partition.log.append(damaged, 1)
    partition.high_watermark += 1
    page = FilteredPage(partition, 0, TopicFilter("b"), ALL)
    assert page.more()
    assert page.batches() == [(base + 1, damaged)]
    assert page.next_offset == 2


def test_a_page_that_retention_passes_is_lost() -> None:
    stream = declare()
    for _ in range(3):
        add(stream, [b"b"])
    (partition,) = stream.partitions
    page = FilteredPage(partition, 0, TopicFilter("a"), ALL)
    assert not page.is_lost
    partition.log.truncate(2)
    assert page.more()
    assert (page.is_lost, page.next_offset) == (True, 0)
