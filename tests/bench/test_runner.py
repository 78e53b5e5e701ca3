import json
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import environment, runner
from bench.__main__ import main
from bench.doors import PLAIN
from bench.idle import measure_idle
from bench.runner import Settings, make_server, server_cores, server_kind
from bench.scenarios import DEFAULT, SCENARIOS
from bench.servers import REPOSITORY, Relay, ServerError, Trivium


class Absent(Relay):
    """A server that is never there."""

    name = "mosquitto"

    def _launch(self) -> None:
        raise ServerError("mosquitto is not installed")


@pytest.fixture(autouse=True)
def _results_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    monkeypatch.setattr("bench.__main__.RESULTS", tmp_path)
    monkeypatch.setattr(environment, "MEMORY_FILE_SYSTEMS", frozenset())


SHORT = ["--seconds", "0.05", "--latency-seconds", "0.05", "--repetitions", "2"]


def test_a_run_prints_a_table_and_writes_its_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    chosen = ["--server", "relay", "--scenario", "mqtt-qos0-1to1"]
    assert main([*chosen, *SHORT, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    (row,) = document["results"]
    assert (row["scenario"], row["server"], len(row["rates"])) == ("mqtt-qos0-1to1", "relay", 2)
    assert row["median_rate"] == statistics.median(row["rates"]) > 0
    assert row["lost"] == row["duplicated"] == 0
    assert row["latency_seconds"] == {}  # a relay has no delay worth knowing
    assert document["settings"]["repetitions"] == 2
    assert f"{row['median_rate']:,.0f}" in capsys.readouterr().out
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


def test_a_broker_is_paced_for_its_latency(tmp_path: Path) -> None:
    class Broker(Relay):
        name = "mosquitto"
        is_broker = True

    path = tmp_path / "out.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(runner.SERVERS, "mosquitto", Broker)
        chosen = ["--server", "mosquitto", "--scenario", "mqtt-qos2-1to1"]
        assert main([*chosen, *SHORT, "--rate", "100", "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["results"]
    assert row["latency_rate"] == 100
    assert list(row["latency_seconds"]) == ["p50", "p90", "p99", "p99.9", "max"]
    delays = list(row["latency_seconds"].values())
    assert delays == sorted(delays)


def test_a_server_that_is_missing_fails_its_row_and_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(runner.SERVERS, "mosquitto", Absent)
    chosen = ["--server", "mosquitto", "--server", "relay", "--scenario", "mqtt-qos1-1to1"]
    assert main([*chosen, *SHORT]) == 1
    out = capsys.readouterr().out
    assert "mosquitto            failed: mosquitto is not installed" in out
    assert "\nrelay " in out


def test_figures_are_not_taken_on_a_memory_file_system(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(
        environment, "MEMORY_FILE_SYSTEMS", frozenset({environment.file_system(tmp_path)})
    )
    assert main(["--server", "relay", *SHORT]) == 2
    assert "nothing there is ever synced" in capsys.readouterr().err


def test_each_scenario_meets_its_own_peer() -> None:
    settings = Settings(servers=())
    mqtt = settings.servers_for(SCENARIOS["mqtt-qos0-1to1"])
    assert mqtt == ["mosquitto", "trivium", "trivium-interpreted", "relay"]
    assert settings.servers_for(SCENARIOS["amqp-confirmed-1q"])[0] == "rabbitmq"
    crossing = settings.servers_for(SCENARIOS["mqtt-to-amqp"])
    assert crossing == ["rabbitmq", "trivium", "trivium-interpreted"]
    tls = settings.servers_for(SCENARIOS["amqp-tls-confirmed-1q"])
    assert tls == ["rabbitmq", "trivium", "trivium-interpreted"], "the relay has no doors"
    assert settings.servers_for(SCENARIOS["mqtt-ws-qos0-1to1"])[0] == "mosquitto"
    chosen = replace(settings, servers=("mosquitto", "relay"))
    assert chosen.servers_for(SCENARIOS["amqp-confirmed-1q"]) == ["relay"]


def test_what_is_measured_by_default() -> None:
    assert DEFAULT[-1] == "amqp-confirmed-4q-ack1"
    quick = {name for name, scenario in SCENARIOS.items() if scenario.quick}
    assert quick < set(DEFAULT)
    assert {SCENARIOS[name].protocols for name in quick} == {
        frozenset({"mqtt"}),
        frozenset({"amqp"}),
    }


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_pinning_separates_servers_from_the_load_and_ends() -> None:
    before = os.sched_getaffinity(0)
    with server_cores(pin=True) as cores:
        assert cores
        assert os.sched_getaffinity(0) == before - cores
    assert os.sched_getaffinity(0) == before
    with server_cores(pin=False) as cores:
        assert cores is None


def test_idle_connections_are_held_and_counted() -> None:
    result = measure_idle("relay", 20)
    assert result.connections == 20
    # The relay keeps a receive buffer of 256 KiB for each connection.
    assert 200_000 < result.bytes_per_connection < 400_000
    assert "(20 plain, " in str(result)


def test_a_build_of_another_checkout_is_a_server(tmp_path: Path) -> None:
    assert server_kind("trivium@/some/where") is Trivium
    made = make_server("trivium@/some/where", tmp_path, None, on_disk=False)
    assert made.environment["PYTHONPATH"] == "/some/where"
    for wrong in ("nothing", "nothing@/some/where", "mosquitto@/some/where"):
        with pytest.raises(ServerError, match=f"no server {wrong}"):
            server_kind(wrong)


def test_two_servers_of_one_name_are_measured_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Build(Relay):
        """A stand-in that needs no compiled build."""

        name = "trivium"
        is_broker = True

        def __init__(
            self, directory: Path, cores: frozenset[int] | None = None, door: str = PLAIN
        ) -> None:
            super().__init__(directory, cores, door)
            directories.append(self.directory)

    directories: list[Path] = []
    monkeypatch.setitem(runner.SERVERS, "trivium", Build)
    path = tmp_path / "out.json"
    chosen = ["--server", "trivium", "--server", "trivium@base", "--scenario", "mqtt-qos1-1to1"]
    assert main([*chosen, *SHORT, "--json", str(path)]) == 0
    assert len(set(directories)) == 2
    ours, base = json.loads(path.read_text())["results"]
    assert (ours["server"], base["server"]) == ("trivium", "trivium@base")
    assert ours["ratio"] == ours["median_rate"] / base["median_rate"]
    assert base["ratio"] is None


def test_an_unknown_server_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--server", "nothing"])
    with pytest.raises(SystemExit):
        main(["idle", "--server", "relay"])
    error = capsys.readouterr().err
    assert "no server nothing; there are mosquitto" in error
    assert "relay is no broker" in error


def test_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name} " in out for name in SCENARIOS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_ends_its_servers(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "bench", "--server", "relay", "--scenario", "mqtt-qos0-1to1"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    # A shell starts what runs in the background with interrupts ignored.
    with subprocess.Popen(
        [*command, "--seconds", "60"],
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        while "run 1" not in process.stderr.readline():
            assert process.poll() is None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 1
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert not Path(f"/proc/{children[0]}").exists()
