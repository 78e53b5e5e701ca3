"""Committed offsets on their way from a request to the core; COMMIT and TX share this."""

from __future__ import annotations

from typing import Final

from trivium.security.permissions import READ, Access
from trivium.streams.stream import Stream
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.wire.errors import StreamChanged
from trivium_native.wire.fields import Fields
from trivium_native.wire.frames import MAX_ITEMS

_MAX_GENERATION: Final = (1 << 63) - 1


def stream_of(vhost: VirtualHost, fields: Fields, access: Access) -> Stream:
    """The stream that a request reads. Raises AccessRefused, NotFound, StreamChanged."""
    name = fields.text("stream")
    access.require(READ, "stream", name)
    stream = vhost.stream(name)
    incarnation = fields.optional_text("incarnation")
    if incarnation is not None and incarnation != stream.incarnation:
        raise StreamChanged(
            f"stream '{stream.name}' is another one of that name",
            {"incarnation": stream.incarnation},
        )
    return stream


class Commit:
    """Offsets of one group in one stream, by someone who may be a member of the group."""

    def __init__(self, vhost: VirtualHost, fields: Fields, access: Access) -> None:
        """Read the fields. Raises InvalidArgument, AccessRefused, NotFound, StreamChanged."""
        self._vhost = vhost
        self._stream = stream_of(vhost, fields, access)
        self._group = fields.text("group")
        access.require(READ, "group", self._group)
        self._offsets, self._metadata = fields.offsets("offsets", MAX_ITEMS)
        self._member = fields.optional_text("member")
        self._generation = 0
        if self._member is not None:
            self._generation = fields.integer("generation", 0, _MAX_GENERATION)
        fields.finish()

    def check(self) -> None:
        """Raises why it cannot be applied: TopologyError."""
        partitions = [partition for partition, _ in self._offsets]
        self._vhost.memberships.check_commit(
            self._group, self._member, self._generation, self._stream, partitions
        )
        self._vhost.groups.check(self._group, self._stream, self._offsets, self._metadata)

    def apply(self) -> None:
        """Commit, in the current write batch."""
        self._vhost.groups.commit(self._group, self._stream, self._offsets, self._metadata)
