"""MQTT 5 reason codes (2.4), the return codes of MQTT 3, and this package's errors.

::

    MqttError
     +-- RemoteError       the peer broke a rule; carries the reason code that answers it
          +-- MalformedPacket   bytes that cannot be parsed (0x81)
          +-- ProtocolError     parsed, but not allowed here (0x82)
          +-- Refused           nobody's fault: what MQTT 3 has no other answer for (0x97)
"""

from __future__ import annotations

from typing import Final

SUCCESS: Final = 0x00
DISCONNECT_WITH_WILL: Final = 0x04
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION_EXISTED: Final = 0x11
CONTINUE_AUTHENTICATION: Final = 0x18
REAUTHENTICATE: Final = 0x19
UNSPECIFIED_ERROR: Final = 0x80
MALFORMED_PACKET: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
IMPLEMENTATION_SPECIFIC: Final = 0x83
UNSUPPORTED_VERSION: Final = 0x84
CLIENT_ID_NOT_VALID: Final = 0x85
BAD_CREDENTIALS: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_BUSY: Final = 0x89
SERVER_SHUTTING_DOWN: Final = 0x8B
BAD_AUTHENTICATION_METHOD: Final = 0x8C
KEEP_ALIVE_TIMEOUT: Final = 0x8D
SESSION_TAKEN_OVER: Final = 0x8E
TOPIC_FILTER_INVALID: Final = 0x8F
TOPIC_NAME_INVALID: Final = 0x90
PACKET_ID_IN_USE: Final = 0x91
PACKET_ID_NOT_FOUND: Final = 0x92
RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
TOPIC_ALIAS_INVALID: Final = 0x94
PACKET_TOO_LARGE: Final = 0x95
QUOTA_EXCEEDED: Final = 0x97
ADMINISTRATIVE_ACTION: Final = 0x98

#: SUBACK failure of MQTT 3.1.1 (MQTT-3.9.3-2)
FAILURE: Final = 0x80

#: CONNACK return codes of MQTT 3 (3.2.2.3) for the reasons that have one
RETURN_CODES: Final = {
    SUCCESS: 0,
    UNSUPPORTED_VERSION: 1,
    CLIENT_ID_NOT_VALID: 2,
    SERVER_UNAVAILABLE: 3,
    SERVER_BUSY: 3,
    SERVER_SHUTTING_DOWN: 3,
    QUOTA_EXCEEDED: 3,
    BAD_CREDENTIALS: 4,
    NOT_AUTHORIZED: 5,
}


class MqttError(Exception):
    """Base of this package's errors."""


class RemoteError(MqttError):
    """The peer broke a rule; ``reason`` is the MQTT 5 reason code that answers it."""

    def __init__(self, reason: int, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class MalformedPacket(RemoteError):
    """The bytes cannot be parsed according to the standard (MQTT5 1.2)."""

    def __init__(self, text: str) -> None:
        super().__init__(MALFORMED_PACKET, text)


class ProtocolError(RemoteError):
    """A packet that parses, but that the standard does not allow here (MQTT5 1.2)."""

    def __init__(self, text: str) -> None:
        super().__init__(PROTOCOL_ERROR, text)


class Refused(RemoteError):
    """A message of an MQTT 3 client is refused, for which there is no negative acknowledgement.

    The connection ends, so that the client knows: it sends the message again when it is back.
    """

    def __init__(self, reason: int) -> None:
        text = "it may not publish to the topic"
        if reason == QUOTA_EXCEEDED:
            text = "a queue is full"
        elif reason == IMPLEMENTATION_SPECIFIC:
            text = "the topic matches too many filters to be routed"
        super().__init__(reason, text)
