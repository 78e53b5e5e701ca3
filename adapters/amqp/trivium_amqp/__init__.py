"""AMQP 0-9-1 for Trivium, in RabbitMQ's dialect.

``frames``, ``methods``, ``tables`` and ``properties`` are the encoding; ``connection`` reads
frames, ``handshake`` opens the connection, ``channel`` publishes and acknowledges, ``basic`` and
``topology`` hold the other methods, ``consumer`` makes deliveries.
"""

from __future__ import annotations

from trivium_amqp.entry import AmqpAdapter

__all__ = ["adapter"]


def adapter() -> AmqpAdapter:
    """A new adapter; the entry point of ``trivium.adapters``."""
    return AmqpAdapter()
