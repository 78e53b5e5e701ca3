"""The weather example against pandas on the same files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from vega_datasets import data

from examples.weather.readings import readings

ROOT = Path(__file__).parents[2]
DAYS = 12
ABOVE = 46.0


def expected_means(days: int) -> dict[tuple[str, str], tuple[int, float]]:
    """Readings and mean by city and day, of the days that are over."""
    wanted = {}
    for city, frame in (("sf", data.sf_temps()), ("seattle", data.seattle_temps())):
        times = pd.to_datetime(frame["date"], format="mixed")
        is_used = times < pd.Timestamp("2010-01-01") + pd.Timedelta(days=days)
        days_of = times[is_used].dt.strftime("%Y-%m-%d")
        # The last day stays open: no reading says that it is over.
        for day, temperatures in list(frame["temp"][is_used].groupby(days_of))[:-1]:
            wanted[city, str(day)] = (len(temperatures), float(temperatures.mean()))
    return wanted


def test_readings_are_those_of_the_files() -> None:
    everything = readings()
    assert len(everything) == len(data.sf_temps()) + len(data.seattle_temps())
    assert [r.time for r in everything] == sorted(r.time for r in everything)
    assert sum(r.temperature for r in everything) == pytest.approx(
        data.sf_temps()["temp"].sum() + data.seattle_temps()["temp"].sum()
    )
    assert len(readings(2)) == 2 * 2 * 24
    assert everything[0].topic in ("weather/sf/temperature", "weather/seattle/temperature")


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_table_is_what_pandas_says() -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java runtime")
    example = subprocess.Popen(
        [
            *(sys.executable, "-m", "examples.weather"),
            *("--days", str(DAYS), "--above", str(ABOVE)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        # Spark starts slowly on a busy machine.
        output, errors = example.communicate(timeout=840)
    finally:
        # Its broker too, where it did not come to its end.
        with suppress(ProcessLookupError):
            os.killpg(example.pid, signal.SIGKILL)
    assert example.returncode == 0, errors
    summary, _, _, *lines = output.splitlines()
    shown = {}
    for line in lines:
        city, day, count, mean, *mark = line.split()
        shown[city, day] = (int(count), float(mean), mark == ["*"])
    wanted = expected_means(DAYS)
    assert shown.keys() == wanted.keys()
    assert len(wanted) == 2 * (DAYS - 1)
    for key, (readings_of_day, mean_of_day) in wanted.items():
        assert shown[key][0] == readings_of_day, key
        assert shown[key][1] == pytest.approx(mean_of_day, abs=1e-4), key
        assert shown[key][2] == (mean_of_day > ABOVE), key
    alerts = sum(mean_of_day > ABOVE for _, mean_of_day in wanted.values())
    assert 0 < alerts < len(wanted), "the threshold tells days apart"
    assert summary == (
        f"{2 * 24 * DAYS} readings, {len(wanted)} daily means, {alerts} of them above {ABOVE:g} F"
    )
