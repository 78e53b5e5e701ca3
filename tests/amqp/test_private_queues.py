"""The state of other protocols' sessions is in queues, and none of an AMQP client's business."""

from __future__ import annotations

import pytest
from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Queue

from tests.support.amqp import Client, Server
from tests.support.core import message
from trivium.queues.queue import Queue as CoreQueue

NAME = "amq.mqtt-session.device"


def private(server: Server) -> CoreQueue:
    queue = server.vhost.declare_queue(NAME, durable=True, adapter="mqtt")
    queue.put(message(b"secret"), b"")
    return queue


@pytest.mark.parametrize(
    "method",
    [
        Basic.Consume(queue=NAME),
        Basic.Get(queue=NAME),
        Queue.Purge(queue=NAME),
        Queue.Delete(queue=NAME),
        Queue.Bind(queue=NAME, exchange="amq.topic", routing_key="#"),
        Queue.Unbind(queue=NAME, exchange="amq.topic", routing_key="#"),
        Queue.Declare(queue=NAME, durable=True),
        Queue.Declare(queue=NAME, passive=True),
    ],
    ids=lambda method: method.name,
)
def test_a_session_of_another_protocol_is_out_of_reach(server: Server, method: Frame) -> None:
    queue = private(server)
    received = server.open().ask(method)
    assert isinstance(received, Channel.Close), received
    assert received.reply_code == 403
    assert "is private" in (received.reply_text or "")
    assert (len(queue), len(queue.consumers)) == (1, 0)


def test_nothing_is_published_into_a_session(server: Server, client: Client) -> None:
    queue = private(server)
    client.publish(NAME, b"forged", mandatory=True)
    assert client.take()[0].reply_code == 312
    assert len(queue) == 1
