"""``trivium serve`` that tells what it has in memory: ``python -m bench.soak.serve serve ...``.

On SIGUSR1 it has the C library give back what is free, and writes how much memory is left, and how
many blocks of it Python has, to a file beside the data directory. With ``SOAK_OBJECTS`` set, the
numbers of objects by type as well, of those that the collector of cycles walks and of the others.
When the soak is gone, however it ended, so is the broker.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

from trivium.cli import main
from trivium.observability.process import release_free_memory, resident_bytes

HEAP: Final = "heap.json"
_PR_SET_PDEATHSIG: Final = 1


def _tell(_number: int, _frame: FrameType | None) -> None:
    release_free_memory()
    found: dict[str, Any] = {"resident": resident_bytes(), "blocks": sys.getallocatedblocks()}
    if os.environ.get("SOAK_OBJECTS"):
        # Those that the collector still looks at come and go with it.
        for name, generation in (("young", 0), ("old", 1), ("old", 2)):
            types = collections.Counter(
                f"{name} {type(one).__qualname__}" for one in gc.get_objects(generation)
            )
            objects = found.setdefault("objects", {})
            for kind, count in types.items():
                objects[kind] = objects.get(kind, 0) + count
    place = Path(sys.argv[sys.argv.index("--data") + 1]).parent / HEAP
    new = place.with_suffix(".new")
    new.write_text(json.dumps(found))
    new.rename(place)


def _end_with_parent() -> None:
    """Get SIGTERM when the process that has started this one ends (prctl(2))."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        sys.exit("the soak has ended")


if __name__ == "__main__":
    _end_with_parent()
    signal.signal(signal.SIGUSR1, _tell)
    sys.exit(main(sys.argv[1:]))
