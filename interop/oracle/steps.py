"""Short names for the steps of cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from interop.oracle.wire import PLAINLY, Opening, Raw, Say, Step, frame


@dataclass(frozen=True, slots=True)
class Case:
    """What a client does, and how it opens its connections."""

    name: str
    steps: tuple[Step, ...]
    opening: Opening = PLAINLY


def say(method: str, options: dict[str, Any] | None = None, **arguments: Any) -> Say:
    """Any method. ``on`` is the connection, ``channel`` the channel."""
    connection = arguments.pop("on", "a")
    channel = arguments.pop("channel", 1)
    return Say(connection, channel, method, arguments, options)


def queue(name: str = "q~", options: dict[str, Any] | None = None, **arguments: Any) -> Say:
    """queue.declare."""
    return say("Queue.Declare", options, queue=name, **arguments)


def durable(name: str = "q~", options: dict[str, Any] | None = None, **arguments: Any) -> Say:
    """queue.declare of a durable queue."""
    return queue(name, options, durable=True, **arguments)


def typed(kind: Any, options: dict[str, Any] | None = None, **arguments: Any) -> Say:
    """queue.declare of a durable queue with a type."""
    arguments.setdefault("durable", True)
    return queue("q~", {"x-queue-type": kind, **(options or {})}, **arguments)


def passive(name: str = "q~", **arguments: Any) -> Say:
    """Passive queue.declare."""
    return queue(name, passive=True, **arguments)


def exchange(
    name: str = "x~", kind: str = "direct", options: dict[str, Any] | None = None, **arguments: Any
) -> Say:
    """exchange.declare."""
    return say("Exchange.Declare", options, exchange=name, exchange_type=kind, **arguments)


def bind(
    name: str = "q~",
    source: str = "x~",
    key: str = "",
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> Say:
    """queue.bind."""
    return say("Queue.Bind", options, queue=name, exchange=source, routing_key=key, **arguments)


def unbind(
    name: str = "q~",
    source: str = "x~",
    key: str = "",
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> Say:
    """queue.unbind."""
    return say("Queue.Unbind", options, queue=name, exchange=source, routing_key=key, **arguments)


def join(
    destination: str = "y~",
    source: str = "x~",
    key: str = "",
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> Say:
    """exchange.bind."""
    return say(
        "Exchange.Bind",
        options,
        destination=destination,
        source=source,
        routing_key=key,
        **arguments,
    )


def delete(name: str = "q~", **arguments: Any) -> Say:
    """queue.delete."""
    return say("Queue.Delete", queue=name, **arguments)


def drop(name: str = "x~", **arguments: Any) -> Say:
    """exchange.delete."""
    return say("Exchange.Delete", exchange=name, **arguments)


def purge(name: str = "q~", **arguments: Any) -> Say:
    """queue.purge."""
    return say("Queue.Purge", queue=name, **arguments)


def consume(
    name: str = "q~", options: dict[str, Any] | None = None, tag: str = "c", **arguments: Any
) -> Say:
    """basic.consume."""
    return say("Basic.Consume", options, queue=name, consumer_tag=tag, **arguments)


def get(name: str = "q~", no_ack: bool = True, **arguments: Any) -> Say:
    """basic.get."""
    return say("Basic.Get", queue=name, no_ack=no_ack, **arguments)


def qos(count: int = 1, **arguments: Any) -> Say:
    """basic.qos."""
    return say("Basic.Qos", prefetch_count=count, **arguments)


def raw(kind: int, channel: int, payload: bytes = b"", on: str = "a") -> Raw:
    """A frame of any kind, on a connection with an open channel 1."""
    return Raw(on, 1, frame(kind, channel, payload))
