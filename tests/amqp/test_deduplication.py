"""Deduplication by the header x-deduplication-header, on exchanges and queues."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Confirm, Tx

from tests.support.amqp import Client, Server, names, publish_frames
from tests.support.simulated import Host

ON = {"x-message-deduplication": True}


def repeated(identity: Any, **properties: Any) -> bytes:
    headers = {"x-deduplication-header": identity}
    return publish_frames("q", b"m", headers=headers, **properties)


@pytest.mark.parametrize("identity", ["order-1", 7, bytearray(b"\x00\xff")])
def test_a_repetition_is_confirmed_and_dropped(client: Client, identity: object) -> None:
    client.declare("q", arguments=ON)
    client.call(Confirm.Select())
    client.feed(repeated(identity) * 3)
    (confirm,) = client.take()
    assert (confirm.name, confirm.delivery_tag, confirm.multiple) == ("Basic.Ack", 3, True)
    assert client.counts("q")[0] == 1


@pytest.mark.parametrize("identity", [True, None, 1.5, ["a"], {"a": 1}])
def test_what_is_no_id_is_not_deduplicated(client: Client, identity: object) -> None:
    client.declare("q", arguments=ON)
    client.feed(repeated(identity) * 2)
    assert client.counts("q")[0] == 2


def test_an_exchange_deduplicates(client: Client) -> None:
    client.exchange("x", "topic", arguments=ON)
    client.declare("q")
    client.bind("q", "x", "#")
    for key in ("a", "b"):
        client.publish(key, b"m", "x", headers={"x-deduplication-header": "1"})
    assert client.counts("q")[0] == 1


def test_the_message_id_alone_is_no_id(client: Client) -> None:
    client.declare("q", arguments=ON)
    client.feed(publish_frames("q", b"m", message_id="1") * 2)
    assert client.counts("q")[0] == 2


def test_a_repetition_in_a_transaction_is_dropped(client: Client) -> None:
    client.declare("q", arguments=ON)
    client.call(Tx.Select())
    client.feed(repeated("1") * 2)
    assert names(client.call(Tx.Commit())) == ["Tx.CommitOk"]
    assert client.counts("q")[0] == 1


def test_a_publisher_that_got_no_confirm_sends_again_after_the_crash() -> None:
    server = Server(host=Host())
    client = server.open()
    client.declare("q", durable=True, arguments=ON)
    client.call(Confirm.Select())
    client.feed(repeated("1", delivery_mode=2))
    server.sync()
    server = server.crash()
    client = server.open()
    client.call(Confirm.Select())
    client.feed(repeated("1", delivery_mode=2))
    server.sync()
    assert names(client.take()) == ["Basic.Ack"]
    assert client.counts("q")[0] == 1
