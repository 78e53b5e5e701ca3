"""The broker's side of the native protocol, as an adapter."""

from __future__ import annotations

from trivium.adapter import Adapter, Connection, Peer, Transport
from trivium.broker import Broker
from trivium.message import PROTOCOL_NATIVE, register_codec
from trivium.metrics import ProtocolMetrics
from trivium_native.connection import NativeConnection
from trivium_native.deliveries import LiveFrames
from trivium_native.properties import NativeCodec


class NativeAdapter(Adapter):
    """Native clients. It keeps no state of its own beyond their connections."""

    def __init__(self) -> None:
        self.name = "native"
        self.metrics = ProtocolMetrics()
        self._broker: Broker | None = None
        self._live_frames = LiveFrames(self.metrics)
        register_codec(PROTOCOL_NATIVE, NativeCodec())

    def start(self, broker: Broker) -> None:
        self._broker = broker

    def connect(self, transport: Transport, peer: Peer) -> Connection:
        assert self._broker is not None
        self.metrics.connections_opened += 1
        return NativeConnection(self._broker, transport, peer, self.metrics, self._live_frames)

    def tick(self, now: float) -> None:
        self._live_frames.forget()
