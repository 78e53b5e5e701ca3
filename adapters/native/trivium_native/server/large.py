"""PUBLISH and TX with large payloads, which need not be joined to be read."""

from __future__ import annotations

from trivium.common.pieces import Pieces, split_parts
from trivium.messages.large import LARGE_PAYLOAD, LargePayload
from trivium_native.wire.frames import HEAD, HEAD_SIZE, MAX_FIELDS_BYTES, PUBLISH, TX
from trivium_native.wire.messages import (
    CODEC_MASK,
    HAS_PRODUCER,
    MAX_PRODUCER_BYTES,
    MESSAGE_HEAD,
    MESSAGE_HEAD_SIZE,
    PRODUCER,
    PRODUCER_SIZE,
    PUBLISH_HEAD,
    PUBLISH_HEAD_SIZE,
    TX_HEAD,
    TX_HEAD_SIZE,
)


class LargeRequest:
    """A request without its large payloads, and these."""

    def __init__(self, data: bytes, payloads: list[LargePayload]) -> None:
        #: the frame as if the large payloads were not there; the lengths say that they are
        self.data = data
        self.kind: int = HEAD.unpack_from(data)[1]
        self.correlation: int = HEAD.unpack_from(data)[2]
        #: in the order of their messages
        self.payloads = payloads


def cut_payloads(frame: Pieces) -> LargeRequest | None:
    """The request in ``frame``, if its messages are large on average.

    None for others, of which there may be very many in one, and for what is malformed.
    """
    start = frame.head(HEAD_SIZE + PUBLISH_HEAD_SIZE + PRODUCER_SIZE)
    count, at = _messages_of(start)
    if at == 0 or count * LARGE_PAYLOAD > frame.size:
        return None
    kept, rest = split_parts(frame.parts, at)
    payloads: list[LargePayload] = []
    for _ in range(count):
        part, rest = split_parts(rest, MESSAGE_HEAD_SIZE)
        kept += part
        head = b"".join(part)
        if len(head) < MESSAGE_HEAD_SIZE:
            return None
        _, _, exchange_size, key_size, _, header_size, payload_size = MESSAGE_HEAD.unpack(head)
        part, rest = split_parts(rest, exchange_size + key_size + header_size)
        kept += part
        part, rest = split_parts(rest, payload_size)
        if payload_size < LARGE_PAYLOAD:
            kept += part
            continue
        payload = LargePayload(part)
        if payload.size < payload_size:
            return None
        payloads.append(payload)
    return LargeRequest(b"".join(kept + rest), payloads) if payloads else None


def _messages_of(start: bytes) -> tuple[int, int]:
    """How many messages the request that begins with ``start`` has, and where they begin; 0 for a
    request that has none in sight, or is malformed."""
    kind: int = HEAD.unpack_from(start)[1]
    at = HEAD_SIZE + PUBLISH_HEAD_SIZE
    if kind == PUBLISH:
        count, flags = PUBLISH_HEAD.unpack_from(start, HEAD_SIZE)
        if flags & CODEC_MASK:
            return 0, 0
        if flags & HAS_PRODUCER:
            name_size: int = PRODUCER.unpack_from(start, at)[0]
            if name_size > MAX_PRODUCER_BYTES:
                return 0, 0
            at += PRODUCER_SIZE + name_size
        return count, at
    if kind == TX:
        size, count = TX_HEAD.unpack_from(start, HEAD_SIZE)
        if size <= MAX_FIELDS_BYTES:
            return count, HEAD_SIZE + TX_HEAD_SIZE + size
    return 0, 0
