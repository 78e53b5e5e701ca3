"""Asks somebody else over HTTP who may connect.

A POST has what the client shows as JSON, under the names that EMQX has. Its answers are understood:
`{"result": "allow" | "deny" | "ignore", "is_superuser": ...}`; with `answer = "status"` the status
alone counts, as with mosquitto-go-auth. Whatever else comes, or nothing in time, refuses.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from trivium.errors import PreconditionFailed
from trivium.security.attempts import (
    HTTP,
    REFUSED,
    UNKNOWN,
    Attempt,
    Decided,
    Login,
    Method,
    Verdict,
)
from trivium.security.identity import ADMINISTRATOR, Identity
from trivium.security.users import check_name, check_tags
from trivium.security.web import Fetch, WebAnswer, WebRequest

logger = logging.getLogger(__name__)

#: decisions that are remembered; beyond them the oldest is forgotten
CACHE_SIZE: Final = 10_000
#: longest answer: a result and some tags
MAX_ANSWER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRules:
    """Where to ask, and for how long an answer holds."""

    url: str
    answer: Literal["json", "status"] = "json"
    timeout_ms: int = 5_000
    cache_ms: int = 60_000
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


class HttpAuthenticator(Method):
    """Decides by what a server answers."""

    name = HTTP
    decides_by_vhost = True

    def __init__(self, rules: WebRules, fetch: Fetch, now_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._fetch = fetch
        self._now_ms = now_ms
        self._key = secrets.token_bytes(32)
        # By a keyed digest of what was asked: the verdict, and until when it holds.
        self._cache: OrderedDict[bytes, tuple[Verdict, int]] = OrderedDict()

    def check(self, attempt: Attempt, decided: Decided) -> None:
        if attempt.username is None or not (attempt.username or attempt.password):
            # Nobody is asked about who shows nothing: an empty answer must not let it in.
            decided(UNKNOWN)
            return
        body = _asked(attempt)
        digest = hmac.digest(self._key, body, hashlib.sha256)
        verdict, until = self._cache.get(digest, (REFUSED, 0))
        if self._now_ms() < until:
            decided(verdict)
            return
        username = attempt.username

        def answered(answer: WebAnswer | None) -> None:
            found = self._read(answer, username)
            if found is not None and self._rules.cache_ms:
                self._remember(digest, found)
            decided(REFUSED if found is None else found)

        rules = self._rules
        self._fetch(
            WebRequest(
                url=rules.url,
                timeout_ms=rules.timeout_ms,
                max_bytes=MAX_ANSWER_BYTES,
                headers=rules.headers,
                body=body,
            ),
            answered,
        )

    def _remember(self, digest: bytes, verdict: Verdict) -> None:
        until = self._now_ms() + self._rules.cache_ms
        if verdict.login is not None and verdict.login.expires_ms:
            until = min(until, verdict.login.expires_ms)
        self._cache.pop(digest, None)
        self._cache[digest] = (verdict, until)
        if len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)

    def _read(self, answer: WebAnswer | None, username: str) -> Verdict | None:
        """What an answer means; None for one that decides nothing, which refuses this once."""
        if answer is None or answer.status >= 500:
            logger.error("the HTTP authenticator does not answer: clients are refused")
            return None
        if answer.status >= 400:
            return REFUSED
        if self._rules.answer == "status":
            return self._admit(username, {}) if answer.status == 200 else None
        if answer.status not in (200, 204):
            return None
        if answer.status == 204:
            return self._admit(username, {})
        try:
            found = json.loads(answer.body)
        except (ValueError, RecursionError):
            found = None
        result = found.get("result") if isinstance(found, dict) else None
        if result == "ignore":
            return UNKNOWN
        if result == "allow":
            return self._admit(username, found)
        if result != "deny":
            logger.error("the HTTP authenticator answers nothing that is understood")
            return None
        return REFUSED

    def _admit(self, username: str, found: dict[str, Any]) -> Verdict:
        tags = found.get("tags", [])
        expires = found.get("expire_at", 0)
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            return REFUSED
        if isinstance(expires, bool) or not isinstance(expires, (int, float)):
            return REFUSED
        if not 0 <= expires < 1 << 43:
            return REFUSED
        if found.get("is_superuser") is True:
            tags = [*tags, ADMINISTRATOR]
        try:
            check_name(username)
            identity = Identity(username, check_tags(tags))
        except PreconditionFailed:
            return REFUSED
        if 0 < expires * 1000 <= self._now_ms():
            return REFUSED
        return Verdict(Login(identity=identity, method=self.name, expires_ms=int(expires * 1000)))


def _asked(attempt: Attempt) -> bytes:
    """The body of a request. Bytes that are no UTF-8 become question marks, as in other brokers."""
    return json.dumps(
        {
            "username": attempt.username,
            "password": attempt.password.decode(errors="replace"),
            "clientid": attempt.client_id,
            "peerhost": attempt.address,
            "protocol": attempt.protocol,
            "vhost": attempt.vhost,
            "cert_common_name": attempt.certificate_user,
        }
    ).encode()
