"""What commands print: JSON for programs, tables for people.

What is shown may come from anybody (names, client identifiers, payloads): in a table nothing of it
reaches the terminal but printable characters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.table import Table

#: Rows by which the widths of plain columns are found, and that are held until then.
_MEASURED_ROWS: Final = 1000
#: Characters of a text that others are put in line with: a longer one moves its own row alone.
_IN_LINE: Final = 48


def print_json(value: object) -> None:
    """One line."""
    print(json.dumps(value))


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """A table; a column is a field, dots lead into objects."""
    texts = texts_of(rows, columns)
    if not _print_rich(texts, columns):
        _print_plain(texts, [column.upper() for column in columns])


def texts_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Iterator[list[str]]:
    """What stands in the columns of each row."""
    return ([text_of(at(row, column), column) for column in columns] for row in rows)


def print_record(record: Mapping[str, Any]) -> None:
    """Field by field, those of objects too."""
    print_lines((name, text_of(value, name)) for name, value in flat(record))


def print_lines(lines: Iterable[tuple[str, str]]) -> None:
    """Texts behind their titles."""
    for line in aligned(lines):
        print(line)


def aligned(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Texts behind their titles, all at the same place."""
    rows = [(printable(title), printable(text)) for title, text in lines]
    width = max((len(title) for title, _ in rows), default=0)
    return [f"{title:{width}}  {text}".rstrip() for title, text in rows]


def at(row: Mapping[str, Any], column: str) -> Any:
    """What stands in a column; None for nothing."""
    if column in row:
        return row[column]
    first, dot, rest = column.partition(".")
    inner = row.get(first)
    return at(inner, rest) if dot and isinstance(inner, Mapping) else None


def flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a record and of the objects in it."""
    for name, value in record.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def text_of(value: Any, column: str = "") -> str:
    """A value in a few words."""
    if value is None or value == {}:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and column.endswith("_at"):
        return _time(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return printable(", ".join(value))
    if isinstance(value, list | Mapping):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(str(value))


def _time(milliseconds: int) -> str:
    if not milliseconds:
        return ""
    try:
        found = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return found.strftime("%Y-%m-%d %H:%M:%SZ")


def printable(text: str) -> str:
    """The text with escapes for what a terminal would obey, or not show."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _print_rich(rows: Iterable[list[str]], columns: Sequence[str]) -> bool:
    """On a terminal, where there is rich. False: it is not printed."""
    if not sys.stdout.isatty():
        return False
    try:
        from rich.console import Console
    except ImportError:
        return False
    Console().print(rich_table(list(rows), columns))
    return True


def rich_table(rows: list[list[str]], columns: Sequence[str]) -> Table:
    """A table for a terminal. Raises ImportError."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        is_numeric = bool(rows) and all(_is_number(row[number]) for row in rows)
        table.add_column(
            Text(column.replace("_", " ")),
            justify="right" if is_numeric else "left",
            overflow="fold",
        )
    for row in rows:
        # As it is: brackets in a name are no markup.
        table.add_row(*(Text(text) for text in row))
    return table


def _print_plain(texts: Iterable[list[str]], header: list[str]) -> None:
    rest = iter(texts)
    rows = [header, *(row for _, row in zip(range(_MEASURED_ROWS), rest, strict=False))]
    sizes = ([len(row[number]) for row in rows] for number in range(len(header)))
    widths = [max(size for size in column if size <= _IN_LINE) for column in sizes]
    for row in (*rows, *rest):
        cells = (f"{text:{width}}" for text, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
