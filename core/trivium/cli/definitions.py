"""`trivium definitions`: all that was declared and granted, to a file and back; and what
`trivium import rabbitmq` takes over.

An import is sent a part at a time, in the order in which one thing needs the other, so that a
document may have any size and a terminal sees how far it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trivium.cli.clients import ClientError, UsageError
from trivium.cli.control import find_api, run_command
from trivium.cli.progress import progress
from trivium.cli.tables import print_json, printable
from trivium.management.segments import segment

#: What a document consists of, in the order in which it is imported.
SECTIONS: Final = (
    *("users", "vhosts", "global_parameters", "permissions", "topic_permissions"),
    *("roles", "grants"),
    *("parameters", "policies", "queues", "exchanges", "bindings"),
)
#: Entries and characters that are sent together.
PART_ENTRIES: Final = 500
PART_SIZE: Final = 1 << 20
#: As how many entries a password in plain text counts, which is hashed: some 30 ms of CPU.
PASSWORD_ENTRIES: Final = 20
STANDARD: Final = "-"


def run(options: argparse.Namespace) -> int:
    """Do what the options say; the exit code."""
    return run_command(options, _run)


def _run(options: argparse.Namespace) -> None:
    if options.verb == "export":
        found = find_api(options).ask("GET", _path(options))
        text = json.dumps(found, indent=None if options.json else 2) + "\n"
        if options.file == STANDARD:
            sys.stdout.write(text)
        else:
            _write(Path(options.file), text)
    else:
        take(options, options.skip)


def take(options: argparse.Namespace, skips: bool) -> None:
    """Import a file, and print what was passed over. Raises ClientError, UsageError."""
    document = _read(options.file)
    api, path = find_api(options), _path(options)
    total = sum(len(document.get(section, [])) for section in SECTIONS)
    done, taken, notes = 0, 0, list[str]()
    with progress("import") as report:
        for part in parts(document):
            report(done, total)
            query = {"skip": "true"} if skips else {}
            answer = api.ask("POST", path, query, part)
            notes += answer["passed_over"]
            taken += answer["taken"]
            done += sum(map(len, part.values()))
        report(done, total)
    if options.json:
        print_json({"entries": total, "passed_over": notes})
    else:
        for note in notes:
            print(printable(note), file=sys.stderr)
    if total and not taken:
        raise ClientError(f"{options.file}: nothing of it could be taken")


def parts(document: dict[str, list[Any]]) -> Iterator[dict[str, list[Any]]]:
    """A document in parts, of which none is large; one at least."""
    part: dict[str, list[Any]] = {}
    count = size = 0
    for section in SECTIONS:
        for entry in document.get(section, []):
            length = len(json.dumps(entry))
            if count and (count >= PART_ENTRIES or size + length > PART_SIZE):
                yield part
                part, count, size = {}, 0, 0
            part.setdefault(section, []).append(entry)
            is_slow = isinstance(entry, dict) and "password" in entry
            count += PASSWORD_ENTRIES if is_slow else 1
            size += length
    yield part


def _path(options: argparse.Namespace) -> str:
    vhost = options.vhost
    return "definitions" if vhost is None else f"vhosts/{segment(vhost)}/definitions"


def _read(name: str) -> dict[str, list[Any]]:
    """The document of a file. Raises ClientError, UsageError."""
    try:
        text = sys.stdin.read() if name == STANDARD else Path(name).read_text("utf-8-sig")
        found = json.loads(text)
    except OSError as error:
        raise ClientError(f"{name}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{name}: definitions are a JSON object")
    if not any(section in found for section in SECTIONS):
        raise UsageError(f"{name}: there are no definitions in it")
    for section in SECTIONS:
        if not isinstance(found.get(section, []), list):
            raise UsageError(f"{name}: {section!r} is a list")
    return found


def _write(path: Path, text: str) -> None:
    """Have a file with this text, or the one that was there. It has hashes of passwords, so that
    only its owner may read it. What is there and no file, such as a device or a pipe, is written
    to. Raises ClientError."""
    try:
        path = path.resolve()
        if path.exists() and not path.is_file():
            path.write_text(text)
            return
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(file, "w") as text_file:
                text_file.write(text)
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ClientError(f"{path}: {error.strerror}") from None
