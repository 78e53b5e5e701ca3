from __future__ import annotations

import pytest

from tests.support.amqp import Client, Clock, Server


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The broker's clocks, which stand still until they are moved."""
    clock = Clock()
    monkeypatch.setattr("time.time_ns", clock.time_ns)
    monkeypatch.setattr("time.monotonic_ns", clock.monotonic_ns)
    return clock


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server) -> Client:
    """A client with an open channel 1."""
    return server.open()
