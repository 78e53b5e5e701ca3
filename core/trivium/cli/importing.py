"""`trivium import`: the configuration of another broker as one of this one.

What reads it is found through the entry-point group `trivium.imports`, by the broker's name.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from trivium.cli.configuration import load
from trivium.cli.serve import options_of_protocols, protocols
from trivium.errors import ConfigError

#: Reads a file; the text of a configuration, and a note on each line that has no counterpart in it.
Converter = Callable[[Path], tuple[str, list[str]]]


def run(options: argparse.Namespace) -> int:
    """Print the configuration, or write it where the options say, and the notes; the exit code."""
    sources = entry_points(group="trivium.imports")
    if options.source not in sources.names:
        names = ", ".join(sorted(sources.names))
        print(f"trivium import: {options.source!r} is not one of {names}", file=sys.stderr)
        return EXIT_USAGE
    convert: Converter = sources[options.source].load()
    try:
        text, notes = convert(Path(options.file))
        _check(text)
        if options.output is not None:
            with Path(options.output).open("x", encoding="utf-8") as file:
                file.write(text)
    except ConfigError as error:
        print(f"trivium import: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"trivium import: {error.filename}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    if options.output is None:
        sys.stdout.write(text)
    for note in notes:
        print(note, file=sys.stderr)
    return EXIT_OK


def _check(text: str) -> None:
    """What is printed is what a broker takes. Raises ConfigError."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".toml") as made:
        made.write(text)
        made.flush()
        try:
            load(Path(made.name), {}, {}, protocols(), options_of_protocols())
        except ConfigError as error:
            raise ConfigError(str(error).removeprefix(f"{made.name}: ")) from None
