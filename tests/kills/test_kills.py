"""Rounds of kills: a few here, more by ``TRIVIUM_KILLS_ROUNDS`` or ``python -m tests.kills``."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.kills.__main__ import run_road
from tests.kills.rounds import GroupRoad, SparkRoad, Wrong, check, kinds

SEED = int(os.environ.get("TRIVIUM_CRASH_SEED", "1"))


def rounds(least: int) -> int:
    return int(os.environ.get("TRIVIUM_KILLS_ROUNDS", least))


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_a_group_transforms_each_record_once(tmp_path: Path) -> None:
    """Real processes that are killed: one of each kind takes some seconds."""
    count = rounds(len(GroupRoad.targets))
    report = run_road("transform", count, SEED, tmp_path, is_compiled=False)
    assert report.kills.total() == count
    assert report.numbers > 0


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("road", ["parquet", "copy"])
def test_spark_writes_each_record_once(road: str, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java runtime")
    count = rounds(len(SparkRoad.targets))
    report = run_road(road, count, SEED, tmp_path, is_compiled=False)
    assert report.kills.total() == count
    assert report.numbers > 0


def test_all_kinds_are_killed_as_often() -> None:
    found = Counter(kinds(SparkRoad.targets, 80, random.Random(1)))
    assert found == {"broker": 20, "driver": 20, "executor": 20, "worker": 20}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([0, 1, 3], "1 are missing ([2]"),
        ([0, 1, 2, 2, 3], "1 are there more than once ([2]"),
        ([0, 1, 2, 3, 4], "1 are not known"),
    ],
)
def test_what_is_wrong_is_told(found: list[int], says: str) -> None:
    check(np.array([3, 1, 0, 2]), 4)
    with pytest.raises(Wrong) as told:
        check(np.array(found), 4)
    assert says in str(told.value)
