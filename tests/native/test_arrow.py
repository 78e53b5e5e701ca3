"""Streams as Arrow's record batches, against a broker on loopback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from tests.support.live import TIMEOUT, running
from trivium.messages.message import Properties
from trivium_native import connect, errors
from trivium_native.arrow import COLUMNS, TYPES
from trivium_native.client import Client
from trivium_native.values import Publication


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """With stream ``s``, which has 0 to 9 in two batches."""
    async with running() as url, connect(url) as found:
        await found.declare_stream("s")
        await found.bind("stream", "s", pattern="#")
        for numbers in (range(4), range(4, 10)):
            await found.publish_batch([message(number) for number in numbers])
        yield found


def message(number: int) -> Publication:
    properties = Properties(key=b"k%d" % number, content_type="text/plain")
    return Publication(payload=b"%d" % number, routing_key="a.b", properties=properties)


async def test_columns_are_those_of_the_records(client: Client) -> None:
    batch = await client.fetch_arrow("s", 0, 0)
    assert tuple(batch.schema.names) == COLUMNS
    fetched = await client.fetch("s", 0, 0)
    records = [record for stored in fetched.batches for record in stored.records()]
    rows = batch.to_pylist()
    assert len(rows) == len(records) == 10
    for row, record in zip(rows, records, strict=True):
        assert (row["offset"], row["value"], row["key"]) == (
            record.offset,
            record.payload,
            record.key,
        )
        assert row["timestamp"].timestamp() * 1000 == pytest.approx(record.timestamp)
        assert (row["topic"], row["stream"], row["partition"]) == ("a/b", "s", 0)
        assert (row["content_type"], row["protocol"]) == ("text/plain", "native")


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        (0, range(10)),
        (3, range(3, 10)),
        (10, range(0)),
        ("first", range(10)),
        ("last", range(9, 10)),
        ("next", range(0)),
    ],
)
async def test_it_begins_at_the_offset(client: Client, offset: int | str, found: range) -> None:
    batch = await client.fetch_arrow("s", 0, offset, columns=["offset", "value"])
    assert batch.column("offset").to_pylist() == list(found)
    assert batch.column("value").to_pylist() == [b"%d" % number for number in found]
    assert batch.schema.metadata == {b"next_offset": b"10", b"high_watermark": b"10"}


@pytest.mark.parametrize(("offset", "found"), [("next", range(10, 12)), ("last", range(9, 12))])
async def test_it_begins_there_too_where_records_came_while_it_waited(
    client: Client, offset: str, found: range
) -> None:
    # More than the newest batch has.
    asking = client.fetch_arrow("s", 0, offset, min_bytes=5000, max_wait=TIMEOUT)
    waiting = asyncio.create_task(asking)
    # Its answer shows that the fetch is with the broker.
    await client.metadata()
    long = Publication(payload=bytes(9000), routing_key="a.b")
    await client.publish_batch([message(10), long])
    batch = await waiting
    assert batch.column("offset").to_pylist() == list(found)
    assert batch.schema.metadata == {b"next_offset": b"12", b"high_watermark": b"12"}


async def test_a_fetch_of_the_newest_record_has_no_older_one(client: Client) -> None:
    (batch,) = (await client.fetch("s", 0, "last")).batches
    assert (batch.base_offset, batch.start) == (4, 9)
    assert [record.payload for record in batch.records()] == [b"9"]


async def test_all_columns_come_by_name_in_the_order_asked_for(client: Client) -> None:
    names = sorted(TYPES)
    batch = await client.fetch_arrow("s", 0, 8, columns=names)
    assert batch.schema.names == names
    assert [batch.schema.field(name).type for name in names] == [TYPES[name] for name in names]
    assert batch.column("routing_key").to_pylist() == [b"a.b", b"a.b"]
    with pytest.raises(errors.InvalidArgument, match="column 'payload' is not one of key, value"):
        await client.fetch_arrow("s", 0, 0, columns=["payload"])


async def test_it_raises_what_fetch_raises(client: Client) -> None:
    with pytest.raises(errors.OffsetOutOfRange):
        await client.fetch_arrow("s", 0, 11)
    with pytest.raises(errors.NotFound):
        await client.fetch_arrow("t", 0, 0)


def test_without_pyarrow_it_says_what_to_install() -> None:
    program = """
import sys
sys.modules["pyarrow"] = None
from trivium_native.sync import SyncClient
try:
    SyncClient.__new__(SyncClient).fetch_arrow("s", 0, 0)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'trivium[arrow]'" in done.stdout
