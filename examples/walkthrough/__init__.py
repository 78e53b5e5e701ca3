"""Runs the cells of docs/walkthrough.md."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/walkthrough.md"
_CELL = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


def run(picture: Path) -> Iterator[tuple[str, str]]:
    """What each cell has printed, and what the page says that it prints."""
    names: dict[str, object] = {"picture": picture}
    for code, expected in _CELL.findall(PAGE.read_text(encoding="utf-8")):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, str(PAGE), "exec"), names)
        yield output.getvalue(), expected
