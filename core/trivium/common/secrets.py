"""Secrets in files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Of a password, a token or a key; what is longer is none.
MAX_SECRET_BYTES: Final = 64 * 1024


def read_secret(file: str) -> str:
    """The first line of a file, without its end. Raises OSError, ValueError where it is empty."""
    with Path(file).open("rb") as opened:
        line = opened.read(MAX_SECRET_BYTES).partition(b"\n")[0].rstrip(b"\r")
    if not line:
        raise ValueError(f"{file} is empty")
    return line.decode(errors="surrogateescape")
