"""Reading into Arrow's record batches; see ``operations``. pyarrow is imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trivium_native.client import operations
from trivium_native.client.operations import Operation
from trivium_native.client.values import Fetched
from trivium_native.wire import frames


def fetch_arrow(
    stream: str,
    partition: int,
    offset: int | str,
    *,
    columns: Sequence[str] | None = None,
    incarnation: str | None = None,
    max_bytes: int | None = None,
    min_bytes: int = 1,
    max_wait: float = 0.0,
    topic_filter: str | None = None,
) -> Operation[Any]:
    """``fetch`` as a ``pyarrow.RecordBatch``: the records from ``offset`` on, by column.

    ``columns`` are names of ``trivium_native.arrow.TYPES``, or those of its ``COLUMNS``. The
    metadata of the schema has ``next_offset``, where to go on, and ``high_watermark``. Raises what
    ``fetch`` does, InvalidArgument, and ImportError without pyarrow (``trivium[arrow]``).
    """
    try:
        from trivium_native.client import arrow
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'trivium[arrow]'") from None
    names = arrow.COLUMNS if columns is None else columns
    arrow.schema_of(names)
    fetching = operations.fetch(
        stream,
        partition,
        offset,
        incarnation=incarnation,
        max_bytes=max_bytes,
        min_bytes=min_bytes,
        max_wait=max_wait,
        topic_filter=topic_filter,
    )

    def parse(body: bytes) -> Any:
        fetched = operations.fetched(body, offset)
        return arrow.to_arrow(fetched, stream, partition, _start(offset, fetched), names)

    return Operation(
        fetching.kind,
        fetching.body,
        frames.FETCHED,
        parse,
        wait=max_wait,
        repeats=True,
        needs=fetching.needs,
    )


def _start(offset: int | str, fetched: Fetched) -> int:
    """The first offset that was asked for; where there is none yet, that of the next record."""
    if fetched.batches:
        return fetched.batches[0].start
    return offset if isinstance(offset, int) else fetched.high_watermark
