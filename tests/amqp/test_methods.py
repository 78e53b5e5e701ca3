"""Method arguments, compared with pamqp's codec (AMQP 0-9-1, 4.2.5)."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

from trivium_amqp.codec import methods
from trivium_amqp.codec.errors import ConnectionException

TABLE: dict[str, Any] = {"k": 1}


@pytest.mark.parametrize(
    ("frame", "arguments"),
    [
        (Connection.StartOk(TABLE, "PLAIN", "abc", "en_US"), [TABLE, "PLAIN", b"abc", "en_US"]),
        (Connection.TuneOk(1, 70_000, 3), [1, 70_000, 3]),
        (Connection.Open("/"), ["/", False]),
        (Connection.Close(320, "text", 60, 40), [320, "text", 60, 40]),
        (Connection.UpdateSecret("s", "r"), [b"s", "r"]),
        (Channel.Open(), []),
        (Channel.Flow(True), [True]),
        (
            Exchange.Declare(0, "e", "topic", False, True, False, True, True, TABLE),
            ["e", "topic", False, True, False, True, True, TABLE],
        ),
        (Exchange.Delete(0, "e", True, False), ["e", True, False]),
        (Exchange.Bind(0, "d", "s", "k", True, TABLE), ["d", "s", b"k", True, TABLE]),
        (Exchange.Unbind(0, "d", "s", "k", True, TABLE), ["d", "s", b"k", True, TABLE]),
        (
            Queue.Declare(0, "q", True, False, True, False, True, TABLE),
            ["q", True, False, True, False, True, TABLE],
        ),
        (Queue.Bind(0, "q", "e", "k", True, TABLE), ["q", "e", b"k", True, TABLE]),
        (Queue.Unbind(0, "q", "e", "k", TABLE), ["q", "e", b"k", TABLE]),
        (Queue.Purge(0, "q", True), ["q", True]),
        (Queue.Delete(0, "q", False, True, False), ["q", False, True, False]),
        (Basic.Qos(5, 6, True), [5, 6, True]),
        (
            Basic.Consume(0, "q", "c", True, False, True, False, TABLE),
            ["q", "c", True, False, True, False, TABLE],
        ),
        (Basic.Cancel("c", True), ["c", True]),
        (Basic.Publish(0, "e", "k", True, False), ["e", b"k", True, False]),
        (Basic.Get(0, "q", True), ["q", True]),
        (Basic.Ack(2**62, True), [2**62, True]),
        (Basic.Reject(7, False), [7, False]),
        (Basic.Nack(7, True, False), [7, True, False]),
        (Basic.Recover(True), [True]),
        (Confirm.Select(True), [True]),
        (Tx.Commit(), []),
    ],
)
def test_client_methods_are_read(frame: Frame, arguments: list[object]) -> None:
    data = frame.marshal()
    assert methods.decode(frame.index, data, 0, len(data)) == arguments


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        (methods.CONNECTION_TUNE, (1, 2, 3), Connection.Tune(1, 2, 3)),
        (methods.CHANNEL_CLOSE, (404, "x", 50, 10), Channel.Close(404, "x", 50, 10)),
        (methods.QUEUE_DECLARE_OK, ("q", 5, 6), Queue.DeclareOk("q", 5, 6)),
        (methods.BASIC_CONSUME_OK, ("c",), Basic.ConsumeOk("c")),
        (
            methods.BASIC_RETURN,
            (312, "NO_ROUTE", "e", b"k"),
            Basic.Return(312, "NO_ROUTE", "e", "k"),
        ),
        (methods.BASIC_GET_OK, (9, True, "e", b"k", 4), Basic.GetOk(9, True, "e", "k", 4)),
        (methods.BASIC_DELIVER, ("c", 9, True, "e", b"k"), Basic.Deliver("c", 9, True, "e", "k")),
        (methods.BASIC_CANCEL, ("c", True), Basic.Cancel("c", True)),
        (methods.CONNECTION_BLOCKED, ("low",), Connection.Blocked("low")),
        (methods.CHANNEL_FLOW_OK, (True,), Channel.FlowOk(True)),
    ],
)
def test_server_methods_are_written(
    method: int, arguments: tuple[object, ...], expected: Frame
) -> None:
    data = methods.encode(method, *arguments)
    assert int.from_bytes(data[:4], "big") == expected.index
    found = commands.INDEX_MAPPING[method]()
    found.unmarshal(data[4:])
    assert dict(found) == dict(expected)


@pytest.mark.parametrize("size", range(12))
def test_arguments_that_end_early_are_malformed(size: int) -> None:
    data = Basic.Publish(0, "ex", "key", True, False).marshal()
    assert len(data) == 10
    if size == len(data):
        return
    padded = data + b"\x00\x00"
    with pytest.raises(ConnectionException) as caught:
        methods.decode(methods.BASIC_PUBLISH, padded, 0, size)
    assert caught.value.code == 502
