"""Client certificates in place of a password: TLS has verified them, and says whose they are."""

from __future__ import annotations

from typing import Final

from trivium.errors import PreconditionFailed
from trivium.listen import CERTIFICATE as CERTIFICATE
from trivium.security.attempts import REFUSED, UNKNOWN, Attempt, Decided, Login, Method, Verdict
from trivium.security.identity import Identity
from trivium.security.users import Users, check_name

#: The ``reason`` of a failure where a certificate has several names: none of them goes before.
AMBIGUOUS: Final = "the certificate has several names"


class Certificates(Method):
    """Admits whoever the certificate names, and shows no password; tags are those of the user."""

    name = CERTIFICATE

    def __init__(self, users: Users) -> None:
        self._users = users

    def check(self, attempt: Attempt, decided: Decided) -> None:
        decided(self.recognise(attempt))

    def recognise(self, attempt: Attempt) -> Verdict:
        owner = attempt.certificate_user
        if attempt.is_certificate_ambiguous and not attempt.password:
            return Verdict(reason=AMBIGUOUS)
        if not owner or attempt.password:
            return UNKNOWN
        if attempt.username not in (None, "", owner):
            return REFUSED
        try:
            check_name(owner)
        except PreconditionFailed:
            return REFUSED
        return Verdict(self._login(owner))

    def current(self, login: Login) -> Login | None:
        found = self._login(login.key)
        return login if found == login else found

    def _login(self, owner: str) -> Login:
        user = self._users.find(owner)
        tags: frozenset[str] = frozenset() if user is None else user.tags
        return Login(identity=Identity(owner, tags), method=self.name, key=owner)
