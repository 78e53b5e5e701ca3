"""Which frame may come when, and what the others cost, as data (AMQP 0-9-1, 2.2.4, 2.2.5, 4.2.6).

::

    connection   GREETING -> STARTING -> TUNING -> OPENING -> RUNNING      any -> CLOSING
    channel      NOT_OPEN -> OPEN -> AWAITS_HEADER -> AWAITS_BODY -> OPEN  any -> CHANNEL_CLOSING

Each state has a row: the frames that are carried out in it, and what each other one costs. The
connection asks the row (``State.admits``) before it looks at anything else of a frame. A frame goes
by a number, its event (``frames.event_of``). Reply codes and texts are RabbitMQ's where it answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trivium_amqp.codec import methods
from trivium_amqp.codec.errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    NOT_IMPLEMENTED,
    UNEXPECTED_FRAME,
    ConnectionException,
    FramingError,
)
from trivium_amqp.codec.frames import (
    BODY_EVENT,
    FULL_HEARTBEAT,
    HEADER_EVENT,
    HEARTBEAT_EVENT,
    SHORT_METHOD,
)

#: What a row says of all methods that it does not name, of numbers that no method has, and of
#: types that no frame has. No event has these numbers.
METHODS: Final = ~512
UNKNOWN_METHODS: Final = ~513
UNKNOWN_TYPES: Final = ~514

#: The error names the method that came.
WHAT_CAME: Final = -1


class Refusal:
    """What a frame costs: the connection. ``method`` is what the error names, 0 for none.

    In ``text`` stand ``{method}`` and ``{type}`` for the frame's, ``{channel}`` for its channel.
    """

    def __init__(self, code: int, text: str, method: int = WHAT_CAME) -> None:
        self.code = code
        self.text = text
        self.method = method

    def error(self, event: int, channel: int) -> ConnectionException:
        """The exception for a frame."""
        text = self.text.format(
            method=f"{event >> 16}.{event & 0xFFFF}", type=~event, channel=channel
        )
        method = max(event, 0) if self.method == WHAT_CAME else self.method
        if self.code == FRAME_ERROR:
            return FramingError(text, method)
        return ConnectionException(self.code, text, method)


#: A row's word for a frame that is passed over.
PASSED_OVER: Final = Refusal(0, "")

#: What no state but the last takes.
_MALFORMED: Final[dict[int, Refusal]] = {
    SHORT_METHOD: Refusal(FRAME_ERROR, "method frame is too short"),
    FULL_HEARTBEAT: Refusal(FRAME_ERROR, "heartbeat frame with a payload"),
    UNKNOWN_TYPES: Refusal(FRAME_ERROR, "unknown frame type {type}"),
}


def _all(refusal: Refusal) -> dict[int, Refusal]:
    """Content and methods cost the same, whether they exist or not."""
    events = (METHODS, UNKNOWN_METHODS, HEADER_EVENT, BODY_EVENT)
    return dict.fromkeys(events, refusal)


class State:
    """A row of the table. ``refusals`` says what a frame costs that is not one of ``admitted``.

    The first of ``admitted`` is the one that comes most: it is not looked up.

    ``channels`` is the row for frames on channels, where the state of the connection says it all.
    """

    def __init__(
        self,
        name: str,
        admitted: Sequence[int],
        refusals: Mapping[int, Refusal],
        channels: State | None = None,
    ) -> None:
        self.name = name
        self._usual = admitted[0] if admitted else METHODS
        self.admitted = frozenset(admitted)
        self.refusals = {**_MALFORMED, **refusals}
        self.channels = channels

    def admits(self, event: int, channel: int) -> bool:
        """Whether a frame is carried out; False where it is passed over.

        Raises the ConnectionException that it costs.
        """
        if event == self._usual or event in self.admitted:
            return True
        refusal = self.refusals.get(event)
        if refusal is None:
            if event < 0:
                refusal = self.refusals[UNKNOWN_TYPES]
            elif event in methods.ARGUMENTS:
                refusal = self.refusals[METHODS]
            else:
                refusal = self.refusals[UNKNOWN_METHODS]
        if refusal is PASSED_OVER:
            return False
        raise refusal.error(event, channel)


_UNKNOWN_METHOD: Final = Refusal(NOT_IMPLEMENTED, "unknown method {method}")
_EVERYTHING_PASSED_OVER: Final = dict.fromkeys(
    (
        *(METHODS, UNKNOWN_METHODS, UNKNOWN_TYPES, HEADER_EVENT, BODY_EVENT),
        *(HEARTBEAT_EVENT, SHORT_METHOD, FULL_HEARTBEAT),
    ),
    PASSED_OVER,
)

# Channels. Heartbeats are on channel 0 (4.2.7).

_HEARTBEAT_HERE: Final = Refusal(UNEXPECTED_FRAME, "type 8, all octets = <<>>", 0)
_NO_METHOD: Final = Refusal(
    UNEXPECTED_FRAME, "expected method frame, got non method frame instead", 0
)
_SECOND_OPEN: Final = Refusal(CHANNEL_ERROR, "second 'channel.open' seen")
_NO_HEADER: Final = Refusal(
    UNEXPECTED_FRAME,
    "expected content header for class 60, got non content header frame instead",
    methods.BASIC_PUBLISH,
)
#: Also what a body costs that is longer than its header says.
NO_BODY: Final = Refusal(
    UNEXPECTED_FRAME,
    "expected content body, got non content body frame instead",
    methods.BASIC_PUBLISH,
)

#: The connection is not open.
_NO_CHANNELS: Final = State(
    "no channels",
    (),
    {
        **_all(
            Refusal(CHANNEL_ERROR, "frame on channel {channel} before the connection is open", 0)
        ),
        HEARTBEAT_EVENT: _HEARTBEAT_HERE,
    },
)
NOT_OPEN: Final = State(
    "not open",
    (methods.CHANNEL_OPEN,),
    {
        **_all(Refusal(CHANNEL_ERROR, "expected 'channel.open'")),
        # A client may close what was closed by us in the same moment (2.2.5).
        methods.CHANNEL_CLOSE_OK: PASSED_OVER,
        HEADER_EVENT: _NO_METHOD,
        BODY_EVENT: _NO_METHOD,
        HEARTBEAT_EVENT: _HEARTBEAT_HERE,
    },
)
OPEN: Final = State(
    "open",
    (
        methods.BASIC_PUBLISH,
        *(methods.CHANNEL_FLOW, methods.CHANNEL_CLOSE),
        *(methods.EXCHANGE_DECLARE, methods.EXCHANGE_DELETE),
        *(methods.EXCHANGE_BIND, methods.EXCHANGE_UNBIND),
        *(methods.QUEUE_DECLARE, methods.QUEUE_DELETE, methods.QUEUE_PURGE),
        *(methods.QUEUE_BIND, methods.QUEUE_UNBIND),
        *(methods.BASIC_QOS, methods.BASIC_CONSUME, methods.BASIC_CANCEL, methods.BASIC_GET),
        *(methods.BASIC_ACK, methods.BASIC_NACK, methods.BASIC_REJECT),
        *(methods.BASIC_RECOVER, methods.BASIC_RECOVER_ASYNC),
        methods.CONFIRM_SELECT,
        *(methods.TX_SELECT, methods.TX_COMMIT, methods.TX_ROLLBACK),
    ),
    {
        METHODS: Refusal(COMMAND_INVALID, "unimplemented method"),
        UNKNOWN_METHODS: _UNKNOWN_METHOD,
        methods.CHANNEL_OPEN: _SECOND_OPEN,
        HEADER_EVENT: _NO_METHOD,
        BODY_EVENT: _NO_METHOD,
        HEARTBEAT_EVENT: _HEARTBEAT_HERE,
    },
)
#: basic.publish has come. The client may give its content up by closing the channel.
AWAITS_HEADER: Final = State(
    "awaits header",
    (HEADER_EVENT, methods.CHANNEL_CLOSE),
    {
        **_all(_NO_HEADER),
        methods.CHANNEL_OPEN: _SECOND_OPEN,
        HEARTBEAT_EVENT: _HEARTBEAT_HERE,
    },
)
AWAITS_BODY: Final = State(
    "awaits body",
    (BODY_EVENT, methods.CHANNEL_CLOSE),
    {
        **_all(NO_BODY),
        methods.CHANNEL_OPEN: _SECOND_OPEN,
        HEARTBEAT_EVENT: _HEARTBEAT_HERE,
    },
)
#: channel.close was sent: all but its answer is passed over, and the client's own (2.2.5).
CHANNEL_CLOSING: Final = State(
    "channel closing",
    (methods.CHANNEL_CLOSE, methods.CHANNEL_CLOSE_OK),
    {**_all(PASSED_OVER), HEARTBEAT_EVENT: _HEARTBEAT_HERE},
)

# The connection, which is channel 0.

_NO_CONTENT: Final = Refusal(UNEXPECTED_FRAME, "content frame on channel 0", 0)


def _handshake(name: str, expected: int) -> State:
    """One method may come, or the client goes."""
    unexpected = Refusal(COMMAND_INVALID, "method {method} is not expected during the handshake")
    refusals = {**_all(unexpected), HEADER_EVENT: _NO_CONTENT, BODY_EVENT: _NO_CONTENT}
    admitted = (expected, methods.CONNECTION_CLOSE, HEARTBEAT_EVENT)
    return State(name, admitted, refusals, _NO_CHANNELS)


#: The protocol header has not come, so nothing is a frame yet.
GREETING: Final = State("greeting", (), {}, _NO_CHANNELS)
STARTING: Final = _handshake("starting", methods.CONNECTION_START_OK)
TUNING: Final = _handshake("tuning", methods.CONNECTION_TUNE_OK)
OPENING: Final = _handshake("opening", methods.CONNECTION_OPEN)
RUNNING: Final = State(
    "running",
    (methods.CONNECTION_CLOSE, methods.CONNECTION_UPDATE_SECRET, HEARTBEAT_EVENT),
    {
        METHODS: Refusal(CHANNEL_ERROR, "unexpected method in connection state running"),
        UNKNOWN_METHODS: _UNKNOWN_METHOD,
        HEADER_EVENT: _NO_CONTENT,
        BODY_EVENT: _NO_CONTENT,
    },
)
#: connection.close was sent: all but its answer is passed over, and the client's own (2.2.4).
CLOSING: Final = State(
    "closing",
    (methods.CONNECTION_CLOSE, methods.CONNECTION_CLOSE_OK),
    _EVERYTHING_PASSED_OVER,
    State("connection closing", (), _EVERYTHING_PASSED_OVER),
)
