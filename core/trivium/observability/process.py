"""What Prometheus wants to know of every process, under its conventional names.

Read from /proc; where there is none (macOS), only what the interpreter itself knows is given.
"""

from __future__ import annotations

import os
import time
from pathlib import PurePosixPath
from typing import Final

from trivium import __version__
from trivium.observability.metrics import Sample

_START_SECONDS: Final = time.time()


def is_compiled() -> bool:
    """Whether the hot modules of this process run compiled."""
    from trivium.messages import message

    return not str(message.__file__).endswith(".py")


def resident_bytes() -> int:
    """Resident memory of this process; -1 when the system does not tell."""
    try:
        return int(_read("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return -1


def total_memory_bytes() -> int:
    """Memory that this process may use: the machine's, or less in a container (cgroups 1 and 2)."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        groups = _read("/proc/self/cgroup").splitlines()
    except OSError:
        return total
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:
            root, name = "/sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # Within a container the path may be the one outside; then only the root is there.
        inner = PurePosixPath(path)
        for place in (inner, *inner.parents):
            try:
                limit = _read(f"{root}{place}/{name}").strip()
            except OSError:
                continue
            if limit.isdecimal():
                total = min(total, int(limit))
    return total


def release_free_memory() -> None:
    """Have the C library give free memory back to the system, which glibc does by itself only at
    the end of its heap. Objects up to 512 bytes lie elsewhere and need no help.
    """
    import ctypes

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        # Not glibc.
        return


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel
        return file.read()


def process_samples() -> list[Sample]:
    """CPU, memory, file descriptors, start time, and the version as a label."""
    times = os.times()
    build = "compiled" if is_compiled() else "interpreted"
    samples = [
        Sample("info", "gauge", "Version", 1, f'version="{__version__}",build="{build}"'),
        Sample(
            "process_cpu_seconds_total", "counter", "CPU time", round(times.user + times.system, 2)
        ),
        Sample("process_start_time_seconds", "gauge", "Start, Unix time", round(_START_SECONDS, 3)),
    ]
    resident = resident_bytes()
    try:
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    except OSError:
        return samples
    samples.append(Sample("process_resident_memory_bytes", "gauge", "Resident memory", resident))
    samples.append(Sample("process_open_fds", "gauge", "Open file descriptors", descriptors))
    return samples
