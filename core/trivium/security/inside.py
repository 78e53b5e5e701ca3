"""Clients within the broker's own process: whoever has the process has the broker, so the program
says who they are and nobody asks for a password.
"""

from __future__ import annotations

from typing import Final

from trivium.security.attempts import REFUSED, Attempt, Decided, Login, Method, Verdict
from trivium.security.identity import OWNER
from trivium.security.users import Users

#: The method, and the listener that alone has it: a configuration cannot name it.
INSIDE: Final = "inside"


class Inside(Method):
    """They are the broker's owner, or a user of its own."""

    name = INSIDE

    def __init__(self, users: Users) -> None:
        self._users = users

    def check(self, attempt: Attempt, decided: Decided) -> None:
        name = attempt.username
        login = Login(identity=OWNER, method=INSIDE) if name is None else self._login(name)
        decided(REFUSED if login is None else Verdict(login))

    def current(self, login: Login) -> Login | None:
        if login.identity is OWNER:
            return login
        found = self._login(login.key)
        return login if found == login else found

    def _login(self, name: str) -> Login | None:
        user = self._users.find(name)
        return None if user is None else Login(identity=user.identity, method=INSIDE, key=name)
