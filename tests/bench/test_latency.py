"""Confirms of one message at a time, beside what no broker can do without."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import native_frames, runner
from bench.endpoints import PeerError
from bench.latency import KINDS, LatencyRow, NativeExchange, latency_table, measure_latency
from tests.support.endpoints import ADDRESS, native_server_end


@pytest.fixture(autouse=True)
def _results_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RESULTS", tmp_path)


def test_every_kind_of_confirm_is_timed_beside_the_disk_and_a_round_trip() -> None:
    rows = measure_latency(["trivium-interpreted"], KINDS, 150, 64)
    assert [(row.server, row.kind) for row in rows] == [
        ("", "write + fdatasync"),
        ("", "round trip"),
        ("", "both by a bare loop"),
        *(("trivium-interpreted", kind) for kind in KINDS),
    ]
    assert all(len(row.seconds) == 150 and min(row.seconds) > 0 for row in rows)


@pytest.mark.parametrize(("confirm", "verdict"), [(119.0, "1.2 met"), (121.0, "1.2 missed")])
def test_the_goal_is_a_multiple_of_the_disk_and_a_round_trip(confirm: float, verdict: str) -> None:
    bare = [LatencyRow("", "write + fdatasync", [90.0]), LatencyRow("", "round trip", [10.0])]
    bare.append(LatencyRow("", "both by a bare loop", [110.0]))
    rows = [*bare, LatencyRow("trivium", "amqp", [confirm]), LatencyRow("trivium", "mqtt", [50.0])]
    lines = latency_table(rows).splitlines()
    assert lines[3].endswith("1.10")
    assert lines[4].endswith(verdict)
    assert lines[5].endswith("0.50")


def test_another_answer_than_the_confirm_is_an_error() -> None:
    ok = native_frames.request(native_frames.OK, 1)
    wrong = native_frames.frame(native_frames.CONFIRM, 2, (1).to_bytes(4, "little"))
    with native_server_end(ok + wrong):
        exchange = NativeExchange(ADDRESS, 64)
        with pytest.raises(PeerError, match="not the confirm of message 1"):
            exchange.run(range(1, 2))
