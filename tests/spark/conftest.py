"""One Spark session for all tests, and a broker for each."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import trivium_spark
from interop.brokers import TriviumProcess
from trivium_native.sync import SyncClient, connect


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    if shutil.which("java") is None:
        pytest.skip("no Java runtime")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2, 4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        # Workers start slowly on a busy machine.
        .config("spark.python.authenticate.socketTimeout", "300s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(trivium_spark.TriviumDataSource)
    yield session
    session.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TriviumProcess]:
    process = TriviumProcess(tmp_path, restartable=True, protocols=("native",))
    process.start()
    yield process
    if process.is_running:
        process.kill()


@pytest.fixture
def client(broker: TriviumProcess) -> Iterator[SyncClient]:
    with connect(broker.url) as connected:
        yield connected
