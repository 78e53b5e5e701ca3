"""MQTT as bytes: packets, properties, topics and reason codes.

Nothing here acts. A decoder may remember what it decoded last, to save work, and count what MQTT
cannot carry.
"""
