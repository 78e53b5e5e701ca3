"""The storage bench: every engine makes what it counts durable."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bench import storage
from bench.servers import COMPILED, REPOSITORY, ServerError
from bench.storage import StorageRow, measure_storage, storage_table
from bench.storage_worker import PEERS


@pytest.mark.parametrize("engine", ["trivium", "recovery", "raw", "sqlite", "rocksdb", "bare"])
def test_an_engine_reports_messages_batches_and_seconds(engine: str, tmp_path: Path) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    command = ["-m", "bench.storage_worker", engine, "--directory", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *command, "--seconds", "0.2", "--batch", "10"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["messages"] > 0
    assert found["batches"] > 0
    if engine == "sqlite":
        with sqlite3.connect(tmp_path / "messages.db") as database:
            (count,) = database.execute("SELECT count(*) FROM messages").fetchone()
        assert count == found["messages"]


def test_goals_and_ratios_are_shown() -> None:
    rows = [
        StorageRow("trivium", 64, [200_000.0], [1000.0]),
        StorageRow("raw", 64, [1e6], [1000.0]),
    ]
    table = storage_table(rows)
    assert "300,000 missed" in table
    assert "0.20" in table


def test_the_peers_sync_as_many_messages_at_once_as_trivium_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, int, int]] = []
    pauses = {"longest": 0.0, "bare": 0.0}
    synced = {64: iter((4000, 4600)), 4096: iter((70, 80))}

    def run(engine: str, size: int, seconds: float, batch: int, _: str) -> dict[str, float]:
        asked.append((engine, size, batch))
        count = next(synced[size]) if engine == "trivium" else max(batch, 1)
        return {"messages": count * 10, "batches": 10, "seconds": seconds, **pauses}

    monkeypatch.setattr(storage, "_run", run)
    rows = measure_storage([64, 4096], 2, 1.0)
    for peer in PEERS:
        found = [(size, batch) for engine, size, batch in asked if engine == peer]
        assert found == [(64, 4000), (4096, 70), (64, 4600), (4096, 80)]
    shown = {line.split()[0]: line for line in storage_table(rows[: len(rows) // 2]).splitlines()}
    assert all(" 4,300 " in shown[engine] for engine in ("trivium", *PEERS))


def test_without_trivium_there_is_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(engine: str, *_: object) -> dict[str, float]:
        raise ServerError(f"{engine} failed")

    monkeypatch.setattr(storage, "_run", run)
    rows = {row.engine: row for row in measure_storage([64], 1, 1.0)}
    assert "not known" in rows["sqlite"].error
    assert "failed: trivium failed" in storage_table(list(rows.values()))


def test_columns_stay_apart() -> None:
    rows = [
        StorageRow("recovery", 64, [2_030_000.0], [12_345_678.0], [0.0]),
        StorageRow("pauses", 64, [882_000.0], [16_000.0], [0.0179], [0.0012]),
    ]
    met = ["20", "ms", "met"]
    recovery, pauses = (line.split() for line in storage_table(rows).splitlines()[1:])
    assert recovery == ["recovery", "64", "2,030,000", "130", "500,000", "met"]
    assert pauses == ["pauses", "64", "882,000", "56", "16,000", "0.00", "17.9", "1.2", *met]


@pytest.mark.parametrize(
    ("pauses", "bare", "verdict"),
    [
        ([0.012, 0.019], [0.001, 0.02], "20 ms met"),
        ([0.012, 0.021], [0.001, 0.02], "20 ms missed"),
        ([0.012, 0.029], [0.001, 0.0285], "20 ms met, 1 of 2 left out"),
        ([0.021, 0.029], [0.001, 0.0285], "20 ms missed, 1 of 2 left out"),
        ([0.012, 0.029], [0.030, 0.0285], "20 ms not shown: the machine stood still"),
    ],
)
def test_a_run_says_nothing_in_which_the_machine_stood_still(
    pauses: list[float], bare: list[float], verdict: str
) -> None:
    row = StorageRow("pauses", 64, [1.0, 1.0], [1.0, 1.0], pauses, bare)
    assert storage_table([row]).endswith(f"  {verdict}")


def test_ours_run_with_each_build_and_the_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def run(engine: str, size: int, seconds: float, batch: int, path: str) -> dict[str, float]:
        asked.append((engine, path))
        return {"messages": 10, "batches": 1, "seconds": 1.0, "longest": 0.0, "bare": 0.0}

    monkeypatch.setattr(storage, "_run", run)
    rows = measure_storage([64], 1, 1.0, ["trivium", "trivium@/base", "trivium-interpreted"])
    for engine in ("trivium", "pauses", "recovery"):
        paths = [path for name, path in asked if name == engine]
        assert paths == [str(COMPILED), "/base", ""]
    assert [engine for engine, _ in asked if engine in PEERS] == list(PEERS)
    assert [row.engine for row in rows if "recovery" in row.engine] == [
        "recovery",
        "recovery@/base",
        "recovery-interpreted",
    ]
    with pytest.raises(ServerError, match="only Trivium's storage"):
        measure_storage([64], 1, 1.0, ["mosquitto"])
