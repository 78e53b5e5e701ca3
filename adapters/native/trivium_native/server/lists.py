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

TOO_MUCH: Final = "that is too much for one reply: list it over HTTP"


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
    if len(rows) > MAX_ROWS:
        raise LimitExceeded(TOO_MUCH)
    reply_bounded(connection, correlation, {name: rows})


def reply_bounded(
    connection: NativeConnection,
    correlation: int,
    fields: dict[str, object],
    advice: str = TOO_MUCH,
) -> None:
    """Answer with fields that may be many. Raises LimitExceeded, with the advice, where a client
    would not take them."""
    body = pack(fields)
    if len(body) > MAX_FIELDS_BYTES:
        raise LimitExceeded(advice)
    if correlation:
        connection.send(encode_frame(OK, correlation, body))
