"""The adapter: what the broker loads for the protocol name ``amqp``."""

from __future__ import annotations

from dataclasses import replace

from trivium.messages.message import PROTOCOL_AMQP, register_codec
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import Adapter, Connection, Peer, Transport
from trivium.runtime.broker import Broker
from trivium_amqp import arguments
from trivium_amqp.codec.properties import BasicPropertyCodec
from trivium_amqp.connection import AmqpConnection
from trivium_amqp.options import AmqpOptions

register_codec(PROTOCOL_AMQP, BasicPropertyCodec())
arguments.register()


class AmqpAdapter(Adapter):
    """AMQP 0-9-1 in RabbitMQ's dialect."""

    def __init__(self, options: AmqpOptions | None = None) -> None:
        self.name = "amqp"
        self._options = AmqpOptions() if options is None else options
        self.metrics = ProtocolMetrics()
        self._broker: Broker | None = None

    def start(self, broker: Broker) -> None:
        """This protocol has no durable state of its own."""
        self._broker = broker
        options = self._options
        most = broker.config.limits.max_message_bytes
        size = min(options.max_message_bytes or most, most)
        self._options = replace(options, max_message_bytes=size)

    def connect(self, transport: Transport, peer: Peer) -> Connection:
        assert self._broker is not None
        return AmqpConnection(self.metrics, self._options, self._broker, transport, peer)
