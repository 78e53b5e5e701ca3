"""Queries of Spark beside the same over memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.spark import Beside, SparkRow, spark_table

ROOT = Path(__file__).parents[2]


def row(name: str, rate: float, beside: tuple[Beside, ...] = (), least: float = 0.0) -> SparkRow:
    found = SparkRow(name, 1000, beside, least)
    found.seconds += [1000 / rate, 500 / rate, 2000 / rate]
    found.cpu += [3000 / rate, 2000 / rate, 4000 / rate]
    return found


def compared(*rows: SparkRow) -> list[str]:
    return list(rows[-1].compared(rows))


def test_a_row_has_medians() -> None:
    one = row("read", 500.0)
    assert one.rate == 500
    assert one.cpu_per_million == pytest.approx(6000)


def test_a_row_is_compared_with_those_that_were_measured() -> None:
    memory = row("memory", 400.0)
    one = row("read", 200.0, (Beside("memory"), Beside("other")))
    assert compared(memory, one) == ["0.50 of memory, by cpu 0.50"]


@pytest.mark.parametrize(("rate", "verdict"), [(200.0, "met"), (199.0, "missed")])
def test_a_goal_is_met_or_missed(rate: float, verdict: str) -> None:
    memory = row("memory", 400.0)
    one = row("read", rate, (Beside("memory", 0.5),), 200.0)
    assert compared(memory, one) == [
        f"{verdict}: 200/s",
        f"0.50 of memory ({verdict}: 0.50), by cpu 0.50",
    ]


def test_the_table_has_the_least_and_the_most() -> None:
    _, line = spark_table([row("read", 500.0)]).split("\n")
    assert line.split()[:4] == ["read", "500", "250", "1,000"]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.pure
@pytest.mark.timeout(600)
def test_all_queries_run() -> None:
    """In a process of its own: there is one session of Spark in each."""
    if shutil.which("java") is None:
        pytest.skip("no Java runtime")
    command = ["spark", "--server", "trivium-interpreted", "--repetitions", "1"]
    command += ["--rows", "4000", "--singles", "40", "--size", "3000"]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line[:24].strip() for line in done.stdout.splitlines()[1:]]
    assert names == [
        "read memory",
        "read",
        "read singles",
        "stream memory 3k",
        "stream 3k",
        "write nowhere",
        "write at least once",
        "write exactly once",
    ]
