"""Authentication in steps: what a client and the broker tell each other until it is decided.

In MQTT 5 that is enhanced authentication (4.12). Each exchange ends where a password's check does,
in ``Authenticator``, so that failures are counted and told alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trivium.security.api_keys import API_KEY
from trivium.security.attempts import JWT, Attempt, Login
from trivium.security.scram import FirstMessage, ScramError, ScramExchange, parse_first

if TYPE_CHECKING:
    from trivium.security.authenticator import Authenticator

#: What shows a token in its one message, by the method that knows it: the name for a JSON Web Token
#: is that of brokers which take them (docs/decisions/0013-authentication-methods-of-mqtt-5.md).
TOKEN_METHODS: Final = {"OAUTH2-JWT": JWT, "API-KEY": API_KEY}


@dataclass(frozen=True, slots=True)
class Step:
    """What comes of one message of a client."""

    #: for the client
    data: bytes = b""
    #: whether the client is to go on; else it is decided
    goes_on: bool = False
    #: None: it is refused
    login: Login | None = None


#: Called with what comes of a message, at once or later.
Stepped = Callable[[Step], None]


class Exchange:
    """One exchange. The next message may be given once the last one's step has come."""

    def __init__(self, authenticator: Authenticator, attempt: Attempt) -> None:
        self._authenticator = authenticator
        #: who the client says it is, as far as it has
        self.attempt = attempt

    def take(self, data: bytes, stepped: Stepped) -> None:
        """Take a message of the client, and call ``stepped`` with what comes of it."""
        raise NotImplementedError


class TokenExchange(Exchange):
    """A token or key, in one message."""

    def take(self, data: bytes, stepped: Stepped) -> None:
        shown = replace(self.attempt, password=data)
        self._authenticator.authenticate(shown, lambda login: stepped(Step(login=login)))


class ScramSteps(Exchange):
    """SCRAM, in two messages."""

    def __init__(self, authenticator: Authenticator, attempt: Attempt) -> None:
        super().__init__(authenticator, attempt)
        self._scram: ScramExchange | None = None
        self._login: Login | None = None

    def take(self, data: bytes, stepped: Stepped) -> None:
        scram = self._scram
        if scram is None:
            self._begin(data, stepped)
            return
        answer: bytes | None = None

        def prove() -> Login | None:
            nonlocal answer
            answer = scram.finish(data)
            return None if answer is None else self._login

        def decided(login: Login | None) -> None:
            # The broker proves itself only to whom it lets in.
            stepped(Step(data=answer if login and answer else b"", login=login))

        self._authenticator.prove(self.attempt, prove, decided)

    def _begin(self, data: bytes, stepped: Stepped) -> None:
        authenticator = self._authenticator
        try:
            first = parse_first(data)
            if self.attempt.username not in ("", first.name):
                raise ScramError("another user than the packet names")
        except ScramError:
            authenticator.prove(self.attempt, lambda: None, lambda _: stepped(Step()))
            return
        self.attempt = replace(self.attempt, username=first.name)
        authenticator.when_ready(lambda: self._challenge(first, stepped))

    def _challenge(self, first: FirstMessage, stepped: Stepped) -> None:
        keys, self._login = self._authenticator.scram_keys(self.attempt)
        self._scram = ScramExchange(first, keys)
        stepped(Step(data=self._scram.challenge, goes_on=True))
