import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from bench.endpoints import Address
from bench.mqtt_clients import open_session
from bench.servers import STARTS, Mosquitto, RabbitMq, Relay, Server, ServerError, Trivium


def is_running(pid: int) -> bool:
    """Tell whether a process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Family(Server):
    """A process with a child that ignores requests to end."""

    name = "family"

    def _launch(self) -> None:
        pids = self.directory / "pids"
        script = f"trap '' TERM; sh -c 'echo $$; exec sleep 600' >{pids} & trap - TERM; wait"
        self._spawn(["sh", "-c", script])
        while not pids.exists() or not pids.read_text().endswith("\n"):
            assert self._processes[0].poll() is None
        self.child = int(pids.read_text())


def test_a_server_is_ended_with_its_children_and_its_files(tmp_path: Path) -> None:
    server = Family(tmp_path)
    server.start()
    assert is_running(server.child)
    assert server.resident_bytes() > 0
    server.stop()
    assert not is_running(server.child)
    assert list(tmp_path.iterdir()) == []


class Unlucky(RabbitMq):
    """One whose port is taken by the time that it listens, the first few times."""

    def __init__(self, directory: Path, times: int, why: str) -> None:
        super().__init__(directory)
        self.left = times
        self.why = why

    def _launch(self) -> None:
        if self.left:
            self.left -= 1
            raise ServerError(f"ended with 0: {self.why}")


def test_a_server_whose_port_was_taken_meanwhile_is_started_again(tmp_path: Path) -> None:
    taken = "could_not_start_listener,127.0.0.1,46493"
    server = Unlucky(tmp_path / "a", STARTS - 1, taken)
    server.start()
    assert server.left == 0
    for times, why in ((STARTS, taken), (1, "bad configuration")):
        unlucky = Unlucky(tmp_path / why[:3], times, why)
        with pytest.raises(ServerError, match=why[:3]):
            unlucky.start()
        assert unlucky.left == 0


def test_processes_of_others_are_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        server = Family(tmp_path)
        server.start()
        server.stop()
        assert is_running(other.pid)
        other.kill()


def test_a_started_server_serves_and_a_stopped_one_does_not(tmp_path: Path) -> None:
    server = Relay(tmp_path)
    server.start()
    address = server.addresses["mqtt"]
    try:
        open_session(address, "client").close()
        assert server.cpu_seconds() >= 0
        assert server.resident_bytes() > 2**20
    finally:
        server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address[:2])


def test_a_server_keeps_to_its_cores(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    server = Family(tmp_path, frozenset({core}))
    server.start()
    try:
        assert os.sched_getaffinity(server.process_id) == {core}
    finally:
        server.stop()


def test_a_server_that_ends_at_start_shows_its_last_words(tmp_path: Path) -> None:
    class Failing(Server):
        name = "failing"

        def _launch(self) -> None:
            process = self._spawn(["sh", "-c", "echo no such option >&2; exit 3"])
            process.wait()
            self._wait_for(process, Address("127.0.0.1", 1))

    with pytest.raises(ServerError, match=r"failing: ended with 3 at start \| no such option"):
        Failing(tmp_path).start()
    assert list(tmp_path.iterdir()) == []


def test_a_peer_that_is_not_installed_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(ServerError, match="mosquitto is not installed; on Debian: apt-get"):
        Mosquitto(tmp_path).start()


def test_a_missing_compiled_build_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.servers.COMPILED", tmp_path / "nothing")
    with pytest.raises(ServerError, match=r"no compiled Trivium \(./dev build makes it\)"):
        Trivium(tmp_path).start()


@pytest.mark.skipif(shutil.which("mosquitto", path="/usr/sbin:/usr/bin") is None, reason="no peer")
def test_mosquitto_is_started_on_a_port_of_its_own(tmp_path: Path) -> None:
    server = Mosquitto(tmp_path)
    server.start()
    try:
        open_session(server.addresses["mqtt"], "client").close()
        assert server.version()[0].isdigit()
    finally:
        server.stop()
