"""`trivium import`: what another broker has.

The definitions of RabbitMQ go into a running broker. Others have a configuration file, of which one
for this broker is made: what reads it is found through the entry-point group `trivium.imports`, by
the other broker's name.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from trivium.cli.clients import UsageError
from trivium.cli.configuration import load
from trivium.cli.control import run_command
from trivium.cli.definitions import take
from trivium.cli.serve import options_of_protocols, protocols
from trivium.cli.tables import print_json
from trivium.common.installed import installed
from trivium.errors import ConfigError

#: Reads a file; the text of a configuration, and a note on each line that has no counterpart in it.
Converter = Callable[[Path], tuple[str, list[str]]]

RABBITMQ: Final = "rabbitmq"
#: What is said of a running broker.
_PLACES: Final = ("data", "config", "url", "vhost", "password_file")


def sources() -> list[str]:
    """Whose files can be read, in order."""
    return sorted([*installed("trivium.imports").names, RABBITMQ])


def run(options: argparse.Namespace) -> int:
    """Take over what the options say; the exit code."""
    if options.source == RABBITMQ:
        return run_command(options, _into_broker)
    return _configure(options)


def _into_broker(options: argparse.Namespace) -> None:
    if options.output is not None:
        raise UsageError("definitions go into a running broker: there is no --output")
    take(options, skips=True)


def _configure(options: argparse.Namespace) -> int:
    """Print the configuration, or write it where the options say, and the notes; the exit code."""
    if options.source not in sources():
        return _fail(EXIT_USAGE, f"{options.source!r} is not one of {', '.join(sources())}")
    for name in _PLACES:
        if getattr(options, name) is not None:
            flag = name.replace("_", "-")
            return _fail(EXIT_USAGE, f"a configuration is made, of no broker: no --{flag}")
    convert: Converter = installed("trivium.imports")[options.source].load()
    try:
        text, notes = convert(Path(options.file))
        _check(text)
        if options.output is not None:
            with Path(options.output).open("x", encoding="utf-8") as file:
                file.write(text)
    except ConfigError as error:
        return _fail(EXIT_USAGE, error)
    except OSError as error:
        return _fail(EXIT_FAILED, f"{error.filename}: {error.strerror}")
    if options.json:
        made = {} if options.output is not None else {"configuration": text}
        print_json({**made, "passed_over": notes})
        return EXIT_OK
    if options.output is None:
        sys.stdout.write(text)
    for note in notes:
        print(note, file=sys.stderr)
    return EXIT_OK


def _fail(code: int, error: object) -> int:
    print(f"trivium import: {error}", file=sys.stderr)
    return code


def _check(text: str) -> None:
    """What is printed is what a broker takes. Raises ConfigError."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".toml") as made:
        made.write(text)
        made.flush()
        try:
            load(Path(made.name), {}, {}, protocols(), options_of_protocols())
        except ConfigError as error:
            raise ConfigError(str(error).removeprefix(f"{made.name}: ")) from None
