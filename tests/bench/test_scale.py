"""Confirms beside a checkpoint of many rows are measured on a real server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import scale
from bench.scale import Phase, ScaleResult, measure_scale

GOOD = Phase("before", 3, 1000.0, 900.0, 0.005, 0.010, 0.020, 0.115, 0.020)
RESULT = ScaleResult(
    server="s",
    retained=10,
    messages=10,
    retained_rate=100.0,
    before=GOOD,
    during=replace(GOOD, name="during", p99=0.030, worst=0.120),
    after=replace(GOOD, name="after"),
    is_finished=True,
    resident_bytes=1,
    killed_seconds=1.0,
    killed_cpu=1.0,
    stopped_seconds=1.0,
    stopped_cpu=1.0,
)


def test_all_phases_are_measured_and_what_was_published_is_there_after_two_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale, "_MOST_ROUNDS", 3)
    result = measure_scale("trivium-interpreted", 3000, 1000)
    for phase in (result.before, result.during, result.after):
        assert phase.rate >= phase.slowest > 0
        assert 0 < phase.p50 <= phase.p99 <= phase.worst
        assert phase.answer > 0
        assert phase.turn <= phase.answer
    assert result.retained_rate > 0
    assert result.resident_bytes > 1_000_000
    assert min(result.killed_seconds, result.stopped_seconds) > 0
    assert min(result.killed_cpu, result.stopped_cpu) > 0


def test_a_checkpoint_that_does_not_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none: 64 MiB would have to go to the journal."""
    monkeypatch.setattr(scale, "_MOST_ROUNDS", 3)
    result = measure_scale("trivium-interpreted", 100, 100)
    assert not result.is_finished
    assert not result.is_met
    assert str(result).endswith("the checkpoint went on for more than 3 rounds")


@pytest.mark.parametrize("wrong", [{"p99": 0.031}, {"worst": 0.121}, {"turn": 0.0201}])
def test_a_goal_that_is_missed_is_said(wrong: dict[str, float]) -> None:
    assert str(RESULT).endswith(": met")
    missed = replace(RESULT, during=replace(RESULT.during, **wrong))  # type: ignore[arg-type]
    assert str(missed).endswith(": missed")
