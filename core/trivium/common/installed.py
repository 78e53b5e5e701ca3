"""What the installed distributions offer under a group of entry points.

Their files are read once in a process: to look through dozens of distributions takes longer than to
start a broker.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any


def installed(group: str) -> EntryPoints:
    """The entry points of ``group``, as they were when any were first asked for."""
    found: EntryPoints = _read(tuple(sys.path)).select(group=group)
    return found


@lru_cache(maxsize=1)
def _read(path: tuple[str, ...]) -> Any:
    """Those of the distributions on ``path``, which is ``sys.path``."""
    return entry_points()
