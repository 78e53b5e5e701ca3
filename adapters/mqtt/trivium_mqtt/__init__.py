"""MQTT 3.1, 3.1.1 and 5.0 for Trivium.

``codec`` says what bytes mean and ``states`` which packets may come when. A connection is a
``reader``, a ``writer`` and what it does between them (``connection``, ``subscribing``);
``incoming`` publishes, ``outgoing`` and ``replay`` deliver, ``sessions`` outlives connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium.runtime.adapter import Adapter
    from trivium_mqtt.options import MqttOptions

__all__ = ["adapter"]


def adapter(options: MqttOptions | None = None) -> Adapter:
    """A new adapter; the entry point ``mqtt`` of the group ``trivium.adapters``."""
    # Imported here, so that `trivium pub` and `sub` do not load the server side.
    from trivium_mqtt.mqtt_adapter import MqttAdapter
    from trivium_mqtt.options import MqttOptions

    return MqttAdapter(MqttOptions() if options is None else options)
