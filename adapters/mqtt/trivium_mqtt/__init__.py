"""Trivium's MQTT adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium.runtime.adapter import Adapter

__all__ = ["adapter"]


def adapter() -> Adapter:
    """A new adapter; the entry point ``mqtt`` of the group ``trivium.adapters``."""
    # Imported here, so that `trivium pub` and `sub` do not load the server side.
    from trivium_mqtt.mqtt_adapter import MqttAdapter
    from trivium_mqtt.options import MqttOptions

    return MqttAdapter(MqttOptions())
