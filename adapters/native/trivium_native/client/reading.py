"""`trivium://` for `trivium stream read`, by the project's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from trivium.cli.clients import ClientError, Server, UsageError
from trivium.cli.reading import Reading
from trivium.common.client_tls import TlsError
from trivium_native.client import client as native
from trivium_native.client.command import parse_offset, target_of
from trivium_native.wire.errors import InvalidArgument, NativeError, NotFound

#: Seconds for which a fetch waits for more, and so does each of the partitions in turn.
FOLLOW_WAIT: Final = 0.25


async def read(server: Server, reading: Reading) -> AsyncIterator[Any]:
    """The records as batches of Arrow: an empty one first, which shows the columns.

    Raises UsageError, ClientError.
    """
    offset = parse_offset(reading.offset)
    try:
        async with native.connect(target_of(server), reconnect=reading.follows) as client:
            async for batch in _read(client, reading, offset):
                yield batch
    except (TlsError, InvalidArgument, ImportError) as error:
        raise UsageError(str(error)) from None
    except NativeError as error:
        raise ClientError(error.text) from None


async def _read(client: native.Client, reading: Reading, offset: int | str) -> AsyncIterator[Any]:
    (info,) = await client.metadata([reading.stream])
    partitions = range(len(info.partitions))
    if reading.partition is not None:
        if reading.partition not in partitions:
            raise NotFound(f"stream {reading.stream!r} has no partition {reading.partition}")
        partitions = range(reading.partition, reading.partition + 1)
    ends = {number: info.partitions[number].high_watermark for number in partitions}
    places = dict(ends)
    if offset != "next":
        least = offset if isinstance(offset, int) else 0
        places = {number: max(info.partitions[number].first_offset, least) for number in partitions}
    columns = reading.columns
    wanted = reading.topic_filter
    found = await client.fetch_arrow(
        reading.stream, partitions[0], "next", columns=columns, topic_filter=wanted
    )
    yield found.replace_schema_metadata(None)
    wait = FOLLOW_WAIT / len(partitions) if reading.follows else 0.0
    while reading.follows or any(places[number] < ends[number] for number in partitions):
        for number in partitions:
            if reading.follows or places[number] < ends[number]:
                found = await client.fetch_arrow(
                    reading.stream,
                    number,
                    places[number],
                    columns=columns,
                    incarnation=info.incarnation,
                    max_wait=wait,
                    topic_filter=wanted,
                )
                places[number] = int(found.schema.metadata[b"next_offset"])
                if found.num_rows:
                    yield found.replace_schema_metadata(None)
