"""`trivium stream read` against a broker on loopback; what it writes is read by other readers."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.live import TIMEOUT, running
from trivium.cli import main
from trivium.messages.message import Properties
from trivium_native import connect
from trivium_native.client import Client
from trivium_native.values import Publication

PARTITIONS = 2


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Of a broker whose stream ``s`` has ten records in each partition."""
    async with asyncio.timeout(TIMEOUT), running() as found, connect(found) as client:
        await client.declare_stream("s", PARTITIONS)
        await client.declare_stream("empty")
        for number in range(10):
            await put(client, number)
        yield found


async def put(client: Client, number: int) -> None:
    """A record into each partition."""
    for partition in range(PARTITIONS):
        properties = Properties(key=b"k", headers=[("raw", b"\xff")], partition=partition)
        message = Publication(
            payload=b"%d,%d" % (partition, number),
            exchange="",
            routing_key="s",
            properties=properties,
        )
        await client.publish_batch([message])


async def read(url: str, stream: str, *options: str) -> int:
    return await asyncio.to_thread(main, ["stream", "read", url, stream, *options])


def values(partition: int, numbers: range) -> list[str]:
    return [f"{partition},{number}" for number in numbers]


ALL = values(0, range(10)) + values(1, range(10))


async def test_json_has_an_object_per_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await read(url, "s") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(row["value"] for row in rows) == ALL
    row = next(row for row in rows if row["value"] == "1,3")
    assert (row["key"], row["partition"], row["offset"], row["stream"]) == ("k", 1, 3, "s")
    assert row["headers"] == [{"key": "raw", "value": {"base64": "/w=="}}]


async def test_a_filter_leaves_other_topics_out(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with connect(url) as client:
        await client.bind("stream", "s", pattern="#")
        for topic in ("a.b", "a.c", "d"):
            await client.publish(topic.encode(), routing_key=topic)
    assert await read(url, "s", "--filter", "a/+", "--format", "csv", "--columns", "value") == 0
    assert sorted(capsys.readouterr().out.split()) == ["a.b", "a.c", "value"]
    assert await read(url, "s", "--filter", "#/a") == 2
    assert "no topic filter" in capsys.readouterr().err


async def test_csv_is_what_other_readers_read(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await read(url, "s", "--format", "csv", "--columns", "offset,value,headers") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert sorted(row["value"] for row in rows) == ALL
    assert json.loads(rows[0]["headers"])[0] == {"key": "raw", "value": {"base64": "/w=="}}


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
async def test_files_are_what_arrow_reads(url: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "found"
    assert await read(url, "s", "--format", kind, "--output", str(path)) == 0
    table = pq.read_table(path) if kind == "parquet" else pa.ipc.open_stream(path).read_all()
    assert sorted(value.decode() for value in table.column("value").to_pylist()) == ALL
    assert set(table.column("partition").to_pylist()) == {0, 1}


@pytest.mark.parametrize("kind", ["json", "csv", "arrow", "parquet"])
async def test_an_empty_stream_is_an_empty_file(url: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "found"
    options = ["--format", kind, "--output", str(path), "--columns", "offset,value"]
    assert await read(url, "empty", *options) == 0
    if kind in ("json", "csv"):
        assert path.read_text() == ("offset,value\n" if kind == "csv" else "")
        return
    table = pq.read_table(path) if kind == "parquet" else pa.ipc.open_stream(path).read_all()
    assert (table.num_rows, table.column_names) == (0, ["offset", "value"])


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--partition", "1"], values(1, range(10))),
        (["--partition", "1", "--from", "7"], values(1, range(7, 10))),
        (["--partition", "0", "--count", "3"], values(0, range(3))),
        (["--partition", "0", "--count", "0"], []),
        (["--from", "8"], values(0, range(8, 10)) + values(1, range(8, 10))),
        (["--from", "next"], []),
        (["--from", "99"], []),
    ],
)
async def test_some_of_it_is_read(
    url: str, options: list[str], found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await read(url, "s", *options, "--columns", "value") == 0
    rows = [json.loads(line)["value"] for line in capsys.readouterr().out.splitlines()]
    assert sorted(rows) == found


async def test_it_waits_for_more(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--follow", "--from", "next", "--count", "4", "--columns", "value"]
    reading = asyncio.create_task(read(url, "s", *options))
    async with connect(url) as client:
        number = 10
        while not reading.done():
            await put(client, number)
            number += 1
            await asyncio.wait([reading], timeout=0.05)
    assert await reading == 0
    rows = [json.loads(line)["value"] for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 4
    assert all(int(row.split(",")[1]) >= 10 for row in rows)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["nothing"], 1, "no stream 'nothing'"),
        (["s", "--partition", "2"], 1, "stream 's' has no partition 2"),
        (["s", "--columns", "payload"], 2, "column 'payload' is not one of key, value"),
        (["s", "--from", "middle"], 2, "--from 'middle' is not an offset, first or next"),
        (["s", "--output", "/nowhere/file"], 1, "/nowhere/file: No such file or directory"),
    ],
)
async def test_what_cannot_be_read_is_said_in_one_line(
    url: str, options: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await read(url, *options) == code
    error = capsys.readouterr().err
    assert error.startswith("trivium stream read: ")
    assert text in error
    assert error.count("\n") == 1


async def test_files_are_no_terminals(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert await read(url, "s", "--format", "parquet") == 2
