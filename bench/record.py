"""The recorded instructions per message: a table in docs/benchmarks.md, read and written here."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.instructions import ROWS, Instructions
from bench.servers import REPOSITORY, ServerError, Trivium

DOCUMENT: Final = REPOSITORY / "docs" / "benchmarks.md"
MOST: Final = 1.05
"""How many times its record a row may take; the least steady ones waver by some 3 per cent."""
CLOCK: Final = 30
"""Instructions per message by which a row may exceed its record in any case.

What the broker does by the clock counts too, and wavers, in rows that take a few hundred.
"""

_BEGIN: Final = "<!-- written by ./dev bench --instructions --record -->\n"
_END: Final = "<!-- end of what is written -->\n"
_MEASURED: Final = ("core", "adapters", "pyproject.toml", "setup.py")
"""What the compiled build is made of."""


@dataclass(frozen=True)
class Recorded:
    """One row of the table."""

    per_message: int
    commit: str
    """Of the source that was measured."""


@dataclass(frozen=True)
class Record:
    """The whole table."""

    platform: str
    """Counts of another Python or processor are others."""
    rows: dict[str, Recorded]


@dataclass(frozen=True)
class Comparison:
    """A count beside what is recorded for its row; for another server than ours nothing is."""

    counted: Instructions
    recorded: Recorded | None

    @property
    def ratio(self) -> float:
        """How many times the record was counted; 0 without a record."""
        return self.counted.per_message / self.recorded.per_message if self.recorded else 0.0

    @property
    def is_above(self) -> bool:
        """The row takes more than it may."""
        if self.recorded is None:
            return False
        return self.counted.per_message > max(
            self.recorded.per_message * MOST, self.recorded.per_message + CLOCK
        )

    def __str__(self) -> str:
        if self.recorded is None:
            return str(self.counted)
        verdict = f"  above {MOST}" if self.is_above else ""
        return (
            f"{self.counted}, recorded {self.recorded.per_message:,} at {self.recorded.commit},"
            f" ratio {self.ratio:.3f}{verdict}"
        )


def this_platform() -> str:
    """Name what the counts depend on besides the source."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor} on {platform.machine()}"


def read_record() -> Record:
    """Return the record. Raises ServerError when the document has none."""
    _, table, _ = _parts(DOCUMENT.read_text())
    named = re.search(r"^Counted with (.*):$", table, re.MULTILINE)
    found = re.findall(r"^\| `(\S+)` \| ([\d,]+) \| (\w+) \|$", table, re.MULTILINE)
    rows = {row: Recorded(int(count.replace(",", "")), commit) for row, count, commit in found}
    return Record(named[1] if named else "", rows)


def write_record(counted: Sequence[Instructions], commit: str) -> None:
    """Put counts into the record, in the place of those that these rows had.

    Raises:
        ServerError: the rows that were not counted come from another platform.
    """
    record = read_record()
    new = {one.row: Recorded(round(one.per_message), commit) for one in counted}
    kept = {row: record.rows[row] for row in ROWS if row in record.rows and row not in new}
    if kept and record.platform != this_platform():
        raise ServerError(f"the record is of {record.platform}: count all rows to replace it")
    rows = kept | new
    lines = [
        f"Counted with {this_platform()}:",
        "",
        "| row | instructions per message | commit |",
        "| --- | --- | --- |",
        *(
            f"| `{row}` | {rows[row].per_message:,} | {rows[row].commit} |"
            for row in ROWS
            if row in rows
        ),
    ]
    before, _, after = _parts(DOCUMENT.read_text())
    DOCUMENT.write_text(before + "\n".join(["", *lines, "", ""]) + after)


def _parts(text: str) -> tuple[str, str, str]:
    """Return what comes before the table, the table, what follows it."""
    before, begin, rest = text.partition(_BEGIN)
    table, end, after = rest.partition(_END)
    if not end:
        raise ServerError("docs/benchmarks.md has no place for the record")
    return before + begin, table, end + after


def compare(counted: Instructions, record: Record) -> Comparison:
    """Put a count beside the record of its row, if there is one that says something about it."""
    is_ours = counted.server == Trivium.name and record.platform == this_platform()
    return Comparison(counted, record.rows.get(counted.row) if is_ours else None)


def measured_commit() -> str:
    """Return the last commit that changed what the compiled build is made of.

    Raises:
        ServerError: the source has changes that are not committed.
    """
    changed = _git("status", "--porcelain", "--", *_MEASURED)
    if changed:
        raise ServerError("the record names a commit: commit the changes first")
    return _git("log", "-1", "--abbrev=9", "--format=%h", "--", *_MEASURED)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ServerError(f"git failed: {result.stderr.strip()}")
    return result.stdout.strip()
