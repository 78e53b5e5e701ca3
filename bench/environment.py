"""What a figure depends on besides the servers: the machine, its disk, what else was running."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
_SYNCS: Final = 50


@dataclass(frozen=True)
class Environment:
    """The machine at the start of a run."""

    processor: str
    cores: int
    kernel: str
    python: str
    load_average: float
    file_system: str
    fdatasync_microseconds: float
    """Median over appends of 4 KiB to a file where the servers keep their data."""

    def lines(self) -> list[str]:
        """Describe the machine in a few lines."""
        return [
            f"{self.processor}, {self.cores} cores, Linux {self.kernel}, Python {self.python}",
            f"data on {self.file_system}, fdatasync {self.fdatasync_microseconds:.0f} µs;"
            f" load average at start {self.load_average:.2f}",
        ]


def file_system(directory: Path) -> str:
    """Return the kind of file system that ``directory`` is on, as statfs(2) tells it."""
    command = ["stat", "--file-system", "--format=%T", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def observe(directory: Path) -> Environment:
    """Look at the machine; ``directory`` is where the servers keep their data."""
    return Environment(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        python=sys.version.partition(" ")[0],
        load_average=os.getloadavg()[0],
        file_system=file_system(directory),
        fdatasync_microseconds=_fdatasync_seconds(directory) * 1e6,
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _fdatasync_seconds(directory: Path) -> float:
    path = directory / "fdatasync"
    seconds = []
    with path.open("wb", buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(b"x" * 4096)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - start)
    path.unlink()
    return statistics.median(seconds)
