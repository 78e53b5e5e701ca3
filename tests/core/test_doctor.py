"""`trivium doctor` says what of this machine is not fit for the broker, and what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.commands import COMMAND, run, serve
from trivium.cli.doctor import file_system_of, judged_syncs
from trivium.storage.files.directory import LOCK_FILE

OFF = ["--mqtt", "off", "--amqp", "off", "--native", "off", "--http", "off"]


@dataclass
class Report:
    """What the command found, by subject."""

    code: int
    found: dict[str, dict[str, str]]

    def level(self, subject: str) -> str:
        return self.found[subject]["level"]


def ask(*arguments: str, **environment: str) -> Report:
    done = run("doctor", "--json", *arguments, cwd=None, **environment)
    assert done.stderr == ""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return Report(done.returncode, {line["subject"]: line for line in lines})


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    report = ask("--data", str(tmp_path / "data"), *OFF)
    assert report.level("data") == "ok"
    assert list(tmp_path.iterdir()) == []


def test_each_thing_that_is_not_in_order_comes_with_what_to_do(tmp_path: Path) -> None:
    settings = {"TRIVIUM_LIMITS__MEMORY_HIGH_FRACTION": "0", "TRIVIUM_STORAGE__FSYNC": "never"}
    report = ask("--data", str(tmp_path), *OFF, **settings)
    assert report.level("memory") == report.level("fsync") == "warning"
    for finding in report.found.values():
        assert bool(finding["advice"]) == (finding["level"] != "ok")


def test_errors_are_the_exit_code(tmp_path: Path) -> None:
    assert ask("--memory", *OFF).code == 0
    settings = {"TRIVIUM_LIMITS__DISK_FREE_BYTES": str(1 << 60)}
    report = ask("--data", str(tmp_path), *OFF, **settings)
    assert (report.code, report.level("disk")) == (1, "error")


def test_a_memory_limit_above_what_there_is_is_an_error() -> None:
    report = ask("--memory", *OFF, TRIVIUM_LIMITS__MEMORY_HIGH_BYTES=str(1 << 60))
    assert (report.code, report.level("memory")) == (1, "error")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system in memory")
def test_a_data_directory_in_memory_is_an_error() -> None:
    report = ask("--data", "/dev/shm/trivium-doctor", *OFF)
    assert (report.code, report.level("file system")) == (1, "error")


def test_a_data_directory_below_a_file_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = ask("--data", str(tmp_path / "file" / "data"), *OFF)
    assert (report.code, report.level("data")) == (1, "error")


def test_a_file_that_cannot_be_made_is_an_error() -> None:
    report = ask("--data", "/proc/self/data", *OFF)
    assert report.code == 1
    assert "error" in [
        report.level(subject) for subject in ("data", "sync") if subject in report.found
    ]


def test_what_serve_makes_of_the_configuration_is_made(tmp_path: Path) -> None:
    missing = json.dumps([str(tmp_path / "missing")])
    done = run("doctor", "--memory", *OFF, TRIVIUM_AUTH__PASSWORD_FILES=missing)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "missing" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_broker_that_runs_is_recognised(tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path / "data"), *OFF, "--mqtt"]
    with serve(*arguments, "0") as (_, line):
        port = line.split("mqtt=127.0.0.1:")[1].split()[0]
        report = ask(*arguments, port)
        assert report.found["data"]["found"].endswith("of a broker that runs")
        # What it has itself is no trouble.
        assert (report.code, report.level("mqtt"), report.level("control")) == (0, "ok", "ok")
        assert report.found["mqtt"]["found"].endswith("is taken, by the broker that runs")
        with socket.create_server(("127.0.0.1", 0)) as other:
            report = ask(*arguments, str(other.getsockname()[1]))
        assert (report.code, report.level("mqtt")) == (0, "warning")
    assert (tmp_path / "data" / LOCK_FILE).exists()
    assert ask(*arguments, port).level("mqtt") == "ok"


def test_a_unix_socket_that_is_taken_is_told_from_one_that_is_left_over(tmp_path: Path) -> None:
    place = tmp_path / "mqtt.sock"
    settings = {
        "TRIVIUM_LISTENERS__mqtt__PROTOCOL": "mqtt",
        "TRIVIUM_LISTENERS__mqtt__ADDRESS": f"unix:{place}",
    }
    arguments = ["--memory", *OFF[2:]]
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(place))
        taken.listen()
        assert ask(*arguments, **settings).level("mqtt") == "warning"
    assert ask(*arguments, **settings).level("mqtt") == "ok"
    settings["TRIVIUM_LISTENERS__mqtt__ADDRESS"] = f"unix:{tmp_path}/none/mqtt.sock"
    assert ask(*arguments, **settings).level("mqtt") == "error"


def test_the_control_socket_of_a_data_directory_that_is_yet_to_be_made_is_free(
    tmp_path: Path,
) -> None:
    report = ask("--data", str(tmp_path / "data"), *OFF)
    assert (report.code, report.level("control")) == (0, "ok")


def test_a_control_socket_that_lets_everybody_in_is_told(tmp_path: Path) -> None:
    settings = {"TRIVIUM_CONTROL__MODE": "0666"}
    report = ask("--data", str(tmp_path / "data"), *OFF, **settings)
    assert (report.code, report.level("control")) == (0, "warning")
    assert "is an administrator" in report.found["control"]["found"]


def test_a_path_that_is_too_long_for_a_socket_is_told(tmp_path: Path) -> None:
    place = tmp_path / ("d" * 100)
    report = ask("--data", str(place), *OFF)
    assert (report.code, report.level("control")) == (0, "warning")
    report = ask("--memory", *OFF, TRIVIUM_CONTROL__SOCKET=str(place))
    assert (report.code, report.level("control")) == (1, "error")


def test_an_address_of_another_machine_is_an_error() -> None:
    report = ask("--memory", *OFF[2:], "--mqtt", "192.0.2.1:1883")
    assert report.found["mqtt"]["found"] == "192.0.2.1 port 1883: Cannot assign requested address"
    assert report.code == 1


def test_a_certificate_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    files = ["--tls-certificate", str(tmp_path / "none"), "--tls-key", str(tmp_path / "none")]
    report = ask("--memory", *OFF, "--mqtts", "0", *files)
    assert (report.code, report.level("mqtts")) == (1, "error")


def test_a_wrong_configuration_is_one_line_and_exit_2() -> None:
    done = run("doctor", TRIVIUM_LIMITS__NONE="1")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_for_people_there_are_lines_with_the_advice_below(tmp_path: Path) -> None:
    done = run("doctor", "--data", str(tmp_path), *OFF, TRIVIUM_STORAGE__FSYNC="never")
    lines = done.stdout.splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("warning  fsync"))
    assert lines[at + 1].strip() == '-> set [storage] fsync = "always"'


@pytest.mark.parametrize(
    ("seconds", "level"), [(2e-6, "error"), (100e-6, "ok"), (5e-3, "ok"), (50e-3, "warning")]
)
def test_a_sync_that_no_disk_can_do_is_no_sync(seconds: float, level: str) -> None:
    # One that waits for others says nothing of the disk.
    finding = judged_syncs([seconds] * 99 + [1.0])
    assert finding.level == level
    assert "1000.00 ms" in finding.found


def test_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    inner = tmp_path / "with blank" / "data"
    inner.mkdir(parents=True)
    blank = str(tmp_path / "with blank").replace(" ", "\\040")
    table.write_text(f"a / ext4 rw 0 0\nb {tmp_path} nfs4 rw 0 0\nc {blank} tmpfs rw 0 0\n")
    assert file_system_of(inner, table) == "tmpfs"
    assert file_system_of(tmp_path, table) == "nfs4"
    assert file_system_of(tmp_path.parent, table) == "ext4"
    assert file_system_of(tmp_path, tmp_path / "none") == "unknown"


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        command = [*COMMAND, "doctor", "--memory", *OFF]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
