"""MQTT as bytes: packets, properties, topics and reason codes; nothing here acts or keeps state."""
