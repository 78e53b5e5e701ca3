"""The adapter: what the broker loads for the protocol name ``amqp``."""

from __future__ import annotations

from trivium.messages.message import PROTOCOL_AMQP, register_codec
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import Adapter, Connection, Peer, Transport
from trivium.runtime.broker import Broker
from trivium_amqp import arguments
from trivium_amqp.codec.properties import BasicPropertyCodec
from trivium_amqp.connection import AmqpConnection

register_codec(PROTOCOL_AMQP, BasicPropertyCodec())
arguments.register()


class AmqpAdapter(Adapter):
    """AMQP 0-9-1 in RabbitMQ's dialect."""

    def __init__(self) -> None:
        self.name = "amqp"
        self.metrics = ProtocolMetrics()
        self._broker: Broker | None = None

    def start(self, broker: Broker) -> None:
        """This protocol has no durable state of its own."""
        self._broker = broker

    def connect(self, transport: Transport, peer: Peer) -> Connection:
        assert self._broker is not None
        return AmqpConnection(self.metrics, self._broker, transport, peer)
