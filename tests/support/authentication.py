"""A pool and attempts for the authenticator, without a broker."""

from __future__ import annotations

from collections.abc import Callable

from trivium.runtime.broker import Broker
from trivium.security.attempts import Attempt, Login
from trivium.security.authenticator import Authenticator
from trivium.security.clock import Clock
from trivium.security.identity import Identity
from trivium.security.permissions import Grants

#: what mosquitto_passwd of Debian made of "right", with -H sha512-pbkdf2 and -H sha512
MOSQUITTO_7 = (
    "$7$101$+9z7mHqwGC2W566Z$2ThRFsETmRcQw79pz1RvTYysEIirhcf8Kb4mCGkWyqUaiVR4fMal00+Y6u13pdbXemgdrz"
    "CIKIsNq1RsguujYA=="
)
MOSQUITTO_6 = (
    "$6$AfSQ7TInvNSCnfpY$4YtGCCiOKFdmAvFtwdeAjO5BR+H+/SbJHjWbpXNXME+dHtOKgp7bPCuQYu9nr79de8Vco/"
    "6foaOtZyvZXEADCw=="
)


def permit(broker: Broker, *names: str) -> None:
    """Let users do everything in the virtual host ``/``."""
    for name in names:
        grants = Grants()
        grants.permit("/", ".*", ".*", ".*")
        broker.permissions.set_user(name, grants)


class Moved(Clock):
    """One that the test moves."""

    def __init__(self) -> None:
        self.at = 0
        self._later: list[tuple[int, Callable[[], None]]] = []

    def now(self) -> int:
        return self.at

    def call_later(self, milliseconds: int, work: Callable[[], None]) -> None:
        self._later.append((self.at + milliseconds, work))

    def move(self, milliseconds: int) -> None:
        end = self.at + milliseconds
        while due := [each for each in self._later if each[0] <= end]:
            first = min(due, key=lambda each: each[0])
            self._later.remove(first)
            self.at = max(self.at, first[0])
            first[1]()
        self.at = end


class Pool:
    """Keeps the work until the test lets it run, and counts it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], bool], Callable[[bool], None]]] = []
        self.done = 0

    def __call__(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        self.waiting.append((work, done))

    def run(self) -> None:
        while self.waiting:
            work, done = self.waiting.pop(0)
            self.done += 1
            done(work())


def attempt(
    authenticator: Authenticator,
    pool: Pool,
    username: str | None,
    password: bytes,
    local: bool = True,
    methods: tuple[str, ...] = (),
) -> Identity | None:
    answers: list[Login | None] = []
    shown = Attempt(username=username, password=password, is_loopback=local, methods=methods)
    authenticator.authenticate(shown, answers.append)
    pool.run()
    (answer,) = answers
    return None if answer is None else answer.identity
