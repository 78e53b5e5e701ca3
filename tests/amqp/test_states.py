"""Every frame in every state of a connection and of a channel (AMQP 0-9-1, 2.2.4, 2.2.5, 4.2.6).

Frames are made by pamqp. The answers are those of RabbitMQ 3.10 where no test says otherwise.
A method that a state refuses is sent without arguments: the state is looked at first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from pamqp import frame
from pamqp.base import Frame
from pamqp.commands import INDEX_MAPPING, Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

from tests.support.amqp import PROTOCOL_HEADER, Client, Server, publish_frames, start_ok

#: What a client is sent, and whether its connection is closed then.
Answer = tuple[bytes, bool]

IGNORED: Answer = (b"", False)

CLASSES: dict[int, type[Frame]] = INDEX_MAPPING
METHODS = {made.name: index for index, made in CLASSES.items()}
#: The methods that nobody uses in this dialect, which has not even their numbers.
NOT_OF_THE_DIALECT = ["Connection.Secure", "Connection.SecureOk"]
UNKNOWN = {"an unknown method": 60 << 16 | 99, "an unknown class": 99 << 16 | 10}
ALL = {**METHODS, **UNKNOWN}


def raw(kind: int, number: int, payload: bytes = b"") -> bytes:
    return struct.pack(">BHI", kind, number, len(payload)) + payload + b"\xce"


def content_header(size: int, number: int = 1) -> bytes:
    return raw(2, number, struct.pack(">HHQH", 60, 0, size, 0))


def bare(index: int, number: int) -> bytes:
    """A method without the arguments that it should have."""
    return raw(1, number, struct.pack(">I", index))


def says(*methods: Frame, number: int = 1) -> Answer:
    return b"".join(frame.marshal(method, number) for method in methods), False


def closes(code: int, text: str, index: int = 0) -> Answer:
    """connection.close, with the method that caused it."""
    return says(Connection.Close(code, text, index >> 16, index & 0xFFFF), number=0)


def closes_channel(code: int, text: str, index: int) -> Answer:
    return says(Channel.Close(code, text, index >> 16, index & 0xFFFF))


def open_ok(number: int) -> bytes:
    return raw(1, number, struct.pack(">II", METHODS["Channel.OpenOk"], 0))


GONE: Answer = (frame.marshal(Connection.CloseOk(), 0), True)


# The states. Each function brings a client there.


def greeted() -> Client:
    client = Server().connect()
    client.feed(PROTOCOL_HEADER)
    return client


def authenticated() -> Client:
    client = greeted()
    client.send(start_ok(), channel=0)
    return client


def tuned() -> Client:
    client = authenticated()
    client.send(Connection.TuneOk(2047, 131_072, 0), channel=0)
    return client


def opened() -> Client:
    """With channel 1, and the queue q."""
    client = Server().open()
    client.declare("q")
    return client


def closing() -> Client:
    client = opened()
    client.send(Channel.Open())
    return client


def awaits_header() -> Client:
    client = opened()
    client.send(Basic.Publish(exchange="", routing_key="q"))
    return client


def awaits_body() -> Client:
    client = awaits_header()
    client.feed(content_header(2))
    return client


def channel_closing() -> Client:
    client = opened()
    client.send(Queue.Declare(queue="missing", passive=True))
    return client


STATES: dict[str, Callable[[], Client]] = {
    "starting": greeted,
    "tuning": authenticated,
    "opening": tuned,
    "running": opened,
    "closing": closing,
    "header": awaits_header,
    "body": awaits_body,
    "channel closing": channel_closing,
}


def answer(state: str, *sent: bytes) -> Answer:
    """What a client in this state is answered."""
    client = STATES[state]()
    client.server.sync()
    client.take_bytes()
    client.feed(b"".join(sent))
    client.server.sync()
    return client.take_bytes(), client.is_closed


def differences(expected: dict[str, Answer], state: str, number: int) -> dict[str, object]:
    """Where the answers to all methods, sent without arguments, are not those."""
    assert expected.keys() == ALL.keys()
    given = {name: answer(state, bare(index, number)) for name, index in ALL.items()}
    return {
        name: (expected[name], found) for name, found in given.items() if found != expected[name]
    }


def refused(code: int, text: str) -> dict[str, Answer]:
    """All methods cost the connection the same."""
    return {name: closes(code, text, index) for name, index in ALL.items()}


# Channel 0

CLOSE = frame.marshal(Connection.Close(200, "", 0, 0), 0)
CUT = "SYNTAX_ERROR - method arguments end too early"


def cut(name: str) -> Answer:
    """The method is allowed, so its arguments are missed."""
    return closes(502, CUT, ALL[name])


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("starting", "Connection.StartOk"),
        ("tuning", "Connection.TuneOk"),
        ("opening", "Connection.Open"),
    ],
)
def test_2_2_4_during_the_handshake_one_method_may_come_or_close(state: str, expected: str) -> None:
    """RabbitMQ ends such a connection without a word, or by 504, and close too."""
    answers = {
        name: closes(
            503,
            f"COMMAND_INVALID - method {index >> 16}.{index & 0xFFFF} is not expected during the"
            " handshake",
            index,
        )
        for name, index in ALL.items()
    }
    answers[expected] = cut(expected)
    answers["Connection.Close"] = cut("Connection.Close")
    assert differences(answers, state, 0) == {}
    assert answer(state, CLOSE) == GONE


def test_2_2_4_the_handshake_goes_on_by_the_expected_method() -> None:
    assert answer("starting", frame.marshal(start_ok(), 0)) == says(
        Connection.Tune(2047, 131_072, 60), number=0
    )
    assert answer("tuning", frame.marshal(Connection.TuneOk(9, 4096, 0), 0)) == IGNORED
    opened = frame.marshal(Connection.Open("/"), 0)
    assert answer("opening", opened) == says(Connection.OpenOk(), number=0)


def test_2_2_4_an_open_connection_takes_close_and_update_secret() -> None:
    answers = refused(504, "CHANNEL_ERROR - unexpected method in connection state running")
    for name in UNKNOWN | dict.fromkeys(NOT_OF_THE_DIALECT, 0):
        answers[name] = unknown(name)
    answers["Connection.Close"] = cut("Connection.Close")
    answers["Connection.UpdateSecret"] = cut("Connection.UpdateSecret")
    assert differences(answers, "running", 0) == {}
    assert answer("running", CLOSE) == GONE
    secret = frame.marshal(Connection.UpdateSecret("x", "y"), 0)
    assert answer("running", secret) == says(Connection.UpdateSecretOk(), number=0)


def unknown(name: str) -> Answer:
    index = ALL[name]
    text = f"NOT_IMPLEMENTED - unknown method {index >> 16}.{index & 0xFFFF}"
    return closes(540, text, index)


def test_2_2_4_after_close_was_sent_only_its_answer_and_another_close_count() -> None:
    answers: dict[str, Answer] = dict.fromkeys(ALL, IGNORED)
    answers["Connection.CloseOk"] = (b"", True)
    answers["Connection.Close"] = GONE
    assert differences(answers, "closing", 0) == {}
    assert differences(dict.fromkeys(ALL, IGNORED), "closing", 1) == {}
    for kind in (2, 3, 4, 8):
        for number in (0, 1):
            assert answer("closing", raw(kind, number, b"x")) == IGNORED


@pytest.mark.parametrize("state", ["starting", "tuning", "opening", "running"])
def test_4_2_6_channel_0_has_no_content(state: str) -> None:
    refusal = closes(505, "UNEXPECTED_FRAME - content frame on channel 0")
    assert answer(state, content_header(0, 0)) == refusal
    assert answer(state, raw(3, 0, b"x")) == refusal


@pytest.mark.parametrize("state", [name for name in STATES if name != "closing"])
def test_4_2_7_heartbeats_are_on_channel_0_in_any_state(state: str) -> None:
    assert answer(state, raw(8, 0)) == IGNORED
    for number in (1, 7):
        assert answer(state, raw(8, number)) == closes(
            505, "UNEXPECTED_FRAME - type 8, all octets = <<>>"
        )


@pytest.mark.parametrize("state", [name for name in STATES if name != "closing"])
def test_4_2_3_frames_of_other_types_are_501_in_any_state(state: str) -> None:
    for kind in (0, 4, 7, 9, 255):
        for number in (0, 1):
            assert answer(state, raw(kind, number)) == closes(
                501, f"FRAME_ERROR - unknown frame type {kind}"
            )


# Other channels


@pytest.mark.parametrize("state", ["starting", "tuning", "opening"])
def test_2_2_4_there_are_no_channels_before_the_connection_is_open(state: str) -> None:
    """RabbitMQ ends such a connection without a word, or by 505."""
    refusal = closes(504, "CHANNEL_ERROR - frame on channel 1 before the connection is open")
    assert differences(dict.fromkeys(ALL, refusal), state, 1) == {}
    assert answer(state, content_header(0)) == refusal
    assert answer(state, raw(3, 1, b"x")) == refusal


def test_2_2_5_a_channel_begins_with_open() -> None:
    answers = refused(504, "CHANNEL_ERROR - expected 'channel.open'")
    answers["Channel.Open"] = cut("Channel.Open")
    # The client may have closed it in the same moment as we did.
    answers["Channel.CloseOk"] = IGNORED
    assert differences(answers, "running", 7) == {}
    assert answer("running", frame.marshal(Channel.Open(), 7)) == (open_ok(7), False)
    refusal = closes(505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead")
    assert answer("running", content_header(0, 7)) == refusal
    assert answer("running", raw(3, 7, b"x")) == refusal


#: What a client may say on an open channel, and the answers.
CONVERSATION: dict[Frame, Answer] = {
    Channel.Close(200, "", 0, 0): says(Channel.CloseOk()),
    Channel.Flow(True): says(Channel.FlowOk(True)),
    Exchange.Declare(exchange="x"): says(Exchange.DeclareOk()),
    Exchange.Delete(exchange="x"): says(Exchange.DeleteOk()),
    Exchange.Bind(destination="amq.fanout", source="amq.direct"): says(Exchange.BindOk()),
    Exchange.Unbind(destination="amq.fanout", source="amq.direct"): says(Exchange.UnbindOk()),
    Queue.Declare(queue="q"): says(Queue.DeclareOk("q", 0, 0)),
    Queue.Bind(queue="q", exchange="amq.direct"): says(Queue.BindOk()),
    Queue.Unbind(queue="q", exchange="amq.direct"): says(Queue.UnbindOk()),
    Queue.Purge(queue="q"): says(Queue.PurgeOk(0)),
    Queue.Delete(queue="q"): says(Queue.DeleteOk(0)),
    Basic.Qos(0, 1): says(Basic.QosOk()),
    Basic.Consume(queue="q", consumer_tag="c"): says(Basic.ConsumeOk("c")),
    Basic.Cancel("c"): says(Basic.CancelOk("c")),
    Basic.Publish(exchange="", routing_key="q"): IGNORED,
    Basic.Get(queue="q"): says(Basic.GetEmpty()),
    Basic.Ack(0, True): IGNORED,
    Basic.Nack(0, True): IGNORED,
    Basic.Reject(1): closes_channel(406, "PRECONDITION_FAILED - unknown delivery tag 1", 3932250),
    Basic.Recover(True): says(Basic.RecoverOk()),
    Confirm.Select(): says(Confirm.SelectOk()),
    Tx.Select(): says(Tx.SelectOk()),
    Tx.Commit(): closes_channel(
        406, "PRECONDITION_FAILED - channel is not transactional", 5898260
    ),
    Tx.Rollback(): closes_channel(
        406, "PRECONDITION_FAILED - channel is not transactional", 5898270
    ),
}  # fmt: skip

#: Those of them that have no arguments, so that nothing is missed.
BARE = ["Tx.Select", "Tx.Commit", "Tx.Rollback"]
#: Its arguments are looked at when the content comes.
PUBLISH = "Basic.Publish"
RECOVER_ASYNC = "Basic.RecoverAsync"


def test_an_open_channel_takes_what_a_client_says() -> None:
    given = {method.name: answer("running", frame.marshal(method, 1)) for method in CONVERSATION}
    assert given == {method.name: expected for method, expected in CONVERSATION.items()}
    # The library does not make it any more.
    recover = raw(1, 1, struct.pack(">IB", METHODS[RECOVER_ASYNC], 1))
    assert answer("running", recover) == IGNORED


def test_an_open_channel_refuses_everything_else() -> None:
    answers = refused(503, "COMMAND_INVALID - unimplemented method")
    for name in UNKNOWN | dict.fromkeys(NOT_OF_THE_DIALECT, 0):
        answers[name] = unknown(name)
    answers["Channel.Open"] = closes(
        504, "CHANNEL_ERROR - second 'channel.open' seen", METHODS["Channel.Open"]
    )
    answers[RECOVER_ASYNC] = cut(RECOVER_ASYNC)
    for method, expected in CONVERSATION.items():
        answers[method.name] = expected if method.name in BARE else cut(method.name)
    assert differences(answers, "running", 1) == {}
    refusal = closes(505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead")
    assert answer("running", content_header(0)) == refusal
    assert answer("running", raw(3, 1, b"x")) == refusal


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("header", "expected content header for class 60, got non content header frame instead"),
        ("body", "expected content body, got non content body frame instead"),
    ],
)
def test_4_2_6_content_is_not_interrupted(state: str, text: str) -> None:
    """But channel.close may come, which ends content, and channel.open is an error of its own.

    RabbitMQ refuses both like other methods.
    """
    refusal = closes(505, f"UNEXPECTED_FRAME - {text}", METHODS[PUBLISH])
    answers = dict.fromkeys(ALL, refusal)
    answers["Channel.Close"] = cut("Channel.Close")
    answers["Channel.Open"] = closes(
        504, "CHANNEL_ERROR - second 'channel.open' seen", METHODS["Channel.Open"]
    )
    assert differences(answers, state, 1) == {}
    closed = frame.marshal(Channel.Close(200, "", 0, 0), 1)
    assert answer(state, closed) == says(Channel.CloseOk())
    out_of_order = content_header(2) if state == "body" else raw(3, 1, b"x")
    assert answer(state, out_of_order) == refusal


def test_4_2_6_content_is_a_header_and_then_bodies() -> None:
    get = frame.marshal(Basic.Get(queue="q", no_ack=True), 1)
    for state, rest, payload in (
        ("header", content_header(0), b""),
        ("header", content_header(1) + raw(3, 1, b"a"), b"a"),
        ("body", raw(3, 1, b"ab"), b"ab"),
        ("body", raw(3, 1, b"a") + raw(3, 1) + raw(3, 1, b"b"), b"ab"),
    ):
        given, is_closed = answer(state, rest, get)
        expected = frame.marshal(Basic.GetOk(1, False, "", "q", 0), 1) + content_header(
            len(payload)
        )
        assert given == expected + (raw(3, 1, payload) if payload else b"")
        assert not is_closed


def test_2_2_5_after_channel_close_was_sent_only_its_answer_and_another_close_count() -> None:
    """RabbitMQ refuses channel.open and stray content then."""
    answers = dict.fromkeys(ALL, IGNORED)
    answers["Channel.Close"] = cut("Channel.Close")
    assert differences(answers, "channel closing", 1) == {}
    assert answer("channel closing", publish_frames("q")) == IGNORED
    assert answer("channel closing", content_header(1)) == IGNORED
    assert answer("channel closing", raw(3, 1, b"x")) == IGNORED
    again = frame.marshal(Channel.Open(), 1)
    close = frame.marshal(Channel.Close(200, "", 0, 0), 1)
    close_ok = frame.marshal(Channel.CloseOk(), 1)
    closed = frame.marshal(Channel.CloseOk(), 1)
    assert answer("channel closing", close_ok, again) == (open_ok(1), False)
    assert answer("channel closing", close, again) == (closed + open_ok(1), False)
    assert answer("channel closing", close, close_ok, again) == (closed + open_ok(1), False)
