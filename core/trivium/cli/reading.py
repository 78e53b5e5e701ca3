"""`trivium stream read`: what a stream has, as rows in one of several formats.

The entry-point group `trivium.readers` maps a URL's scheme to a function that takes a `Server` and
a `Reading` and gives Arrow's record batches, so the core knows no protocol.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import csv
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from io import TextIOWrapper
from typing import Any, BinaryIO, Final, Protocol

from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from trivium.cli.clients import ClientError, Server, UsageError, open_url
from trivium.cli.server_options import add_server

ABOUT: Final = "read the records of a stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is to be read: what is there by now, or without an end."""

    stream: str
    #: None: all
    partition: int | None
    #: an offset, `first` or `next`
    offset: str
    #: None: the usual ones
    columns: list[str] | None
    #: topics, with the wildcards + and #; None: all
    topic_filter: str | None
    follows: bool


Read = Callable[[Server, Reading], AsyncIterator[Any]]


class Writer(Protocol):
    """Writes one format."""

    def write(self, batch: Any) -> None:
        """Write a record batch."""

    def close(self) -> None:
        """Write what stands at the end."""


def add_read(command: argparse.ArgumentParser) -> None:
    """What the verb takes."""
    add_server(command)
    command.add_argument("stream", metavar="STREAM")
    command.add_argument("--format", choices=tuple(WRITERS), default="json", help="default: json")
    command.add_argument(
        "--json", action="store_const", const="json", dest="format", help="what is the default"
    )
    command.add_argument("--output", metavar="FILE", help="default: standard output")
    command.add_argument("--partition", type=_number, metavar="N", help="default: all")
    command.add_argument(
        "--from",
        dest="offset",
        default="first",
        metavar="OFFSET",
        help="an offset, first or next (default: first)",
    )
    command.add_argument("--count", type=_number, metavar="N", help="stop after N records")
    command.add_argument("--columns", metavar="A,B", help="default: the usual ones")
    command.add_argument(
        "--filter",
        dest="topic_filter",
        metavar="FILTER",
        help="only topics that this filter matches, such as sensors/+/temperature",
    )
    command.add_argument("--follow", action="store_true", help="wait for more at the end")


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Read as the options say; the exit code."""
    try:
        server, opened = open_url(options, "trivium.readers")
        read: Read = opened
        asyncio.run(_run(options, read, server))
    except UsageError as error:
        return _fail(EXIT_USAGE, error)
    except ClientError as error:
        return _fail(EXIT_FAILED, error)
    except BrokenPipeError:
        # Who reads has seen enough. Keep the interpreter from flushing what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _fail(EXIT_FAILED, f"{options.output or 'standard output'}: {error.strerror}")
    except KeyboardInterrupt:
        return EXIT_OK
    return EXIT_OK


def _fail(code: int, error: object) -> int:
    print(f"trivium stream read: {error}", file=sys.stderr)
    return code


async def _run(options: argparse.Namespace, read: Read, server: Server) -> None:
    reading = Reading(
        stream=options.stream,
        partition=options.partition,
        offset=options.offset,
        columns=None if options.columns is None else options.columns.split(","),
        topic_filter=options.topic_filter,
        follows=options.follow,
    )
    left: int | None = options.count
    with ExitStack() as stack:
        writer: Writer | None = None
        async for batch in read(server, reading):
            if writer is None:
                # Not before it is known that there is something to write.
                writer = _open(options, batch.schema, stack)
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            writer.write(batch)
            if left == 0:
                break
        if writer is not None:
            writer.close()


def _open(options: argparse.Namespace, schema: Any, stack: ExitStack) -> Writer:
    make = WRITERS[options.format]
    if options.output is not None:
        return make(stack.enter_context(open(options.output, "wb")), schema)  # noqa: PTH123
    if options.format in _BINARY and sys.stdout.isatty():
        raise UsageError(f"--format {options.format} is nothing for a terminal: give --output")
    return make(sys.stdout.buffer, schema)


def _plain(value: Any) -> Any:
    """A value as JSON has it: bytes as text, or as base64 where they are none."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


class JsonWriter:
    """One object per line."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        self._file = file

    def write(self, batch: Any) -> None:
        for row in batch.to_pylist():
            self._file.write(json.dumps(_plain(row), ensure_ascii=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """There is nothing at the end."""


class CsvWriter:
    """A line of names, then one per record; what is no plain value is JSON."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        self._text = TextIOWrapper(file, "utf-8", newline="", write_through=True)
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow(schema.names)

    def write(self, batch: Any) -> None:
        for row in batch.to_pylist():
            self._writer.writerow(_cell(_plain(value)) for value in row.values())
        self._text.flush()

    def close(self) -> None:
        # Standard output stays open.
        self._text.detach()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


class ArrowWriter:
    """Arrow's stream of record batches."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        from pyarrow import ipc

        self._file = file
        self._writer = ipc.new_stream(file, schema)

    def write(self, batch: Any) -> None:
        self._writer.write_batch(batch)
        self._file.flush()

    def close(self) -> None:
        self._writer.close()


class ParquetWriter:
    """A file of Parquet, which can be read once it is closed."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        from pyarrow import parquet

        self._file = file
        self._writer = parquet.ParquetWriter(file, schema)

    def write(self, batch: Any) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()
        self._file.flush()


WRITERS: Final[dict[str, Callable[[BinaryIO, Any], Writer]]] = {
    "json": JsonWriter,
    "csv": CsvWriter,
    "arrow": ArrowWriter,
    "parquet": ParquetWriter,
}
_BINARY: Final = ("arrow", "parquet")
