"""The durable side of MQTT sessions: rows in tables, in the write batch of what they belong to.

Keys start with the client identifier and its length. With memory storage nothing is written, since
nothing would ever be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from trivium.common.values import pack, unpack
from trivium.security.identity import Identity
from trivium.storage.base import Storage, Table
from trivium_mqtt.codec.packets import Will
from trivium_mqtt.codec.wire import PACKET_IDS

# options byte, subscription identifier
_SUBSCRIPTION: Final = Struct(">BI")
#: Stands behind the row of a subscription whose retained messages have not all been sent; the key
#: that was reached follows.
_GETS_RETAINED: Final = b"\x01"
# offset in the session's queue, whether PUBREC was received
_OUTGOING: Final = Struct(">QB")

_CLOCK: Final = b"clock"


def _fields_of(owner: Identity) -> list[object]:
    """What a row says of who made it."""
    fields: list[object] = [None if owner.is_anonymous else owner.name]
    if owner.scopes is not None:
        fields += [list(owner.scopes), owner.is_narrowed]
    return fields


def _owner(
    name: str | None = None, scopes: list[str] | None = None, is_narrowed: bool = False
) -> Identity:
    """Who made a session or will, as its row says; without credentials where it says nothing."""
    return Identity(
        name or "",
        is_anonymous=name is None,
        scopes=None if scopes is None else tuple(scopes),
        is_narrowed=is_narrowed,
    )


class SessionRow:
    """One persistent session."""

    def __init__(
        self,
        expiry: int,
        last_seen: int,
        inflight: list[tuple[int, int]],
        owner: Identity,
        mount_point: bytes = b"",
    ) -> None:
        #: of the listeners by which its client comes
        self.mount_point = mount_point
        #: who made it, without tags
        self.owner = owner
        #: session expiry interval in seconds
        self.expiry = expiry
        #: when its connection went, in ms since the epoch; 0 while it is connected
        self.last_seen = last_seen
        #: queue offset and packet identifier of QoS 1 messages that were unacknowledged then
        self.inflight = inflight


class SessionStore:
    """Tables of one virtual host."""

    def __init__(self, storage: Storage, vhost: str) -> None:
        self._is_durable = storage.is_durable
        self._sessions = storage.table(f"mqtt.sessions/{vhost}")
        self._subscriptions = storage.table(f"mqtt.subscriptions/{vhost}")
        self._incoming = storage.table(f"mqtt.incoming/{vhost}")
        self._outgoing = storage.table(f"mqtt.outgoing/{vhost}")
        self._wills = storage.table(f"mqtt.wills/{vhost}")
        self._clock = storage.table(f"mqtt.clock/{vhost}")

    def tables(self) -> list[Table]:
        """All of them."""
        return [
            self._sessions,
            self._subscriptions,
            self._incoming,
            self._outgoing,
            self._wills,
            self._clock,
        ]

    # Sessions

    def put_session(self, client_id: bytes, row: SessionRow) -> None:
        """Write a session's row."""
        if self._is_durable:
            name, *scopes = _fields_of(row.owner)
            values: list[object] = [row.expiry, row.last_seen, row.inflight, name]
            if row.mount_point or scopes:
                values.append(row.mount_point)
            values += scopes
            self._sessions.put(client_id, pack(values))

    def delete_session(self, client_id: bytes) -> None:
        """Forget a session; its other rows are deleted one by one."""
        if self._is_durable:
            self._sessions.delete(client_id)

    def sessions(self) -> Iterator[tuple[bytes, SessionRow]]:
        """All persistent sessions."""
        for client_id, row in self._sessions.items():
            # The owner is missing in rows from before there were permissions.
            expiry, last_seen, inflight, *more = unpack(row)
            pairs = [(offset, packet_id) for offset, packet_id in inflight]
            mount_point = more[1] if len(more) > 1 else b""
            owner = _owner(*more[:1], *more[2:])
            yield client_id, SessionRow(expiry, last_seen, pairs, owner, mount_point)

    # Subscriptions

    def put_subscription(
        self,
        client_id: bytes,
        topic_filter: bytes,
        options: int,
        identifier: int,
        after: bytes | None,
    ) -> None:
        """Write a subscription of a persistent session.

        ``after`` is the key up to which it got its retained messages; None: it got them all.
        """
        if self._is_durable:
            row = _SUBSCRIPTION.pack(options, identifier)
            if after is not None:
                row += _GETS_RETAINED + after
            self._subscriptions.put(_key(client_id, topic_filter), row)

    def delete_subscription(self, client_id: bytes, topic_filter: bytes) -> None:
        """Forget a subscription."""
        if self._is_durable:
            self._subscriptions.delete(_key(client_id, topic_filter))

    def subscriptions(self) -> Iterator[tuple[bytes, bytes, int, int, bytes | None]]:
        """All of them: client identifier and what ``put_subscription`` takes."""
        size = _SUBSCRIPTION.size
        for key, row in self._subscriptions.items():
            client_id, topic_filter = _split(key)
            options, identifier = _SUBSCRIPTION.unpack(row[:size])
            after = row[size + 1 :] if len(row) > size else None
            yield client_id, topic_filter, options, identifier, after

    # Packet identifiers of QoS 2

    def put_incoming(self, client_id: bytes, packet_id: int) -> None:
        """A QoS 2 message was received: its identifier must not be taken for a new one."""
        if self._is_durable:
            self._incoming.put(_key(client_id, PACKET_IDS[packet_id]), b"")

    def delete_incoming(self, client_id: bytes, packet_id: int) -> None:
        """The client released the identifier."""
        if self._is_durable:
            self._incoming.delete(_key(client_id, PACKET_IDS[packet_id]))

    def incoming(self) -> Iterator[tuple[bytes, int]]:
        """All received and unreleased QoS 2 identifiers, with their clients."""
        for key, _ in self._incoming.items():
            client_id, packet_id = _split(key)
            yield client_id, packet_id[0] << 8 | packet_id[1]

    def put_outgoing(self, client_id: bytes, packet_id: int, offset: int, released: bool) -> None:
        """A QoS 2 message got this identifier, or (``released``) the client has confirmed it."""
        if self._is_durable:
            row = _OUTGOING.pack(offset, released)
            self._outgoing.put(_key(client_id, PACKET_IDS[packet_id]), row)

    def delete_outgoing(self, client_id: bytes, packet_id: int) -> None:
        """The identifier is free again."""
        if self._is_durable:
            self._outgoing.delete(_key(client_id, PACKET_IDS[packet_id]))

    def outgoing(self) -> Iterator[tuple[bytes, int, int, bool]]:
        """All of them: client identifier, packet identifier, queue offset, whether released."""
        for key, row in self._outgoing.items():
            client_id, packet_id = _split(key)
            offset, released = _OUTGOING.unpack(row)
            yield client_id, packet_id[0] << 8 | packet_id[1], offset, released != 0

    # Wills

    def put_will(self, client_id: bytes, will: Will, due: int, owner: Identity) -> None:
        """Keep a will; ``due`` is in ms since the epoch, 0 while its client is connected."""
        if self._is_durable:
            row = [will.topic, will.header, will.payload, will.qos, will.retain, will.delay, due]
            self._wills.put(client_id, pack(row + _fields_of(owner)))

    def delete_will(self, client_id: bytes) -> None:
        """The will was published or withdrawn."""
        if self._is_durable:
            self._wills.delete(client_id)

    def wills(self) -> Iterator[tuple[bytes, Will, int, Identity]]:
        """All wills, with their clients, when they are due, and whose they are."""
        for client_id, row in self._wills.items():
            # The owner is missing in older rows.
            topic, header, payload, qos, retain, delay, due, *owner = unpack(row)
            yield client_id, Will(topic, header, payload, qos, retain, delay), due, _owner(*owner)

    # Clock

    def put_clock(self, now_ms: int) -> None:
        """Note that the broker ran at this time."""
        if self._is_durable:
            self._clock.put(_CLOCK, now_ms.to_bytes(8, "big"))

    def clock(self) -> int:
        """When the broker is known to have run last, in ms since the epoch; 0 when it never did."""
        row = self._clock.get(_CLOCK)
        return 0 if row is None else int.from_bytes(row, "big")


def _key(client_id: bytes, rest: bytes) -> bytes:
    return PACKET_IDS[len(client_id)] + client_id + rest


def _split(key: bytes) -> tuple[bytes, bytes]:
    at = 2 + (key[0] << 8 | key[1])
    return key[2:at], key[at:]
