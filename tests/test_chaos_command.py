"""`trivium chaos` as a process: brokers that keep their promises, and one that does not."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import COMMAND, run

pytestmark = pytest.mark.crash

FORGETFUL = Path(__file__).parent / "support" / "forgetful_broker.py"
ROADS = [
    *("amqp QoS 1", "mqtt QoS 1", "mqtt QoS 2", "trivium QoS 1", "trivium QoS 2"),
    *("trivium QoS 1 stream", "trivium QoS 2 stream"),
]


def results(*arguments: str, code: int = 0, place: str = "") -> list[dict[str, Any]]:
    result = run("chaos", *arguments, "--seed", "7", "--json", TMPDIR=place)
    assert result.returncode == code, result.stdout + result.stderr
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("experiment", ["kill", "pause", "full", "network"])
def test_the_broker_keeps_its_promises(experiment: str, tmp_path: Path) -> None:
    (found,) = results(experiment, "--rounds", "1", "--rate", "200", place=str(tmp_path))
    assert found["broken"] == []
    assert list(found["roads"]) == ROADS
    assert all(road["acknowledged"] > 0 for road in found["roads"].values())
    assert all(road["lost"] == road["duplicates"] == 0 for road in found["roads"].values())
    assert found["roads"]["mqtt QoS 2"]["uncertain"] == 0
    (disturbance,) = found["disturbances"]
    assert disturbance["recovery_seconds"] >= 0
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_clients_come_by_tls() -> None:
    (found,) = results("network", "--rounds", "1", "--rate", "100", "--tls")
    assert found["broken"] == []
    assert list(found["roads"]) == ROADS


def test_a_broker_that_forgets_what_it_acknowledged_is_found_out() -> None:
    command = shlex.join([sys.executable, str(FORGETFUL)])
    (found,) = results(
        "kill", "--rounds", "1", "--patience", "5", "--broker", command, "--protocol", "amqp",
        code=1,
    )  # fmt: skip
    lost = found["roads"]["amqp QoS 1"]["lost"]
    assert lost > 0
    assert f"amqp QoS 1: {lost} lost" in found["broken"]
    assert found["roads"]["amqp QoS 1"]["gaps"]


def test_a_broker_that_does_not_start_is_one_line() -> None:
    result = run("chaos", "kill", "--broker", f"{sys.executable} -c 'print(1)'")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("trivium chaos: the broker does not start")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [("burn",), ("kill", "--protocol", "smtp")])
def test_what_is_not_known_is_one_line(arguments: tuple[str, ...]) -> None:
    result = run("chaos", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    known = "is not one of kill, pause, full, network, amqp, mqtt, trivium\n"
    assert result.stderr == f"trivium chaos: {arguments[-1]!r} {known}"


def test_an_interrupt_ends_it_with_the_report_so_far(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    tell = f'echo >{shlex.quote(str(started))}; exec {shlex.join([*COMMAND, "serve"])} "$@"'
    process = subprocess.Popen(
        [*COMMAND, "chaos", "--rounds", "1000", "--json", "--broker",
         shlex.join(["sh", "-c", tell, "sh"])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    try:
        started.read_text()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    found = json.loads(output)
    assert (process.returncode, errors) == (0, "")
    assert found["is_interrupted"]
    assert found["disturbances"] == found["broken"] == []
    assert list(tmp_path.iterdir()) == [started]
