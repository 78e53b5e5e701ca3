"""`trivium check` and `trivium repair`: the data directory of a broker that does not run."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from typing import Any, Final

from trivium.cli import EXIT_DAMAGED, EXIT_FAILED, EXIT_LOCKED, EXIT_OK, EXIT_USAGE
from trivium.cli.configuration import read_environment
from trivium.cli.progress import progress
from trivium.cli.tables import print_json
from trivium.messages.message import RecordError, decode_record
from trivium.storage.contents.log import DiskLog
from trivium.storage.errors import (
    StorageError,
    StorageKeyError,
    StorageLocked,
    StorageVersionMismatch,
)
from trivium.storage.files.directory import LOCK_FILE, is_data_directory
from trivium.storage.files.encryption import find_keys
from trivium.storage.files.filesystem import WornFileSystem
from trivium.storage.repair.inspected_journal import UNKNOWN
from trivium.storage.repair.inspection import Inspection, Loss
from trivium.storage.repair.repair import REPORT_FILE, repair
from trivium.streams.records import BatchError, RecordBatch

_QUEUE: Final = re.compile(r"queue/(\d+):(.*)", re.DOTALL)
_STREAM: Final = re.compile(r"stream/(.*)/[0-9a-f]+/(\d+)(/compacted/\d+)?", re.DOTALL)


def run(options: argparse.Namespace) -> int:
    """Check or repair as the options say; the exit code."""
    directory = options.directory.rstrip("/") or "/"
    filesystem = WornFileSystem()
    key_file, key_env = options.key_file or "", options.key_env or ""
    if not key_file and not key_env:
        # As a broker finds them that is configured by its environment.
        key_file, key_env = _configured("key_file"), _configured("key_env")
    try:
        keys = find_keys(key_file, key_env, os.environ)
    except ValueError as error:
        return _fail(EXIT_USAGE, error)
    try:
        if not is_data_directory(filesystem, directory):
            return _fail(EXIT_FAILED, f"{directory} is no data directory")
        lock = filesystem.lock(f"{directory}/{LOCK_FILE}")
        try:
            with progress(options.command) as report:
                inspection = Inspection(filesystem, directory, check_record, keys, report)
            if options.command == "check":
                return _check(inspection, options.json)
            return _repair(inspection, options.json)
        finally:
            lock.release()
    except StorageLocked as error:
        return _fail(EXIT_LOCKED, error)
    except StorageKeyError as error:
        return _fail(EXIT_USAGE, error)
    except StorageVersionMismatch as error:
        return _fail(EXIT_DAMAGED, error)
    except (StorageError, OSError) as error:
        return _fail(EXIT_FAILED, error)


def _configured(key: str) -> str:
    """A key of the section storage as the environment has it, "" when it has none."""
    found = ""
    for _, tree in read_environment(os.environ):
        value = tree.get("storage", {}).get(key)
        if isinstance(value, str):
            found = value
    return found


def _check(inspection: Inspection, is_json: bool) -> int:
    logs = inspection.logs()
    if is_json:
        shown = [
            {
                "name": describe(log.name),
                "entries": len(log),
                "first_offset": log.first_offset,
                "next_offset": log.next_offset,
            }
            for log in logs
        ]
        print_json({**_found(inspection), "logs": shown})
        return EXIT_FAILED if inspection.damages else EXIT_OK
    lines = [summary(log) for log in logs] + findings(inspection)
    damages = len(inspection.damages)
    if damages:
        verdict = f"damaged ({damages}); to save what can be saved, run: trivium repair"
        lines.append(f"{verdict} {inspection.directory}")
    else:
        lines.append(f"{inspection.directory} is in order")
    _say(lines)
    return EXIT_FAILED if damages else EXIT_OK


def _found(inspection: Inspection) -> dict[str, Any]:
    """What is wrong and what is lost, for programs."""
    return {
        "directory": inspection.directory,
        "is_in_order": not inspection.damages,
        "notes": inspection.notes,
        "damages": [str(damage) for damage in inspection.damages],
        "losses": [
            {
                "log": describe(loss.log) if loss.log else None,
                "first": loss.first,
                "last": None if loss.last == UNKNOWN else loss.last,
                "records": loss.records or None,
                "fate": loss.fate,
            }
            for loss in inspection.losses
        ],
    }


def _repair(inspection: Inspection, is_json: bool) -> int:
    directory = inspection.directory
    lines = findings(inspection)
    if not inspection.damages:
        if is_json:
            print_json({**_found(inspection), "quarantine": None})
        else:
            _say([*lines, f"{directory} is in order, nothing to repair"])
        return EXIT_OK
    base = f"{directory}/quarantine-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    quarantine, number = base, 1
    while inspection.filesystem.exists(quarantine):
        number += 1
        quarantine = f"{base}-{number}"
    found = _found(inspection)
    with progress("repair"):
        repair(inspection, quarantine, lines)
    if is_json:
        print_json({**found, "quarantine": quarantine})
        return EXIT_OK
    _say(
        [
            *lines,
            f"repaired; what was damaged is in {quarantine}, with these lines in {REPORT_FILE}",
        ]
    )
    return EXIT_OK


def summary(log: DiskLog) -> str:
    """One line about a log."""
    what = "batches" if log.name.startswith("stream/") else "messages"
    if len(log) == 0:
        return f"{describe(log.name)}: empty, next offset {log.next_offset}"
    end = log.chunks()[-1].end
    behind = "" if log.next_offset == end else f", next offset {log.next_offset}"
    return (
        f"{describe(log.name)}: {len(log)} {what}, offsets {log.first_offset} to {end - 1}{behind}"
    )


def findings(inspection: Inspection) -> list[str]:
    """What is wrong and what is lost, a line each."""
    lines = [f"note: {note}" for note in inspection.notes]
    lines += [f"damaged: {damage}" for damage in inspection.damages]
    lines += [_loss(loss) for loss in inspection.losses]
    return lines


def _loss(loss: Loss) -> str:
    log = describe(loss.log) if loss.log else f"log {loss.number}, whose name is lost"
    where = f"offset {loss.first}"
    if loss.last == UNKNOWN:
        where = f"offsets from {loss.first} on"
    elif loss.last > loss.first:
        where = f"offsets {loss.first} to {loss.last}"
    unit = "batches" if loss.log.startswith("stream/") else "records"
    count = f" ({loss.records} {unit})" if loss.records else ""
    return f"{loss.fate}: {log}: {where}{count}"


def describe(name: str) -> str:
    """What a log is to its users."""
    queue = _QUEUE.fullmatch(name)
    if queue:
        size = int(queue[1])
        vhost, rest = queue[2][:size], queue[2][size + 1 :]
        priority, _, queue_name = rest.partition("/")
        shown = f"queue {queue_name!r} in vhost {vhost!r}"
        return shown if priority == "0" else f"{shown}, priority {priority}"
    stream = _STREAM.fullmatch(name)
    if stream:
        # Vhost and stream may both hold a slash, so they are shown as one.
        shown = f"stream {stream[1]!r} partition {stream[2]}"
        return f"{shown}, compacted" if stream[3] else shown
    return f"log {name!r}"


def check_record(log: str, record: bytes, count: int) -> str:
    """What is wrong with a stored record; nothing when it can be decoded."""
    try:
        if log.startswith("stream/"):
            batch = RecordBatch(record)
            for row in range(batch.count):
                batch.message(row)
            return "" if batch.span == count else f"it has {batch.span} offsets, not {count}"
        if log.startswith("queue/"):
            decode_record(record)
    except (RecordError, BatchError, UnicodeDecodeError) as error:
        return str(error)
    return ""


def _say(lines: list[str]) -> None:
    for line in lines:
        print(line)


def _fail(code: int, error: object) -> int:
    print(f"trivium: {error}", file=sys.stderr)
    return code
