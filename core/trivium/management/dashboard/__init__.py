"""The dashboard at `/`: pages for browsers that use `/api/v1` and nothing else.

Its files are as they are written: no build. All but the first page are at paths that change with
them, so that browsers may keep them.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from trivium.observability.browsers import File

FOLDER: Final = Path(__file__).parent / "files"
#: The first page, and what stands in it for the folder of all other files.
INDEX: Final = "index.html"
PLACE: Final = b"{files}"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def files() -> dict[str, File]:
    """All of them, by path."""
    found = {
        path.relative_to(FOLDER).as_posix(): path.read_bytes()
        for path in sorted(FOLDER.rglob("*.*"))
    }
    digest = hashlib.sha256()
    for name, body in found.items():
        digest.update(f"{name} {len(body)}\n".encode() + body)
    folder = f"dashboard/{digest.hexdigest()[:16]}"
    index = found.pop(INDEX).replace(PLACE, folder.encode())
    pages = {"/": File(index, _TYPES[".html"], False)}
    for name, body in found.items():
        pages[f"/{folder}/{name}"] = File(body, _TYPES[Path(name).suffix], True)
    return pages
