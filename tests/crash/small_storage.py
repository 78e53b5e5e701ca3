"""The command `trivium` with storage so small that kills fall into checkpoints and file changes.

As shipped there are 64 MiB between two checkpoints, more than a test publishes. Runs interpreted
only, for it replaces default arguments.
"""

from __future__ import annotations

import sys

from trivium.cli import main
from trivium.storage.disk import DiskStorage

if __name__ == "__main__":
    defaults = DiskStorage.__init__.__kwdefaults__
    assert defaults is not None
    for name in ("journal_file_size", "checkpoint_size", "memory_size"):
        assert name in defaults
    defaults.update(journal_file_size=48 * 1024, checkpoint_size=32 * 1024, memory_size=16 * 1024)
    sys.exit(main())
