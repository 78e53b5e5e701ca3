"""Scopes: words by which a token or an API key says what it is for.

The words are RabbitMQ's: ``configure|write|read:VHOST/NAME[/KEY]``, where ``*`` stands for any
characters and ``%2F`` for a ``/``; without a KEY it is for every routing key. ``tag:NAME`` gives a
tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from trivium.errors import ConfigError, PreconditionFailed

CONFIGURE: Final = "configure"
WRITE: Final = "write"
READ: Final = "read"
KINDS: Final = (CONFIGURE, WRITE, READ)

TAG: Final = "tag:"

#: Of one token or key, and bytes of one word: they are copied into what a client may do.
MAX_SCOPES: Final = 256
MAX_SCOPE_BYTES: Final = 512

#: What the words of a key may be, for whoever has written another.
FORMS: Final = (
    "a scope is configure|write|read:VHOST/NAME[/KEY], * is any characters there, %2F a '/' and "
    "%20 a space; or tag:NAME for a tag of the user"
)

_ANY: Final = "*"
#: What no scope has: spaces, control characters, and a % that encodes nothing.
_MISSPELT: Final = re.compile(r"[\s\0-\x1f\x7f-\x9f]|%(?![0-9A-Fa-f]{2})")


class Glob:
    """A percent-encoded text in which ``*`` stands for any characters."""

    def __init__(self, text: str) -> None:
        self._first, *self._others = (unquote(part) for part in text.split(_ANY))

    def matches(self, name: str) -> bool:
        """Whether it stands for ``name``, all of it."""
        if not self._others:
            return name == self._first
        *middle, last = self._others
        at, end = len(self._first), len(name) - len(last)
        if at > end or not (name.startswith(self._first) and name.endswith(last)):
            return False
        for part in middle:
            found = name.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True


class Scope:
    """One word that permits something. Raises ValueError for another."""

    def __init__(self, word: str) -> None:
        self.kind, colon, place = word.partition(":")
        parts = place.split("/")
        if self.kind not in KINDS or not colon or len(parts) not in (2, 3):
            raise ValueError(f"{word!r} is no scope: configure|write|read:VHOST/NAME[/KEY]")
        if len(word.encode(errors="surrogatepass")) > MAX_SCOPE_BYTES:
            raise ValueError(f"a scope has at most {MAX_SCOPE_BYTES} bytes")
        self.vhost = Glob(parts[0])
        self.name = Glob(parts[1])
        #: None: every one
        self.key = None if len(parts) == 2 or parts[2] == _ANY else Glob(parts[2])
        #: whether it is for everything that a virtual host has
        self.is_everything = parts[1] == _ANY and self.key is None


class ScopePatterns:
    """What scopes permit in one virtual host."""

    def __init__(self, words: Iterable[str], vhost: str) -> None:
        self._scopes: dict[str, list[Scope]] = {kind: [] for kind in KINDS}
        for word in words:
            scope = Scope(word)
            if scope.vhost.matches(vhost):
                self._scopes[scope.kind].append(scope)
        #: whether they permit anything
        self.is_something = any(self._scopes.values())
        #: whether they permit everything
        self.is_everything = all(
            any(scope.is_everything for scope in found) for found in self._scopes.values()
        )

    def allow(self, kind: str, name: str) -> bool:
        """Whether a name may be configured, written or read, by some routing key at least."""
        return any(scope.name.matches(name) for scope in self._scopes[kind])

    def allow_some(self, kind: str) -> bool:
        """Whether any name may be configured, written or read."""
        return bool(self._scopes[kind])

    def allow_topic(self, kind: str, exchange: str, key: str) -> bool:
        """Whether what a routing key says at an exchange may be written or read."""
        return any(
            scope.name.matches(exchange) and (scope.key is None or scope.key.matches(key))
            for scope in self._scopes[kind]
        )

    def allow_every_topic(self, kind: str, exchange: str) -> bool:
        """Whether every routing key at an exchange may be written or read."""
        return any(
            scope.key is None and scope.name.matches(exchange) for scope in self._scopes[kind]
        )


def read_scopes(words: Iterable[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """The scopes and the tags among words of a token; others are for somebody else.

    Raises PreconditionFailed for too many.
    """
    scopes: set[str] = set()
    tags: set[str] = set()
    for word in words:
        if word.startswith(TAG) and word != TAG:
            tags.add(word.removeprefix(TAG))
            continue
        try:
            Scope(word)
        except ValueError:
            continue
        scopes.add(word)
    if len(scopes) > MAX_SCOPES:
        raise PreconditionFailed(f"there are more than {MAX_SCOPES} scopes")
    return tuple(sorted(scopes)), frozenset(tags)


def read_aliases(given: Mapping[str, object], prefix: str) -> dict[str, tuple[str, ...]]:
    """What words of an identity provider stand for: scopes and tags, each with the prefix.

    Raises ConfigError for what would mean nothing.
    """
    aliases: dict[str, tuple[str, ...]] = {}
    for alias, value in given.items():
        words = value.split() if isinstance(value, str) else value
        if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
            raise ConfigError(f"[jwt] scope_aliases: {alias!r} is not scopes, as a text or a list")
        for word in words:
            if not word.startswith(prefix):
                raise ConfigError(f"[jwt] scope_aliases: {word!r} does not begin with {prefix!r}")
            own = word.removeprefix(prefix)
            if own == TAG or not (own.startswith(TAG) or _is_right(own)):
                raise ConfigError(f"[jwt] scope_aliases: {word!r} is neither a scope nor a tag")
        aliases[alias] = tuple(words)
    return aliases


def check_scopes(words: Iterable[str]) -> frozenset[str]:
    """The words of a new API key: scopes, and tags with ``tag:`` or, without a ``:``, as they are.

    Raises PreconditionFailed for others: one that is misspelt must not be a tag, nor a scope that
    permits nothing; and for none at all, which would permit nothing too.
    """
    found = frozenset(words)
    if not found:
        raise PreconditionFailed("a key without any scope permits nothing: for all leave them out")
    if len(found) > MAX_SCOPES:
        raise PreconditionFailed(f"a key has at most {MAX_SCOPES} scopes")
    for word in found:
        if word.startswith(TAG) or ":" not in word:
            tag = word.removeprefix(TAG)
            if not 0 < len(tag.encode(errors="surrogatepass")) <= MAX_SCOPE_BYTES:
                raise PreconditionFailed(f"a tag has 1 to {MAX_SCOPE_BYTES} bytes")
            continue
        if len(word.encode(errors="surrogatepass")) > MAX_SCOPE_BYTES:
            raise PreconditionFailed(f"a scope has at most {MAX_SCOPE_BYTES} bytes")
        if not _is_right(word):
            raise PreconditionFailed(f"{word!r} is no scope: {FORMS}")
    return found


def _is_right(word: str) -> bool:
    """Whether a word is a scope, and not one that is for something else than it seems to be."""
    place = word.partition(":")[2]
    try:
        Scope(word)
        unquote_to_bytes(place).decode()
    except ValueError:
        return False
    return _MISSPELT.search(word) is None and "" not in place.split("/")[:2]


def scopes_of(words: Iterable[str]) -> tuple[tuple[str, ...] | None, frozenset[str]]:
    """Of the words of an API key the scopes, None where it names tags alone, and the tags."""
    scopes = sorted(word for word in words if ":" in word and not word.startswith(TAG))
    tags = frozenset(word.removeprefix(TAG) for word in words if word not in scopes)
    return (None if tags and not scopes else tuple(scopes)), tags
