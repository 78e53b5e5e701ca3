"""The programs that write tables, as they are, in the session of all tests."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from examples.tables import devices, fleet

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_devices_to_parquet(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices.main(spark, tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "cellar: 3 readings, 21.0 degrees on average",
        "kitchen: 3 readings, 21.0 degrees on average",
    ]
    files = [path for path in (tmp_path / "readings").rglob("*.parquet") if path.is_file()]
    assert {path.parent.name for path in files} == {"device=cellar", "device=kitchen"}
    found = [celsius for path in files for celsius in pq.ParquetFile(path).read()["celsius"]]
    assert sorted(celsius.as_py() for celsius in found) == [20.5, 20.5, 21.0, 21.0, 21.5, 21.5]


def test_a_fleet_to_a_delta_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A batch that is repeated after it was written is there once."""
    fleet.main(spark, tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "died, with 6 readings in the table",
        "version 0: 6 readings",
        "version 1: 7 readings",
    ]
    table = DeltaTable(tmp_path / "readings").to_pyarrow_table(columns=["device", "celsius"])
    assert sorted((row["device"], row["celsius"]) for row in table.to_pylist()) == [
        *((f"sensor-{number}", celsius) for number in range(3) for celsius in (20.5, 21.0)),
        ("sensor-3", 19.5),
    ]
