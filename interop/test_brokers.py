"""What the tests start brokers with."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from interop import brokers
from interop.brokers import LOOPBACK, BrokerError, release, reserve_restart_ports


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """Three ports, which are the whole range from then on."""
    found = reserve_restart_ports(3)
    monkeypatch.setattr(brokers, "RESTART_PORTS", [probe.getsockname()[1] for probe in found])
    yield found
    release(found)


def test_reserved_ports_are_not_reserved_again(reserved: list[socket.socket]) -> None:
    assert len({probe.getsockname()[1] for probe in reserved}) == 3
    with pytest.raises(BrokerError, match="no free ports"):
        reserve_restart_ports(1)


def test_released_ports_are_reserved_again(reserved: list[socket.socket]) -> None:
    port = reserved[0].getsockname()
    release(reserved[:1])
    (again,) = reserve_restart_ports(1)
    with again:
        assert again.getsockname() == port


def test_broker_listens_at_a_reserved_port_again_and_again(
    reserved: list[socket.socket],
) -> None:
    port = reserved[0].getsockname()[1]
    for _ in range(2):
        with (
            socket.create_server((LOOPBACK, port)) as listener,
            socket.create_connection((LOOPBACK, port)),
        ):
            listener.accept()[0].close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port))
