"""The adapter: what the broker loads for the protocol name ``amqp``."""

from __future__ import annotations

from dataclasses import replace

from trivium.messages.message import PROTOCOL_AMQP, register_codec
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import Adapter, Connection, Peer, Transport, WebSocketTerms
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
        # amqp-client.js offers none.
        self.websocket = WebSocketTerms("/amqp", ("amqp",), must_offer=False)
        self._broker: Broker | None = None
        self._most = 0

    def start(self, broker: Broker) -> None:
        """This protocol has no durable state of its own."""
        self._broker = broker
        self._most = broker.config.limits.max_message_bytes
        self._options = self._bounded(self._options)

    def connect(self, transport: Transport, peer: Peer) -> Connection:
        assert self._broker is not None
        options = self._options
        own = peer.listener.config.options
        if own is not None:
            assert isinstance(own, AmqpOptions)
            options = self._bounded(own)
        return AmqpConnection(self.metrics, options, self._broker, transport, peer)

    def _bounded(self, options: AmqpOptions) -> AmqpOptions:
        """``options`` with the largest message that clients may send."""
        most = self._most
        return replace(options, max_message_bytes=min(options.max_message_bytes or most, most))
