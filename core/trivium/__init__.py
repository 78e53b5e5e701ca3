"""Trivium: a message broker with one durable core, whatever the protocol at its door."""
