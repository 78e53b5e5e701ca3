"""Backlogs and starts are measured on a real server, and what is wrong there is seen."""

from __future__ import annotations

import pytest

from bench import restart
from bench.backlog import KINDS, BacklogResult, measure_backlog
from bench.restart import measure_restart


@pytest.mark.parametrize("kind", KINDS)
def test_a_backlog_comes_back_once_and_in_order(kind: str) -> None:
    result = measure_backlog("trivium-interpreted", kind, 3000, 256)
    assert (result.lost, result.duplicated, result.is_in_order) == (0, 0, True)
    assert min(result.start_rate, result.end_rate, result.drain_rate) > 0
    assert result.resident_bytes > 1_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"end_rate": 69.0},
        {"drain_rate": 49.0},
        {"resident_bytes": 400_000_001},
        {"lost": 1},
        {"duplicated": 1},
        {"is_in_order": False},
    ],
)
def test_a_goal_that_is_missed_is_said(wrong: dict[str, float | bool]) -> None:
    good = {
        "start_rate": 100.0,
        "end_rate": 70.0,
        "publish_rate": 100.0,
        "drain_rate": 50.0,
        "resident_bytes": 400_000_000,
        "lost": 0,
        "duplicated": 0,
        "is_in_order": True,
    }
    names = {"server": "s", "kind": "queue", "messages": 10, "payload": 256}
    assert str(BacklogResult(**names, **good)).endswith(": met")  # type: ignore[arg-type]
    assert str(BacklogResult(**names, **good | wrong)).endswith(": missed")  # type: ignore[arg-type]


def test_a_start_finds_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "_FILLER", 1000)
    result = measure_restart("trivium-interpreted", 20, 30)
    assert (result.count, result.retained) == (20, 30)
    assert result.clean_seconds > 0
    assert result.killed_seconds > 0
    assert result.clean_cpu > 0
    assert result.killed_cpu > 0
