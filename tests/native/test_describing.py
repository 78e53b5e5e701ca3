"""What operators see of native connections and subscriptions, and how they close one."""

from __future__ import annotations

import msgpack

from tests.support.native import Server
from trivium.common.descriptions import ConnectionDescription, ConsumerDescription
from trivium.config import Config, Listen
from trivium_native.wire import frames

CONFIG = Config(listen={"native": Listen(0)})


def test_a_connection_says_who_it_is_and_what_it_reads() -> None:
    server = Server(None, CONFIG)
    client = server.connect()
    assert client.connection.managed().describe().state == "starting"
    client.open(heartbeat=9)
    server.vhost.declare_queue("q")
    server.vhost.declare_stream("s")
    client.ask(frames.SUBSCRIBE, subscription=1, mode="queue", queue="q", credit=1)
    client.ask(
        frames.SUBSCRIBE, subscription=2, mode="log", stream="s", partition=0, offset=0, credit=1
    )
    client.ask(frames.SUBSCRIBE, subscription=3, mode="pubsub", exchange="amq.topic", pattern=b"#")
    most = server.config.limits.max_message_bytes + frames.FRAME_OVERHEAD
    assert client.connection.managed().describe() == ConnectionDescription(
        protocol="trivium 1", state="running", max_frame=most, timeout=9
    )
    of_queue = ConsumerDescription(
        tag="1", queue="q", connection=client.connection, channel=0, acknowledges=True, limit=0
    )
    of_stream = ConsumerDescription(
        tag="2", queue="s", connection=client.connection, channel=0, acknowledges=False, limit=0
    )
    assert client.connection.managed().consumers() == [of_queue, of_stream]
    (consumer,) = server.vhost.queues["q"].consumers.all()
    assert consumer.describe() == of_queue


def test_an_operator_closes_it_with_an_error_of_its_own() -> None:
    server = Server(None, CONFIG)
    client = server.open()
    client.connection.managed().close("too busy")
    server.settle()
    ((kind, _, body),) = client.take()
    assert (kind, msgpack.unpackb(body)) == (frames.CLOSE, [405, "too busy"])
    assert client.is_closed
    assert client.connection.managed().describe().state == "closing"
