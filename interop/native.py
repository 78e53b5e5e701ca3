"""What the tests share about the native client."""

from __future__ import annotations

from interop.brokers import LOOPBACK
from trivium_native.sync import SyncClient, connect
from trivium_native.values import Record


def native_url(port: int) -> str:
    return f"trivium://{LOOPBACK}:{port}"


def open_client(port: int) -> SyncClient:
    return connect(native_url(port))


def read_all(client: SyncClient, stream: str, partition: int = 0, start: int = 0) -> list[Record]:
    """The records of a partition up to its high watermark."""
    records: list[Record] = []
    offset = start
    while True:
        fetched = client.fetch(stream, partition, offset)
        for batch in fetched.batches:
            for record in batch.records(offset):
                records.append(record)
                offset = record.offset + 1
        if offset >= fetched.high_watermark:
            return records


def await_records(
    client: SyncClient, stream: str, count: int, partition: int = 0, start: int = 0
) -> list[Record]:
    """Wait until a partition has this many records."""
    records: list[Record] = []
    offset = start
    while len(records) < count:
        fetched = client.fetch(stream, partition, offset, max_wait=20)
        assert fetched.batches, f"{len(records)} of {count} records came"
        for batch in fetched.batches:
            for record in batch.records(offset):
                records.append(record)
                offset = record.offset + 1
    return records
