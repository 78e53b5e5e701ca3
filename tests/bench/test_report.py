import json
from pathlib import Path

import numpy as np
import pytest

from bench.environment import Environment
from bench.load import RunResult
from bench.report import Row, goal, ratio, table, write_json
from bench.scenarios import SCENARIOS
from bench.verify import Tally

SCENARIO = SCENARIOS["mqtt-qos0-1to1"]
MACHINE = Environment("a processor", 2, "6.1", "3.11.7", 0.5, "ext2/ext3", 150.0)


def result(rate: float = 0.0, tally: Tally | None = None, delays: int = 0) -> RunResult:
    """Return a run at ``rate``, or with the delays 1, 2, .. ``delays`` ms."""
    return RunResult(
        seconds=2.0,
        sent=0,
        delivered=0,
        rate=rate,
        generator_cpu=0.5,
        server_cpu=0.9,
        total_sent=100,
        total_delivered=100,
        refused=0,
        unconfirmed=0,
        tally=tally or Tally(0, 0, 0),
        delays=np.arange(1, delays + 1) / 1000,
    )


def row(server: str, *rates: float) -> Row:
    made = Row(SCENARIO.name, server, "1.0")
    for rate in rates:
        made.add_rate(result(rate))
    return made


def test_the_median_repetition_counts() -> None:
    assert row("trivium", 10, 1000, 20).median_rate == 20
    assert row("trivium").median_rate == 0


def test_the_ratio_is_of_medians_within_the_scenario() -> None:
    peer, compiled = row("mosquitto", 100, 90, 900), row("trivium", 850, 800, 10)
    relay = row("relay", 5000)
    elsewhere = row("mosquitto", 1)
    elsewhere.scenario = "mqtt-qos1-1to1"
    rows = [peer, compiled, relay, elsewhere]
    assert ratio(compiled, rows) == 8
    assert ratio(peer, rows) is None
    assert ratio(relay, rows) is None
    assert ratio(compiled, [compiled]) is None
    assert ratio(row("trivium"), rows) is None


def test_without_a_peer_another_build_is_what_ours_is_compared_with() -> None:
    ours, base, peer = row("trivium", 30), row("trivium@/base", 20), row("mosquitto", 10)
    assert ratio(ours, [ours, base]) == 1.5
    assert ratio(base, [ours, base]) is None
    assert (ratio(ours, [ours, base, peer]), ratio(base, [ours, base, peer])) == (3, 2)
    assert "MISSED" not in table([ours, base], list(SCENARIOS.values()))


def test_goals_are_for_each_build_of_trivium() -> None:
    assert goal(row("trivium"), SCENARIO) == 8
    assert goal(row("trivium-interpreted"), SCENARIO) == 2
    assert goal(row("mosquitto"), SCENARIO) is None
    assert goal(row("trivium"), SCENARIOS["mqtt-qos0-1000c"]) is None


def test_percentiles_are_of_the_paced_run() -> None:
    made = row("trivium", 1)
    made.add_latency(result(delays=1001), 5000)
    assert made.latency_rate == 5000
    expected = {"p50": 0.501, "p90": 0.901, "p99": 0.991, "p99.9": 1.0, "max": 1.001}
    assert made.latency_seconds == pytest.approx(expected)


def test_losses_of_all_runs_add_up() -> None:
    made = row("trivium", 1)
    assert made.is_clean
    made.add_rate(result(1, Tally(2, 3, 0)))
    made.add_latency(result(tally=Tally(1, 0, 4)), 5000)
    assert (made.lost, made.duplicated, made.unexpected) == (3, 3, 4)
    assert (made.sent, made.delivered) == (300, 300)
    assert not made.is_clean


@pytest.mark.parametrize("name", ["lost", "duplicated", "unexpected", "refused", "unconfirmed"])
def test_any_wrong_count_is_not_clean(name: str) -> None:
    made = row("trivium", 1)
    setattr(made, name, 1)
    assert not made.is_clean


def test_the_table_shows_rates_ratios_goals_and_failures() -> None:
    missing = Row(SCENARIO.name, "trivium-interpreted", "", error="not installed")
    losing = row("relay", 7)
    losing.lost = 5
    text = table(
        [row("mosquitto", 1000), row("trivium", 7900), missing, losing], list(SCENARIOS.values())
    )
    lines = text.splitlines()
    assert lines[0] == "mqtt-qos0-1to1: MQTT QoS 0, 1 to 1; 64 bytes, in memory"
    assert lines[2].split()[:3] == ["mosquitto", "1.0", "1,000"]
    assert lines[3].split()[2:8] == ["7,900", "7,900", "7,900", "7.90", "8", "MISSED"]
    assert "trivium-interpreted  failed: not installed" in text
    assert "of 100 sent: 5 lost, 0 duplicated" in text
    assert len(lines) == 7


def test_the_json_holds_every_run(tmp_path: Path) -> None:
    rows = [row("mosquitto", 1, 2, 6), row("trivium", 20)]
    path = tmp_path / "new" / "results.json"
    write_json(path, rows, [SCENARIO], MACHINE, {"repetitions": 3})
    document = json.loads(path.read_text())
    assert document["environment"]["fdatasync_microseconds"] == 150.0
    assert document["settings"] == {"repetitions": 3}
    assert document["scenarios"]["mqtt-qos0-1to1"]["payload"] == 64
    assert document["results"][0]["rates"] == [1, 2, 6]
    assert document["results"][0]["median_rate"] == 2
    assert document["results"][1]["ratio"] == 10
