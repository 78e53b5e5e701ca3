"""The fields of a request: a msgpack map with text keys, read one by one and checked."""

from __future__ import annotations

from typing import Any, TypeGuard

from trivium.messages.message import HeaderValue
from trivium_native.wire.errors import InvalidArgument, Malformed
from trivium_native.wire.frames import unpack
from trivium_native.wire.properties import has_text_keys


class Fields:
    """Every method raises InvalidArgument where a field is missing, of another type or range.

    ``finish`` refuses what nobody asked for: a request is never honoured in part.
    """

    def __init__(self, body: bytes | dict[object, object]) -> None:
        value: Any = unpack(body) if isinstance(body, bytes) else body
        if not isinstance(value, dict):
            raise Malformed("the body is not a map")
        self._fields: dict[object, object] = value

    def _take(self, name: str) -> object:
        return self._fields.pop(name, None)

    def has(self, name: str) -> bool:
        """Whether a field is there, and not nil."""
        return self._fields.get(name) is not None

    def text(self, name: str, default: str | None = None, max_bytes: int = 255) -> str:
        """A text of at most ``max_bytes`` in UTF-8; required unless there is a default."""
        value = self._take(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or len(value.encode()) > max_bytes:
            raise InvalidArgument(f"'{name}' must be text of at most {max_bytes} bytes")
        return value

    def optional_text(self, name: str, max_bytes: int = 255) -> str | None:
        """A text, or None when it is absent."""
        if self._fields.get(name) is None:
            self._take(name)
            return None
        return self.text(name, None, max_bytes)

    def data(self, name: str, default: bytes | None = None, max_bytes: int = 65_535) -> bytes:
        """Bytes, at most ``max_bytes``; required unless there is a default."""
        value = self._take(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, bytes) or len(value) > max_bytes:
            raise InvalidArgument(f"'{name}' must be at most {max_bytes} bytes of binary")
        return value

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from ``low`` to ``high``; required unless there is a default."""
        value = self._take(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidArgument(f"'{name}' must be a whole number from {low} to {high}")
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        """A boolean; the default when it is absent."""
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidArgument(f"'{name}' must be a boolean")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of a few words."""
        value = self._take(name)
        if not isinstance(value, str) or value not in choices:
            raise InvalidArgument(f"'{name}' must be one of {', '.join(choices)}")
        return value

    def arguments(self, name: str) -> dict[str, HeaderValue]:
        """A map of declaration arguments; empty when it is absent."""
        value = self._take(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or not has_text_keys(value):
            raise InvalidArgument(f"'{name}' must be a map with text keys")
        return dict(value)

    def texts(self, name: str, most: int) -> list[str] | None:
        """A list of at most ``most`` texts; None when it is absent."""
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > most:
            raise InvalidArgument(f"'{name}' must be a list of at most {most} texts")
        found: list[str] = []
        for item in value:
            if not isinstance(item, str):
                raise InvalidArgument(f"'{name}' must be a list of texts")
            found.append(item)
        return found

    def pairs(self, name: str, most: int) -> list[tuple[int, int]]:
        """A list of at most ``most`` pairs of whole numbers from 0 to 2^63 - 1."""
        value = self._take(name)
        if not isinstance(value, list) or len(value) > most:
            raise InvalidArgument(f"'{name}' must be a list of at most {most} pairs")
        found: list[tuple[int, int]] = []
        for item in value:
            if not isinstance(item, list) or len(item) != 2:
                raise InvalidArgument(f"'{name}' must be a list of pairs")
            first, second = item
            if not _is_count(first) or not _is_count(second):
                raise InvalidArgument(f"'{name}' must hold whole numbers from 0")
            found.append((first, second))
        return found

    def offsets(self, name: str, most: int) -> tuple[list[tuple[int, int]], dict[int, str]]:
        """``pairs`` of partition and offset, each of which may have a text behind it; the texts by
        partition. Of several for one partition the last one counts."""
        value = self._fields.get(name)
        items = value if isinstance(value, list) else []
        if items:
            self._fields[name] = [
                item[:2] if isinstance(item, list) and len(item) == 3 else item for item in items
            ]
        pairs = self.pairs(name, most)
        texts: dict[int, str] = {}
        for item in items:
            text = item[2] if len(item) == 3 else None
            if text is not None and not isinstance(text, str):
                raise InvalidArgument(f"'{name}' must hold text behind an offset")
            texts[item[0]] = text or ""
        return pairs, texts

    def maps(self, name: str, most: int) -> list[Fields]:
        """A list of at most ``most`` maps; empty when it is absent."""
        found: list[Fields] = []
        for item in self._items(name, most):
            if not isinstance(item, dict):
                raise InvalidArgument(f"'{name}' must be a list of maps")
            found.append(Fields(item))
        return found

    def named_counts(self, name: str, most: int) -> list[tuple[str, int]]:
        """A list of at most ``most`` [text, whole number from 0]; empty when it is absent."""
        found: list[tuple[str, int]] = []
        for item in self._items(name, most):
            if not isinstance(item, list) or len(item) != 2:
                raise InvalidArgument(f"'{name}' must be a list of pairs")
            text, count = item
            if not isinstance(text, str) or not _is_count(count):
                raise InvalidArgument(f"'{name}' must hold pairs of text and a whole number")
            found.append((text, count))
        return found

    def rows(self, name: str, most: int, size: int) -> list[list[int]]:
        """A list of at most ``most`` lists of ``size`` whole numbers from 0 to 2^63 - 1.

        Empty when it is absent.
        """
        found: list[list[int]] = []
        for item in self._items(name, most):
            if not isinstance(item, list) or len(item) != size:
                raise InvalidArgument(f"'{name}' must be a list of lists of {size}")
            found.append(_counts(name, item))
        return found

    def partitions(self, name: str, most: int) -> list[tuple[str, str, list[int]]]:
        """A list of [stream, incarnation, [partition, ...]]; at most ``most`` of each."""
        found: list[tuple[str, str, list[int]]] = []
        for item in self._items(name, most):
            if not isinstance(item, list) or len(item) != 3:
                raise InvalidArgument(f"'{name}' must be a list of lists of 3")
            stream, incarnation, indexes = item
            if (
                not isinstance(stream, str)
                or not isinstance(incarnation, str)
                or not isinstance(indexes, list)
                or len(indexes) > most
            ):
                raise InvalidArgument(f"'{name}' must hold two texts and a list")
            found.append((stream, incarnation, _counts(name, indexes)))
        return found

    def _items(self, name: str, most: int) -> list[object]:
        value = self._take(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > most:
            raise InvalidArgument(f"'{name}' must be a list of at most {most}")
        return value

    def offset(self, name: str) -> int | str:
        """An offset, or the word ``first``, ``last`` or ``next``."""
        value = self._take(name)
        if isinstance(value, str) and value in ("first", "last", "next"):
            return value
        if _is_count(value):
            return value
        raise InvalidArgument(f"'{name}' must be an offset, 'first', 'last' or 'next'")

    def finish(self) -> None:
        """All fields were read: refuse any other."""
        if self._fields:
            raise InvalidArgument(f"unknown field {next(iter(self._fields))!r}")


def _counts(name: str, items: list[object]) -> list[int]:
    found: list[int] = []
    for item in items:
        if not _is_count(item):
            raise InvalidArgument(f"'{name}' must hold whole numbers from 0")
        found.append(item)
    return found


def _is_count(value: object) -> TypeGuard[int]:
    # The one check of such a number: compiled code hands on a value that was already narrowed
    # to int as a plain int, and True would pass as 1.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
