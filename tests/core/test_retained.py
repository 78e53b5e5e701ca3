"""Retained messages: kept, replaced, cleared, found by filter."""

from __future__ import annotations

from tests.core.harness import message
from trivium.retained import RetainedMessages
from trivium.storage.memory import MemoryTable
from trivium.topics import filter_pattern


def found(retained: RetainedMessages, topic_filter: bytes, now: int = 0) -> list[bytes]:
    return sorted(m.address.key for m in retained.match(filter_pattern(topic_filter), now))


def table_of(*keys: bytes) -> tuple[RetainedMessages, MemoryTable]:
    table = MemoryTable()
    retained = RetainedMessages(table)
    for key in keys:
        retained.keep(message(b"1", key))
    return retained, table


def test_wildcards_find_all_levels() -> None:
    retained, _ = table_of(b"a", b"a.b", b"a.b.c", b".a", b"$SYS.x")
    assert found(retained, b"#") == [b".a", b"a", b"a.b", b"a.b.c"]
    assert found(retained, b"a/#") == [b"a", b"a.b", b"a.b.c"]
    assert found(retained, b"+/b") == [b"a.b"]
    assert found(retained, b"+/a") == [b".a"]
    assert found(retained, b"$SYS/#") == [b"$SYS.x"]
    assert found(retained, b"+/x") == []


def test_mqtt_3_3_1_5_a_new_message_replaces_the_old() -> None:
    retained, _ = table_of(b"a")
    retained.keep(message(b"2", b"a"))
    (kept,) = retained.match([b"a"], 0)
    assert kept.payload == b"2"
    assert len(retained) == 1


def test_mqtt_3_3_1_6_an_empty_payload_clears() -> None:
    retained, table = table_of(b"a.b", b"a.b.c")
    retained.keep(message(b"", b"a.b"))
    assert found(retained, b"#") == [b"a.b.c"]
    retained.keep(message(b"", b"never.kept"))
    assert len(retained) == 1
    assert len(table) == 1


def test_expired_messages_are_not_found() -> None:
    retained, _ = table_of()
    retained.keep(message(b"1", b"a", expires=1000))
    assert found(retained, b"a", now=999) == [b"a"]
    assert found(retained, b"a", now=1000) == []


def test_rows_are_loaded_again() -> None:
    _, table = table_of(b"a.b", b"c")
    assert found(RetainedMessages(table), b"#") == [b"a.b", b"c"]
