"""A broker under systemd says when it is ready, that it lives, and that it stops (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import serve
from trivium.cli.service import ServiceManager

PORTS = ["--memory", "--mqtt", "0", "--amqp", "off", "--native", "off", "--http", "off"]


class Manager:
    """The end of the socket that systemd has."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(30)
        self.socket.bind(address)

    def told(self) -> list[str]:
        return self.socket.recv(4096).decode().split("\n")


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Manager, str]]:
    name = str(tmp_path / "notify")
    abstract = request.param == "abstract"
    manager = Manager("\0" + name if abstract else name)
    yield manager, "@" + name if abstract else name
    manager.socket.close()


def test_it_is_told_once_clients_can_connect_and_when_the_broker_stops(
    manager: tuple[Manager, str],
) -> None:
    systemd, name = manager
    with serve(*PORTS, NOTIFY_SOCKET=name) as (process, line):
        assert systemd.told() == ["READY=1", f"STATUS={line.strip()}"]
        host, _, port = line.split("mqtt=")[1].split()[0].rpartition(":")
        socket.create_connection((host, int(port)), timeout=30).close()
        process.send_signal(signal.SIGTERM)
        assert systemd.told() == ["STOPPING=1"]
        assert process.wait(30) == 0


def test_it_hears_that_the_loop_turns_as_long_as_it_does(tmp_path: Path) -> None:
    systemd = Manager(str(tmp_path / "notify"))
    name = str(tmp_path / "notify")
    broker = serve(*PORTS, NOTIFY_SOCKET=name, WATCHDOG_USEC="20000")
    with broker as (process, _), systemd.socket:
        assert systemd.told()[0] == "READY=1"
        assert [systemd.told() for _ in range(3)] == [["WATCHDOG=1"]] * 3
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        systemd.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                systemd.told()
        process.send_signal(signal.SIGCONT)
        systemd.socket.settimeout(30)
        assert systemd.told() == ["WATCHDOG=1"]


@pytest.mark.parametrize(
    "settings", [{"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}, {}]
)
async def test_whom_the_watchdog_does_not_watch_says_nothing_to_it(
    settings: dict[str, str], tmp_path: Path
) -> None:
    systemd = Manager(str(tmp_path / "notify"))
    with systemd.socket:
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify"), **settings})
        manager.ready("here")
        manager.stopping()
        assert [systemd.told()[0] for _ in range(2)] == ["READY=1", "STOPPING=1"]


def test_a_manager_that_is_gone_does_not_stop_the_broker(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with serve(*PORTS, NOTIFY_SOCKET=str(gone)) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "the service manager cannot be told READY=1" in errors
