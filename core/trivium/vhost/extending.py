"""Streams are given more partitions while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.common.values import pack
from trivium.errors import PreconditionFailed
from trivium.idempotence.deduplication import QUEUE
from trivium.streams.stream import MAX_PARTITIONS

if TYPE_CHECKING:
    from trivium.vhost.virtual_host import VirtualHost


def add_partitions(vhost: VirtualHost, name: str, partitions: int) -> None:
    """Have a stream of so many partitions; those that it has stay as they are.

    A key may lead to another partition from now on. Raises NotFound, and PreconditionFailed for
    fewer than there are and for too many.
    """
    stream = vhost.stream(name)
    before = len(stream.partitions)
    if partitions == before:
        return
    if not before < partitions <= MAX_PARTITIONS:
        raise PreconditionFailed(
            f"stream '{name}' in vhost '{vhost.name}' has {before} partitions: it can have more, up"
            f" to {MAX_PARTITIONS}, not {partitions}"
        )
    row = pack([partitions, stream.incarnation, stream.arguments])
    vhost.stream_rows.put(name.encode(), row)
    vhost.changes.add(QUEUE, name)
    stream.add_partitions(partitions)
    vhost.policy_walk.apply_to_stream(stream)
    vhost.topology_version += 1
    vhost.memberships.stream_changed(name)
    vhost.tell("stream.extended", stream=name, partitions=partitions)
