"""The storage bench: every engine makes what it counts durable."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bench.servers import REPOSITORY
from bench.storage import StorageRow, storage_table


@pytest.mark.parametrize("engine", ["trivium", "recovery", "raw", "sqlite", "rocksdb"])
def test_an_engine_reports_messages_batches_and_seconds(engine: str, tmp_path: Path) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    command = ["-m", "bench.storage_worker", engine, "--directory", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *command, "--seconds", "0.2", "--batch", "10"],
        cwd=REPOSITORY,
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
