"""The sensors: paho-mqtt publishes readings at QoS 1."""

from __future__ import annotations

from collections.abc import Sequence

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from examples.weather.readings import Reading

#: seconds in which everything must have been acknowledged
TIMEOUT = 120.0


def replay(port: int, readings: Sequence[Reading]) -> None:
    """Publish; returns once the broker has acknowledged all, and so has them on its disk."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="sensors")
    client.max_inflight_messages_set(500)
    client.connect("127.0.0.1", port)
    client.loop_start()
    sent = [client.publish(reading.topic, reading.payload, qos=1) for reading in readings]
    for message in sent:
        message.wait_for_publish(TIMEOUT)
        if not message.is_published():
            raise SystemExit(f"the broker did not acknowledge message {message.mid}")
    client.disconnect()
    client.loop_stop()
