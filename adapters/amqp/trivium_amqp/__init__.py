"""AMQP 0-9-1 for Trivium, in RabbitMQ's dialect.

``codec`` says what bytes mean and ``states`` which frames may come when. ``connection`` reads
frames, ``repeated`` recognises the usual ones unread, ``handshake`` opens the connection;
``publisher`` publishes and confirms, ``channel`` acknowledges, ``basic`` and ``topology`` hold the
other methods, ``consumer`` makes deliveries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium_amqp.entry import AmqpAdapter
    from trivium_amqp.options import AmqpOptions

__all__ = ["adapter"]


def adapter(options: AmqpOptions | None = None) -> AmqpAdapter:
    """A new adapter; the entry point ``amqp`` of the group ``trivium.adapters``."""
    # Imported here, so that `trivium pub` and `sub` do not load the server side.
    from trivium_amqp.entry import AmqpAdapter

    return AmqpAdapter(options)
