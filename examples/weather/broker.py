"""A broker of the example's own: free ports, and a data directory that goes with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_broker(directory: Path) -> Iterator[dict[str, int]]:
    """The ports of a running broker by protocol; it is stopped at the end of the block."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "trivium", "serve", "--data", str(directory)),
            *("--mqtt", "0", "--amqp", "0", "--native", "0", "--http", "off"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRIVIUM_LOG__LEVEL": "warning"},
    )
    assert process.stdout is not None
    try:
        # It prints one line once it accepts connections, and says on standard error why not.
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the broker did not start")
        yield {name: int(port) for name, port in re.findall(r"(\w+)=\S*?:(\d+)", line)}
    finally:
        process.terminate()
        process.communicate(timeout=30)
