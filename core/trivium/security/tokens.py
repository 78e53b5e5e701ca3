"""JSON Web Tokens (RFC 7519) in place of a password: whoever holds one is whom it names.

A password of the form of a token is one. Its user is a claim of it, whatever user name stands
beside it, and the connection ends when it expires, unless it is renewed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trivium.errors import ConfigError, PreconditionFailed
from trivium.security.attempts import (
    BUSY,
    JWT,
    REFUSED,
    UNKNOWN,
    Attempt,
    Decided,
    Login,
    Method,
    Verdict,
)
from trivium.security.hash_queue import RunInPool
from trivium.security.identity import Identity
from trivium.security.scopes import read_scopes
from trivium.security.token_keys import (
    ALGORITHMS,
    TokenKey,
    parse_key_set,
    read_key_file,
    read_key_set_file,
    usable,
)
from trivium.security.users import MAX_TAGS, check_name, check_tags
from trivium.security.watched_files import WatchedFiles
from trivium.security.web import Fetch, WebAnswer, WebRequest

logger = logging.getLogger(__name__)

#: Milliseconds between two fetches of a key set because a token names a key that is not in it.
MIN_FETCH_MS: Final = 10_000
#: tokens that wait for a fetch; further ones are refused
MAX_WAITING: Final = 1000
#: a key set of dozens of keys
MAX_KEY_SET_BYTES: Final = 256 * 1024

_FORM: Final = re.compile(rb"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must be like."""

    key_file: str = ""
    jwks_file: str = ""
    jwks_url: str = ""
    refresh_ms: int = 300_000
    timeout_ms: int = 5_000
    algorithms: tuple[str, ...] = ALGORITHMS
    audience: tuple[str, ...] = ()
    issuer: str = ""
    leeway_ms: int = 30_000
    user_claim: str = "sub"
    tags_claim: str = ""
    tag_prefix: str = ""
    scopes_claim: str = ""
    scope_prefix: str = ""
    scope_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vhost_claim: str = ""


class Tokens(Method):
    """Checks tokens. Raises ConfigError for keys that cannot be used."""

    name = JWT

    def __init__(
        self,
        rules: TokenRules,
        run_in_pool: RunInPool,
        fetch: Fetch,
        now_ms: Callable[[], int],
    ) -> None:
        try:
            import jwt
        except ImportError:
            raise ConfigError("[jwt] needs an extra: pip install 'trivium[jwt]'") from None
        self._jwt = jwt
        self._rules = rules
        self._fetch = fetch
        self._now_ms = now_ms
        paths = [Path(name) for name in (rules.key_file, rules.jwks_file) if name]
        self._files = WatchedFiles(paths, self._read, run_in_pool, lambda: None)
        self._fetched: list[TokenKey] = []
        # When the key set was asked for last, and who waits for it.
        self._asked_ms = 0
        self._waiting: list[Callable[[], None]] | None = None

    def _read(self) -> list[TokenKey]:
        rules = self._rules
        keys: list[TokenKey] = []
        if rules.key_file:
            keys += read_key_file(Path(rules.key_file))
        if rules.jwks_file:
            keys += read_key_set_file(Path(rules.jwks_file))
        return keys

    def look(self, now_ms: int) -> None:
        self._files.look()
        is_due = not self._asked_ms or now_ms - self._asked_ms >= self._rules.refresh_ms
        if self._rules.jwks_url and is_due and self._waiting is None:
            self._refresh()

    def recognise(self, attempt: Attempt) -> Verdict | None:
        token = attempt.password
        if _FORM.fullmatch(token) is None:
            return UNKNOWN
        named = self._named(token)
        if named is None:
            return REFUSED
        keys = usable([*self._files.content, *self._fetched], *named)
        return self._judge(token, keys) if keys or not self._may_refresh() else None

    def _named(self, token: bytes) -> tuple[str, str | None] | None:
        """The algorithm and the number of the key that a token names; None: it is refused."""
        try:
            header = self._jwt.get_unverified_header(token)
        except self._jwt.PyJWTError:
            return None
        algorithm = header.get("alg")
        if algorithm not in self._rules.algorithms or "crit" in header:
            return None
        return algorithm, header.get("kid")

    def check(self, attempt: Attempt, decided: Decided) -> None:
        verdict = self.recognise(attempt)
        if verdict is not None:
            decided(verdict)
            return
        token = attempt.password
        named = self._named(token)
        assert named is not None, "it names a key that is not there yet"

        def go_on() -> None:
            decided(self._judge(token, usable(self._fetched, *named)))

        if self._waiting is None:
            self._refresh()
        if self._waiting is None:
            go_on()
        elif len(self._waiting) >= MAX_WAITING:
            decided(BUSY)
        else:
            self._waiting.append(go_on)

    def _judge(self, token: bytes, keys: list[TokenKey]) -> Verdict:
        """What a token is worth that one of the keys may have signed."""
        rules = self._rules
        for key in keys:
            try:
                claims = self._jwt.decode(
                    token,
                    key.key,
                    algorithms=[key.algorithm],
                    audience=rules.audience or None,
                    issuer=rules.issuer or None,
                    leeway=0,
                    options={
                        "require": ["exp", *(["aud"] if rules.audience else [])],
                        # By the broker's own clock, below.
                        "verify_exp": False,
                        "verify_nbf": False,
                        "verify_iat": False,
                        "verify_aud": bool(rules.audience),
                        "verify_iss": bool(rules.issuer),
                    },
                )
            except self._jwt.InvalidSignatureError:
                continue
            except (self._jwt.PyJWTError, ValueError, TypeError) as error:
                # Its text may quote the token.
                logger.debug("a token is refused: %s", type(error).__name__)
                return REFUSED
            return self._admit(claims)
        return REFUSED

    def _admit(self, claims: dict[str, Any]) -> Verdict:
        rules = self._rules
        name = claims.get(rules.user_claim)
        expires, begins = _milliseconds(claims.get("exp")), _milliseconds(claims.get("nbf", 0))
        if not isinstance(name, str) or expires is None or begins is None:
            return REFUSED
        now = self._now_ms()
        expires_ms = expires + rules.leeway_ms
        if expires_ms <= now or begins - rules.leeway_ms > now:
            return REFUSED
        try:
            check_name(name)
            scopes, tags = self._scopes(claims)
            words = _without(rules.tag_prefix, _words(claims, rules.tags_claim))
            tags |= frozenset(words[:MAX_TAGS])
            identity = Identity(name, check_tags(tags), scopes=scopes)
        except PreconditionFailed:
            return REFUSED
        vhost = claims.get(rules.vhost_claim, "") if rules.vhost_claim else ""
        if not isinstance(vhost, str):
            return REFUSED
        return Verdict(
            Login(
                identity=identity,
                method=self.name,
                expires_ms=expires_ms,
                virtual_host=vhost,
            )
        )

    def _scopes(self, claims: dict[str, Any]) -> tuple[tuple[str, ...] | None, frozenset[str]]:
        """The scopes of a token and the tags among them; None where they do not count."""
        rules = self._rules
        if not rules.scopes_claim:
            return None, frozenset()
        words = dict.fromkeys(_words(claims, rules.scopes_claim))
        for word in list(words):
            words.update(dict.fromkeys(rules.scope_aliases.get(word, ())))
        return read_scopes(_without(rules.scope_prefix, words))

    # The key set

    def _may_refresh(self) -> bool:
        if not self._rules.jwks_url:
            return False
        return self._waiting is not None or self._now_ms() - self._asked_ms >= MIN_FETCH_MS

    def _refresh(self) -> None:
        self._asked_ms = self._now_ms()
        self._waiting = []
        self._fetch(
            WebRequest(
                url=self._rules.jwks_url,
                timeout_ms=self._rules.timeout_ms,
                max_bytes=MAX_KEY_SET_BYTES,
            ),
            self._take,
        )

    def _take(self, answer: WebAnswer | None) -> None:
        """The key set has come, or has not: then the keys that there are hold."""
        waiting, self._waiting = self._waiting or [], None
        try:
            if answer is None or answer.status != 200:
                raise ValueError("it cannot be fetched")
            self._fetched = parse_key_set(answer.body, takes_secrets=False)
        except ValueError as error:
            logger.error("key set of [jwt] jwks_url: %s; the keys before it hold", error)
        for go_on in waiting:
            go_on()


def _words(claims: dict[str, Any], claim: str) -> list[str]:
    """The words of a claim: a list, or a text with spaces between (RFC 8693, 4.2)."""
    value = claims.get(claim, []) if claim else []
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list):
        return []
    return [word for word in words if isinstance(word, str)]


def _without(prefix: str, words: Iterable[str]) -> list[str]:
    """What follows a prefix in those that have it."""
    return [
        word.removeprefix(prefix) for word in words if word.startswith(prefix) and word != prefix
    ]


def _milliseconds(value: object) -> int | None:
    """A claim that is a time in seconds (RFC 7519, 2); None for what cannot be reckoned with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value * 1000) if 0 <= value < 1 << 43 else None
