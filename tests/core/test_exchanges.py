"""Exchange types: which bindings match; routes: what publishing by them answers."""

from __future__ import annotations

import itertools
from decimal import Decimal

import pytest

from tests.support.core import message
from trivium.messages.message import Address, HeaderValue, Message
from trivium.messages.topics import topic_of
from trivium.routing.exchanges import (
    ACCEPTED,
    REJECTED,
    Binding,
    Destination,
    Exchange,
    Route,
    make_exchange,
)


class Sink(Destination):
    def __init__(self, name: str = "sink", answer: int = ACCEPTED) -> None:
        self.name = name
        self.answer = answer
        self.taken: list[bytes] = []

    def accept(self, message: Message) -> int:
        self.taken.append(message.payload)
        return self.answer


def exchange(kind: str) -> Exchange:
    made = make_exchange(kind, "x")
    assert made is not None
    return made


def match(source: Exchange, key: bytes, sent: Message | None = None) -> list[bytes]:
    return [binding.pattern for binding in source.match(Address("x", key), sent)]


@pytest.mark.parametrize("other", [True, 1.0, Decimal(1), "1", [1]])
def test_bindings_whose_arguments_differ_in_type_are_two(other: HeaderValue) -> None:
    headers, sink = exchange("headers"), Sink()
    headers.bind(Binding(sink, b"", {"a": 1}))
    headers.bind(Binding(sink, b"", {"a": other}))
    assert len(headers.bindings()) == 2
    assert headers.unbind(Binding(sink, b"", {"a": 1}))
    assert [binding.arguments for binding in headers.bindings()] == [{"a": other}]


def test_unknown_type_is_none() -> None:
    assert make_exchange("x-unknown", "x") is None


def test_direct_matches_equal_keys_only() -> None:
    direct = exchange("direct")
    direct.bind(Binding(Sink(), b"a"))
    direct.bind(Binding(Sink(), b"*"))
    assert match(direct, b"a") == [b"a"]
    assert match(direct, b"b") == []


def test_fanout_ignores_the_key() -> None:
    fanout = exchange("fanout")
    fanout.bind(Binding(Sink(), b"a"))
    fanout.bind(Binding(Sink(), b"b"))
    assert match(fanout, b"whatever") == [b"a", b"b"]


def test_topic_matches_amqp_patterns_and_mqtt_filters() -> None:
    topic = exchange("topic")
    topic.bind(Binding(Sink(), b"a.*.#"))
    topic.bind(Binding(Sink(), b"a/+/#", is_filter=True))
    topic.bind(Binding(Sink(), b"a/b", is_filter=True))
    assert sorted(match(topic, b"a.b")) == [b"a.*.#", b"a/+/#", b"a/b"]
    assert match(topic, b"a") == []


def test_topic_hides_dollar_levels_from_mqtt_wildcards_only() -> None:
    topic = exchange("topic")
    topic.bind(Binding(Sink(), b"#"))
    topic.bind(Binding(Sink(), b"#", is_filter=True))
    topic.bind(Binding(Sink(), b"$x/#", is_filter=True))
    found = topic.match(Address("x", b"$x.load"), None)
    assert {(binding.pattern, binding.is_filter) for binding in found} == {
        (b"#", False),
        (b"$x/#", True),
    }


@pytest.mark.parametrize("key", [b"$SYS", b"$SYS.load", b"$SYS."])
def test_the_brokers_own_topics_are_hidden_from_mqtt_filters(key: bytes) -> None:
    topic = exchange("topic")
    topic.bind(Binding(Sink(), b"$SYS.#"))
    for topic_filter in (b"$SYS/#", b"$SYS", b"$SYS/load", b"#"):
        topic.bind(Binding(Sink(), topic_filter, is_filter=True))
    assert match(topic, key) == [b"$SYS.#"]


@pytest.mark.parametrize("key", [b"$SYSTEM.a", b"$SYS/a", b"a.$SYS"])
def test_topics_that_look_like_the_brokers_own_are_not(key: bytes) -> None:
    topic = exchange("topic")
    topic.bind(Binding(Sink(), topic_of(key) or b"", is_filter=True))
    assert len(match(topic, key)) == 1


def test_binding_twice_keeps_one_and_takes_the_new_options() -> None:
    topic = exchange("topic")
    sink = Sink()
    topic.bind(Binding(sink, b"a", options=1))
    topic.bind(Binding(sink, b"a", options=2))
    (bound,) = topic.bindings()
    assert bound.options == 2
    assert topic.unbind(Binding(sink, b"a"))
    assert not topic.unbind(Binding(sink, b"a"))
    assert match(topic, b"a") == []


HEADERS: dict[str, HeaderValue] = {"a": 1, "b": "two", "x-c": True}


@pytest.mark.parametrize(
    ("arguments", "is_matched"),
    [
        ({}, True),
        ({"x-match": "any"}, False),
        ({"a": 1, "b": "two"}, True),
        ({"a": 1, "b": "other"}, False),
        ({"a": None}, True),
        ({"missing": None}, False),
        ({"a": True}, False),
        ({"b": b"two"}, True),
        ({"x-match": "any", "a": 9, "b": "two"}, True),
        ({"x-match": "any", "a": 9}, False),
        ({"x-match": "all", "a": 1, "x-c": False}, True),
        ({"x-match": "all-with-x", "a": 1, "x-c": False}, False),
        ({"x-match": "any-with-x", "x-c": True}, True),
        ({"x-match": "any", "x-c": True}, False),
    ],
)
def test_headers_exchange(arguments: dict[str, HeaderValue], is_matched: bool) -> None:
    headers = exchange("headers")
    headers.bind(Binding(Sink(), b"", arguments))
    sent = message()
    sent.annotations = HEADERS
    assert (match(headers, b"", sent) == [b""]) is is_matched


#: the write batch of a turn in which something is published
BATCH = 7


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_one_refusal_refuses_a_publish_and_else_one_write_batch_is_waited_for(size: int) -> None:
    """Whatever the other destinations answer, and in which order; all of them get the message."""
    for answers in itertools.product((ACCEPTED, REJECTED, BATCH), repeat=size):
        sinks = [Sink(answer=answer) for answer in answers]
        expected = ACCEPTED
        if REJECTED in answers:
            expected = REJECTED
        elif BATCH in answers:
            expected = BATCH
        route = Route(Address("x", b"k"), [*sinks], 0)
        assert route.publish(message(b"m")) == expected, answers
        assert [sink.taken for sink in sinks] == [[b"m"]] * size
