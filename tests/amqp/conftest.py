from __future__ import annotations

import pytest

from tests.support.amqp import Client, Server


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server) -> Client:
    """A client with an open channel 1."""
    return server.open()
