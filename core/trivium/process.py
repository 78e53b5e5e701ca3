"""What Prometheus wants to know of every process, under its conventional names.

Read from /proc; where there is none (macOS), only what the interpreter itself knows is given.
"""

from __future__ import annotations

import os
import time
from typing import Final

from trivium import __version__
from trivium.metrics import Sample

_START_SECONDS: Final = time.time()


def is_compiled() -> bool:
    """Whether the hot modules of this process run compiled."""
    from trivium import broker

    return not str(broker.__file__).endswith(".py")


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
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - a file of the kernel
            pages = int(statm.read().split()[1])
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    except OSError:
        return samples
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    samples.append(Sample("process_resident_memory_bytes", "gauge", "Resident memory", resident))
    samples.append(Sample("process_open_fds", "gauge", "Open file descriptors", descriptors))
    return samples
