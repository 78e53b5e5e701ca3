"""What a client may send when: one table, by the connection's state and the packet's type.

A connection begins in AWAITS_CONNECT. CONNECT brings it to AUTHENTICATES, where its input is held,
so that nothing is looked up here. With an authentication method it may be asked for more, and waits
for that in EXCHANGES; AUTH brings it back. Once it is accepted it is CONNECTED, or PAUSED while
publishers must wait (MQTT has no word for that: what they send is set aside, unanswered).
"""

from __future__ import annotations

from typing import Final

from trivium_mqtt.codec.reasons import MalformedPacket, ProtocolError, RemoteError

AWAITS_CONNECT: Final = 0
AUTHENTICATES: Final = 1
EXCHANGES: Final = 2
CONNECTED: Final = 3
PAUSED: Final = 4

# What is done with a packet.
#: it is decoded and carried out
TAKE: Final = 0
#: it is set aside until publishers may go on
SET_ASIDE: Final = 1
#: so is it, if anything was: it must not overtake that
FOLLOW: Final = 2
# The rest are errors.
NOT_FIRST: Final = 3
SECOND_CONNECT: Final = 4
FROM_SERVER: Final = 5
TOO_EARLY: Final = 6
RESERVED: Final = 7

#: By packet type, the upper half of the first byte (2.1.2): in AWAITS_CONNECT, EXCHANGES,
#: CONNECTED, PAUSED.
_RULES: Final = (
    (NOT_FIRST, RESERVED, RESERVED, RESERVED),  # 0
    (TAKE, SECOND_CONNECT, SECOND_CONNECT, SECOND_CONNECT),  # CONNECT
    (NOT_FIRST, FROM_SERVER, FROM_SERVER, FROM_SERVER),  # CONNACK
    (NOT_FIRST, TOO_EARLY, TAKE, SET_ASIDE),  # PUBLISH
    (NOT_FIRST, TOO_EARLY, TAKE, TAKE),  # PUBACK
    (NOT_FIRST, TOO_EARLY, TAKE, TAKE),  # PUBREC
    (NOT_FIRST, TOO_EARLY, TAKE, FOLLOW),  # PUBREL, which would free an identifier that waits
    (NOT_FIRST, TOO_EARLY, TAKE, TAKE),  # PUBCOMP
    (NOT_FIRST, TOO_EARLY, TAKE, TAKE),  # SUBSCRIBE
    (NOT_FIRST, FROM_SERVER, FROM_SERVER, FROM_SERVER),  # SUBACK
    (NOT_FIRST, TOO_EARLY, TAKE, TAKE),  # UNSUBSCRIBE
    (NOT_FIRST, FROM_SERVER, FROM_SERVER, FROM_SERVER),  # UNSUBACK
    (NOT_FIRST, TOO_EARLY, TAKE, TAKE),  # PINGREQ
    (NOT_FIRST, FROM_SERVER, FROM_SERVER, FROM_SERVER),  # PINGRESP
    (NOT_FIRST, TAKE, TAKE, FOLLOW),  # DISCONNECT, which would drop what waits
    (NOT_FIRST, TAKE, TAKE, TAKE),  # AUTH, which needs an authentication method
)


def _column(number: int) -> list[int]:
    """What is done with each packet type in one state."""
    return [rule[number] for rule in _RULES]


#: What is done with a packet: ``ACTIONS[state][first byte >> 4]``.
ACTIONS: Final = [_column(0), [], _column(1), _column(2), _column(3)]


def error_of(action: int, first: int) -> RemoteError:
    """The error that a packet is for which ``ACTIONS`` has this; it begins with ``first``."""
    if action == NOT_FIRST:
        return ProtocolError("the first packet is not CONNECT (MQTT-3.1.0-1)")
    if action == SECOND_CONNECT:
        return ProtocolError("second CONNECT (MQTT-3.1.0-2)")
    if action == FROM_SERVER:
        return ProtocolError("a packet that only a server sends")
    if action == TOO_EARLY:
        return ProtocolError("neither AUTH nor DISCONNECT before CONNACK (MQTT-3.1.2-30)")
    return MalformedPacket(f"packet type and flags 0x{first:02x} (MQTT-2.1.3-1)")
