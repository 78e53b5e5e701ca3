"""Names as segments of the paths of Trivium's own API.

Browsers, and curl, take the segments ``.`` and ``..`` out of a path, percent-encoded or not
(RFC 3986, 5.2.4; WHATWG URL, 4.4), and ask for another path. So these two names are encoded twice:
as ``%252E`` and ``%252E%252E``. A name that is one of these encoded, such as ``%2E``, is encoded
once more too, so that each name has a segment of its own.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

#: What a browser would not ask for.
DOTS: Final = (".", "..")

_ENCODED: Final = re.compile(r"%(25)*2E(%(25)*2E)?")


def segment(name: str) -> str:
    """A name as it stands in a path."""
    if name in DOTS:
        name = name.replace(".", "%2E")
    elif _ENCODED.fullmatch(name):
        name = name.replace("%", "%25")
    return quote(name, safe="", errors="surrogateescape")


def name_of(decoded: str) -> str:
    """The name of a segment that was decoded, as all are."""
    if not _ENCODED.fullmatch(decoded):
        return decoded
    return decoded.replace("%25", "%") if "%25" in decoded else decoded.replace("%2E", ".")
