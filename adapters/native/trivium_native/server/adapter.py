"""The broker's side of the native protocol, as an adapter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trivium.messages.message import PROTOCOL_NATIVE, register_codec
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import Adapter, Connection, Peer, Transport
from trivium.runtime.broker import Broker
from trivium.streams.filtered_reads import FilteredReads
from trivium.vhost.virtual_host import VirtualHost
from trivium_native.server.connection import NativeConnection
from trivium_native.server.deliveries import LiveFrames
from trivium_native.server.options import NativeOptions
from trivium_native.server.parts import Parts
from trivium_native.wire.properties import NativeCodec


class NativeAdapter(Adapter):
    """Native clients. Of its own it keeps the parts that they stage, beyond their connections."""

    def __init__(self, options: NativeOptions | None = None) -> None:
        self.name = "native"
        self._options = NativeOptions() if options is None else options
        self.metrics = ProtocolMetrics()
        self._broker: Broker | None = None
        self._most = 0
        self._live_frames = LiveFrames(self.metrics)
        self._parts: dict[str, Parts] = {}
        self._filtered_reads: FilteredReads | None = None
        register_codec(PROTOCOL_NATIVE, NativeCodec())

    def start(self, broker: Broker) -> None:
        self._broker = broker
        self._filtered_reads = FilteredReads(broker)
        self._most = broker.config.limits.max_message_bytes
        self._options = self._bounded(self._options)
        for vhost in broker.vhosts.values():
            self.parts_of(vhost)

    def parts_of(self, vhost: VirtualHost) -> Parts:
        """The parts of a virtual host."""
        assert self._broker is not None
        found = self._parts.get(vhost.name)
        if found is None:
            found = Parts(self._broker, vhost, self.metrics)
            self._parts[vhost.name] = found
        return found

    def forget_vhost(self, vhost: VirtualHost) -> Iterable[int]:
        # After a start it is made of what the storage has.
        parts = self.parts_of(vhost)
        yield from parts.forget_all()
        del self._parts[vhost.name]

    def connect(self, transport: Transport, peer: Peer) -> Connection:
        assert self._broker is not None
        assert self._filtered_reads is not None
        self.metrics.connections_opened += 1
        options = self._options
        own = peer.listener.config.options
        if own is not None:
            assert isinstance(own, NativeOptions)
            options = self._bounded(own)
        return NativeConnection(
            self._broker,
            transport,
            peer,
            self.metrics,
            options,
            self._live_frames,
            self.parts_of,
            self._filtered_reads,
        )

    def _bounded(self, options: NativeOptions) -> NativeOptions:
        """``options`` with the largest payload that clients may send."""
        most = self._most
        return replace(options, max_message_bytes=min(options.max_message_bytes or most, most))

    def tick(self, now: float) -> None:
        self._live_frames.forget()
