"""Lists that are sorted by what is shown of each thing, without describing all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp.commands import Basic, Queue

from tests.support.compatible import Site
from trivium.management.compatible import shown
from trivium.management.listing import value_at
from trivium.vhost.policies import Policy

#: Lists, what describes one of their things, and what users of RabbitMQ sort them by.
LISTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "queues": (
        "queue",
        (
            *("type", "state", "durable", "policy", "consumers", "exclusive", "idle_since"),
            *("arguments", "arguments.x-queue-type"),
            *("messages", "messages_ready", "messages_unacknowledged", "message_bytes_ready"),
            *("messages_details.rate", "message_stats.publish"),
            *("message_stats.publish_details.rate", "message_stats.deliver_get_details.rate"),
            "message_stats.ack_details.rate",
        ),
    ),
    "exchanges": (
        "exchange",
        (
            *("type", "durable", "internal", "policy", "arguments"),
            *("message_stats.publish_in_details.rate", "message_stats.publish_out_details.rate"),
        ),
    ),
    "connections": (
        "connection",
        (
            *("user", "state", "ssl", "protocol", "channels", "connected_at"),
            *("recv_oct", "send_oct", "recv_oct_details.rate", "send_oct_details.rate"),
        ),
    ),
    "channels": (
        "channel",
        (
            *("user", "state", "prefetch_count", "messages_unacknowledged", "idle_since"),
            *("messages_unconfirmed", "message_stats.publish_details.rate"),
            *("message_stats.deliver_get_details.rate", "message_stats.ack_details.rate"),
        ),
    ),
    "consumers": (
        "consumer",
        ("consumer_tag", "queue.name", "ack_required", "prefetch_count", "channel_details.name"),
    ),
    "bindings": (
        "binding",
        ("source", "destination", "destination_type", "routing_key", "properties_key"),
    ),
}

#: Paths at which nothing ever is. RabbitMQ's API takes them all the same.
NOWHERE = {
    *("nothing", "name.nothing", "messages_details.nothing"),
    *("message_stats.nothing", "message_stats.messages"),
}


@pytest.fixture(scope="module")
def site() -> Site:
    """Some of everything, with figures and rates."""
    site = Site()
    server, first = site.server, site.client
    second = server.open()
    first.exchange("e", "topic")
    policy = Policy("of-exchanges", "^e$", {"alternate-exchange": "amq.fanout"}, "exchanges")
    server.vhost.set_policy(policy)
    for number in range(6):
        arguments: dict[str, Any] = {}
        if number % 3 == 1:
            arguments["x-queue-type"] = "quorum"
        if number % 3 == 2:
            arguments = {"x-queue-type": "stream", "x-max-length-bytes": 10**6}
        first.declare(f"q{number}", durable=True, arguments=arguments)
        first.bind(f"q{number}", "e" if number % 2 else "amq.direct", f"k{number % 4}.é")
        for _ in range(number * 7 % 5):
            first.publish(f"q{number}", b"x" * number)
    second.declare("own", exclusive=True)
    site.get("queues")
    server.advance(5)
    first.publish("q3")
    first.publish("k1.é", exchange="e")
    second.open_channel(2)
    second.call(Basic.Qos(prefetch_count=3))
    for number, tag in ((1, "b"), (3, "a")):
        second.consume(f"q{number}", tag)
    second.call(Basic.Qos(prefetch_count=9), channel=2)
    second.call(Basic.Consume(queue="q4", consumer_tag="z", no_ack=True), channel=2)
    second.send(Queue.Purge(queue="q0"))
    body = {"pattern": "^(q[13]|e)$", "definition": {"max-length": 9}, "apply-to": "all"}
    site.ask("PUT", "policies / p", json.dumps(body).encode(), {})
    server.advance(5)
    return site


def paths_of(found: Any, before: str = "") -> Iterator[str]:
    """All paths of names in a description."""
    for name, value in found.items():
        yield before + name
        if isinstance(value, dict):
            yield from paths_of(value, f"{before}{name}.")


def items_of(answer: Any) -> Any:
    """Those of a list, in pages or not."""
    return answer if isinstance(answer, list) else answer["items"]


def rank(value: Any) -> tuple[int, Any]:
    """Nothing before numbers before texts before the rest, which is sorted as it is written."""
    if value is None:
        return 0, 0
    if isinstance(value, int | float):
        return 1, value
    if isinstance(value, str):
        return 2, value
    return 3, json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("kind", [*LISTS, *(f"v1 {kind}" for kind in LISTS if kind != "bindings")])
def test_a_list_is_sorted_by_what_it_shows_at_a_path(site: Site, kind: str) -> None:
    check_order(site, kind, LISTS[kind][1] if kind in LISTS else ())


@pytest.mark.parametrize("kind", [f"v1 {kind}" for kind in LISTS if kind != "bindings"])
def test_what_nothing_shows_is_refused(site: Site, kind: str) -> None:
    for path in NOWHERE:
        answer = site.get(kind, sort=path)
        assert answer["error"] == "bad_request"
        assert f"{path!r} is not" in answer["reason"]


def test_bindings_are_sorted_by_what_they_show(site: Site) -> None:
    check_order(site, "v1 vhosts / bindings", ("source", "key"))


def check_order(site: Site, kind: str, important: tuple[str, ...]) -> None:
    every = items_of(site.get(kind))
    assert len(every) > 1
    paths = {path for each in every for path in paths_of(each)}
    if "arguments" in paths:
        paths.add("arguments.nothing")
    if not kind.startswith("v1 "):
        paths |= NOWHERE
    # Not each of them has messages, or rests.
    sometimes = ("message_stats", "idle_since")
    assert paths >= {path for path in important if not path.startswith(sometimes)}
    for path in sorted(paths - {"name"}):
        found = items_of(site.get(kind, sort=path))
        wanted = sorted(every, key=lambda each: rank(value_at(each, path)))
        shown_at = [[value_at(each, path) for each in some] for some in (found, wanted)]
        assert shown_at[0] == shown_at[1], path
        # Those that are equal stay in the order in which they are without.
        assert found == wanted, path


@pytest.mark.parametrize(
    ("kind", "path"), [(kind, path) for kind, (_, paths) in LISTS.items() for path in paths]
)
def test_only_what_is_shown_of_a_sorted_list_is_described(
    site: Site, kind: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = LISTS[kind][0]
    describe = getattr(shown, name)
    described: list[object] = []

    def counted(*args: Any) -> Any:
        described.append(args[0])
        return describe(*args)

    monkeypatch.setattr(shown, name, counted)
    found = site.get(kind, page="1", page_size="1", sort=path)
    assert found["total_count"] > 1
    assert len(found["items"]) == len(described) == 1
