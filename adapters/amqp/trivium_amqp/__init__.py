"""AMQP 0-9-1 for Trivium, in RabbitMQ's dialect.

``frames``, ``methods``, ``tables`` and ``properties`` are the encoding; ``connection`` reads
frames, ``handshake`` opens the connection, ``channel`` publishes and acknowledges, ``basic`` and
``topology`` hold the other methods, ``consumer`` makes deliveries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium_amqp.entry import AmqpAdapter

__all__ = ["adapter"]


def adapter() -> AmqpAdapter:
    """A new adapter; the entry point ``amqp`` of the group ``trivium.adapters``."""
    # Imported here, so that `trivium pub` and `sub` do not load the server side.
    from trivium_amqp.entry import AmqpAdapter

    return AmqpAdapter()
