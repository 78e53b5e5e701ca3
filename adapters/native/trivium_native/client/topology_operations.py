"""The requests about exchanges, queues, streams and policies as values; see ``operations``."""

from __future__ import annotations

from collections.abc import Mapping

from trivium_native.client.operations import Operation, done, pattern_bytes, request
from trivium_native.client.values import PolicyInfo, QueueInfo
from trivium_native.wire import frames


def declare_exchange(
    name: str,
    type_: str = "topic",
    *,
    durable: bool = True,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: Mapping[str, object] | None = None,
) -> Operation[None]:
    """An exchange with these properties, made when it is new. Raises PreconditionFailed."""
    return request(
        frames.DECLARE,
        done,
        kind="exchange",
        name=name,
        type=type_,
        durable=durable,
        auto_delete=auto_delete,
        internal=internal,
        arguments=None if arguments is None else dict(arguments),
    )


def declare_queue(
    name: str = "",
    *,
    durable: bool = True,
    auto_delete: bool = False,
    exclusive: bool = False,
    arguments: Mapping[str, object] | None = None,
) -> Operation[QueueInfo]:
    """A queue with these properties, made when it is new; an empty name makes one up."""
    declaring = request(
        frames.DECLARE,
        lambda reply: QueueInfo(reply["name"], reply["messages"], reply["consumers"]),
        kind="queue",
        name=name,
        durable=durable,
        auto_delete=auto_delete,
        exclusive=exclusive,
        arguments=None if arguments is None else dict(arguments),
    )
    declaring.belongs = exclusive
    return declaring


def declare_stream(
    name: str, partitions: int = 1, arguments: Mapping[str, object] | None = None
) -> Operation[str]:
    """A stream with this many partitions, made when it is new; its incarnation."""
    return request(
        frames.DECLARE,
        lambda reply: str(reply["incarnation"]),
        kind="stream",
        name=name,
        partitions=partitions,
        arguments=None if arguments is None else dict(arguments),
    )


def extend_stream(name: str, partitions: int) -> Operation[None]:
    """Give a stream more partitions: so many in all, from now on.

    A key may lead to another one from then on. Groups share the new ones out at once, and read them
    from their beginning. Raises NotFound, PreconditionFailed for fewer than there are.
    """
    return request(
        frames.DECLARE, done, kind="stream", name=name, partitions=partitions, extend=True
    )


def delete(
    kind: str, name: str, *, if_unused: bool | None = None, if_empty: bool | None = None
) -> Operation[None]:
    """Delete an ``exchange``, ``queue``, ``stream`` or ``group``."""
    return request(
        frames.DELETE, done, kind=kind, name=name, if_unused=if_unused, if_empty=if_empty
    )


def delete_stream(name: str) -> Operation[None]:
    """Delete a stream with its records."""
    return delete("stream", name)


def bind(
    kind: str,
    name: str,
    *,
    exchange: str = "amq.topic",
    pattern: bytes | str = b"",
    arguments: Mapping[str, object] | None = None,
) -> Operation[None]:
    """Bind a ``queue``, ``stream`` or ``exchange`` to an exchange."""
    return _binding(frames.BIND, kind, name, exchange, pattern, arguments)


def bind_queue(queue: str, exchange: str, pattern: bytes | str) -> Operation[None]:
    """Bind a queue to an exchange."""
    return bind("queue", queue, exchange=exchange, pattern=pattern)


def bind_stream(stream: str, exchange: str, pattern: bytes | str) -> Operation[None]:
    """Bind a stream to an exchange."""
    return bind("stream", stream, exchange=exchange, pattern=pattern)


def unbind(
    kind: str,
    name: str,
    *,
    exchange: str = "amq.topic",
    pattern: bytes | str = b"",
    arguments: Mapping[str, object] | None = None,
) -> Operation[None]:
    """Take a binding back."""
    return _binding(frames.UNBIND, kind, name, exchange, pattern, arguments)


def _binding(
    frame: int,
    kind: str,
    name: str,
    exchange: str,
    pattern: bytes | str,
    arguments: Mapping[str, object] | None,
) -> Operation[None]:
    return request(
        frame,
        done,
        kind=kind,
        name=name,
        exchange=exchange,
        pattern=pattern_bytes(pattern),
        arguments=None if arguments is None else dict(arguments),
    )


def purge(queue: str) -> Operation[int]:
    """Remove all ready messages of a queue; how many there were."""
    return request(frames.PURGE, lambda reply: int(reply["messages"]), name=queue)


# Policies


def set_policy(policy: PolicyInfo) -> Operation[None]:
    """Add a policy, or replace the one of its name; in force at once."""
    return request(
        frames.SET_POLICY,
        done,
        name=policy.name,
        pattern=policy.pattern,
        definition=dict(policy.definition),
        apply_to=policy.apply_to,
        priority=policy.priority,
    )


def delete_policy(name: str) -> Operation[None]:
    """Remove a policy; what then holds is in force at once."""
    return request(frames.DELETE_POLICY, done, name=name)


def policies() -> Operation[list[PolicyInfo]]:
    """All policies of the virtual host, by name."""
    return request(
        frames.LIST_POLICIES, lambda reply: [PolicyInfo(**row) for row in reply["policies"]]
    )
