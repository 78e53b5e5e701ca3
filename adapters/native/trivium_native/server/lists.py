"""Replies that are lists of everything there is. What does not fit in one is refused: the HTTP API
has pages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from trivium.errors import LimitExceeded
from trivium_native.wire.frames import MAX_FIELDS_BYTES, OK, encode_frame, pack

if TYPE_CHECKING:
    from trivium_native.server.connection import NativeConnection

T = TypeVar("T")

#: Rows of one reply, which are made in one turn.
MAX_ROWS: Final = 4096


def bounded(items: Iterable[T]) -> list[T]:
    """All items of a list. Raises LimitExceeded where they are too many for one reply."""
    found = list(islice(items, MAX_ROWS + 1))
    if len(found) > MAX_ROWS:
        raise LimitExceeded(f"there are more than {MAX_ROWS}: list them over HTTP")
    return found


def reply_rows(
    connection: NativeConnection, correlation: int, name: str, rows: list[dict[str, object]]
) -> None:
    """Answer with an array of rows. Raises LimitExceeded where a client would not take it."""
    body = pack({name: rows})
    if len(rows) > MAX_ROWS or len(body) > MAX_FIELDS_BYTES:
        raise LimitExceeded("that is too much for one reply: list it over HTTP")
    if correlation:
        connection.send(encode_frame(OK, correlation, body))
