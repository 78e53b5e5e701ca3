"""Every frame type in every state of a connection (docs/native-protocol.md).

The frames come without a body. One that the state refuses is refused before its body is looked at;
the others say what they miss there.
"""

from __future__ import annotations

from collections.abc import Callable

import msgpack
import pytest

from tests.support.native import Client, Server, frame

# The numbers are those of docs/native-protocol.md, and written out here.
HELLO, AUTH, OK, ERROR, PING, PONG, CLOSE = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07
PUBLISH, PRODUCER = 0x10, 0x12
SUBSCRIBE, UNSUBSCRIBE, CREDIT, ACK, NACK, POLL = 0x20, 0x21, 0x24, 0x25, 0x26, 0x28
FETCH, COMMIT, COMMITTED, METADATA, OFFSETS = 0x30, 0x32, 0x33, 0x34, 0x35
DECLARE, DELETE, BIND, UNBIND, PURGE = 0x40, 0x41, 0x42, 0x43, 0x44
SET_POLICY, DELETE_POLICY, LIST_POLICIES = 0x45, 0x46, 0x47
MANAGE_USERS = 0x48
MANAGE_PERMISSIONS = 0x49
TX, JOIN, HEARTBEAT, LEAVE, STAGE = 0x50, 0x51, 0x52, 0x53, 0x55
LIST_GROUPS, DESCRIBE_GROUP = 0x56, 0x57

MALFORMED, UNEXPECTED = 100, 103

#: What a client is sent, and whether its connection is closed then.
Answer = tuple[bytes, bool]


def error(code: int, text: str, correlation: int) -> bytes:
    return frame(ERROR, correlation, msgpack.packb([code, text]))


STATES: dict[str, Callable[[], Client]] = {
    "greeting": lambda: Server().connect(),
    "authentication": lambda: Server().greet(),
    "open": lambda: Server().open(),
}


def answer(state: str, kind: int) -> Answer:
    client = STATES[state]()
    client.feed(frame(kind, 7, b""))
    return client.take_bytes(), client.is_closed


def test_in_the_handshake_one_frame_may_come_or_close() -> None:
    for state, expected in (("greeting", HELLO), ("authentication", AUTH)):
        for kind in range(256):
            text = f"frame type {kind:#04x} does not belong here"
            refusal = error(UNEXPECTED, text, 0), True
            if kind == CLOSE:
                refusal = b"", True
            elif kind == expected:
                refusal = error(MALFORMED, "not msgpack: ValueError", 0), True
            assert answer(state, kind) == refusal, (state, kind)


CUT: dict[int, str] = {
    PUBLISH: "PUBLISH is cut",
    TX: "TX or STAGE is cut",
    STAGE: "TX or STAGE is cut",
    CREDIT: "CREDIT has a wrong size",
    ACK: "ACK or NACK has a wrong size",
    NACK: "ACK or NACK has a wrong size",
}
#: Types whose body is a map of fields.
REQUESTS = [
    *(PRODUCER, SUBSCRIBE, UNSUBSCRIBE, FETCH, COMMIT, COMMITTED, METADATA, OFFSETS),
    *(DECLARE, DELETE, BIND, UNBIND, PURGE, SET_POLICY, DELETE_POLICY, LIST_POLICIES),
    *(MANAGE_USERS, MANAGE_PERMISSIONS, JOIN, HEARTBEAT, LEAVE, AUTH),
    *(LIST_GROUPS, DESCRIBE_GROUP, POLL),
]


def test_an_open_connection_takes_what_a_client_sends() -> None:
    for kind in range(256):
        text = f"frame type {kind:#04x} is not one that a client sends"
        expected = error(UNEXPECTED, text, 7), True
        if kind == CLOSE:
            expected = b"", True
        elif kind == PING:
            expected = frame(PONG, 7, b""), False
        elif kind in CUT:
            expected = error(MALFORMED, CUT[kind], 7), True
        elif kind in REQUESTS:
            expected = error(MALFORMED, "not msgpack: ValueError", 7), True
        assert answer("open", kind) == expected, kind


@pytest.mark.parametrize("kind", REQUESTS)
def test_each_request_is_carried_out_by_somebody(kind: int) -> None:
    """With a map that has one field too many, it is refused for that field, or one it misses."""
    client = Server().open()
    client.feed(frame(kind, 7, {"nonsense": 1}))
    ((reply, correlation, body),) = client.take()
    assert (reply, correlation) == (ERROR, 7)
    code, text = msgpack.unpackb(body)[:2]
    assert code == 300
    assert "'" in text
    assert not client.is_closed
