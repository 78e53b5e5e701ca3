"""Trivium: a message broker with one durable core, whatever the protocol at its door.

To embed it: ``async with Broker(Config(...)) as broker:``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium.config import Config, Listen
    from trivium.runtime.broker import Broker

__all__ = ["Broker", "Config", "Listen", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Imported on first use, so that `import trivium` costs nothing to who needs only a client.
    if name == "Broker":
        from trivium.runtime.broker import Broker

        return Broker
    if name in ("Config", "Listen"):
        from trivium import config

        return getattr(config, name)
    raise AttributeError(f"module 'trivium' has no attribute {name!r}")
