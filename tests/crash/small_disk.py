"""A file system of a given size, which only the processes of a mount namespace of its own see."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A tmpfs on ``directory``. Commands behind the words of ``prefix`` find it there."""

    def __init__(self, directory: Path, holder: subprocess.Popen[str]) -> None:
        self._directory = directory
        self.prefix = ("nsenter", f"--mount=/proc/{holder.pid}/ns/mnt")

    def resize(self, size: int) -> None:
        """Let it hold so many bytes from now on."""
        subprocess.run(
            [*self.prefix, "mount", "-o", f"remount,size={size}", str(self._directory)], check=True
        )


@contextmanager
def small_disk(directory: Path, size: int) -> Iterator[SmallDisk]:
    """A disk of ``size`` bytes on ``directory``, which is made. Skips where that is not allowed."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("mounting a small file system takes root, unshare and nsenter")
    directory.mkdir()
    script = 'mount -t tmpfs -o size="$1" tmpfs "$2" && echo mounted && exec sleep infinity'
    holder = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(size), str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != "mounted\n":
            assert holder.stderr is not None
            pytest.skip(f"a small file system cannot be mounted: {holder.stderr.read().strip()}")
        yield SmallDisk(directory, holder)
    finally:
        holder.kill()
        holder.communicate()
