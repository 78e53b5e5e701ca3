"""What a client shows of itself, what one method says of it, and what holds once it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from trivium.common.addresses import subscriber_address
from trivium.security.identity import Identity

#: Names of the methods whose modules are loaded only where they are set up.
JWT: Final = "jwt"
HTTP: Final = "http"


def _stays() -> bool:
    return False


def _does_nothing() -> None:
    pass


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A client that wants to come in.

    It is not changed once it is made, nor frozen: every client has one, and making a frozen one of
    so many fields takes twice as long.
    """

    #: None: it named nobody
    username: str | None
    password: bytes = field(default=b"", repr=False)
    #: of the peer, without its port
    address: str = ""
    is_loopback: bool = False
    #: names of the methods to ask, in order; () is those of `[auth]`
    methods: tuple[str, ...] = ()
    #: the only one of them to ask, as the client wants it; "" is none
    only: str | None = None
    #: whether clients without credentials may come in here
    admits_anonymous: bool = False
    #: whether credentials that no method knows count as none
    ignores_unknown: bool = False
    protocol: str = ""
    #: the name of the listener that it came by
    listener: str = ""
    client_id: str = ""
    vhost: str = ""
    #: whose certificate TLS has verified; "" for nobody's
    certificate_user: str = ""
    #: whether that certificate says several names, so that it is nobody's
    is_certificate_ambiguous: bool = False
    #: the user who is in and renews what it came with; None: it comes in
    renews: str | None = None
    #: whether the client has left, so that nobody waits for an answer
    is_gone: Callable[[], bool] = field(default=_stays, repr=False, compare=False)
    #: called before it is refused because there is too much to do, whoever it is
    is_put_off: Callable[[], None] = field(default=_does_nothing, repr=False, compare=False)

    @property
    def source(self) -> str:
        """What its address is counted by: of IPv6 a network of 64 bits, which one client has."""
        return subscriber_address(self.address)

    @property
    def shows_nothing(self) -> bool:
        """Whether it has no credentials."""
        return self.username is None and not self.password


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A client that is in, until what it came with does not hold any more."""

    identity: Identity
    #: name of the method that let it in
    method: str = ""
    #: the name by which the method knows it, and what it is then compared with
    key: str = ""
    credential: str = field(default="", repr=False)
    #: wall clock in milliseconds; 0 for never
    expires_ms: int = 0
    #: where the method says that it goes if it names no virtual host; "" where it says nothing
    virtual_host: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a method says of an attempt."""

    login: Login | None = None
    #: whether the method decides; else the next one is asked
    is_known: bool = True
    #: the hash that its password was checked against; "" for none
    hashed: str = field(default="", repr=False)
    #: whether its password was not looked at: too many others wait, or its own time is over
    is_busy: bool = False
    #: why it is refused, for those who run the broker; "" where that is plain
    reason: str = ""


UNKNOWN = Verdict(is_known=False)
REFUSED = Verdict()
BUSY = Verdict(is_busy=True)

#: Called with a verdict, at once or later.
Decided = Callable[[Verdict], None]


class Method:
    """A way to authenticate."""

    #: as the configuration has it
    name = ""
    #: whether its users may have SCRAM keys
    has_scram = False
    #: whether it may decide otherwise for another virtual host
    decides_by_vhost = False

    def check(self, attempt: Attempt, decided: Decided) -> None:
        """Call `decided` with what is to be said of the attempt."""
        raise NotImplementedError

    def recognise(self, attempt: Attempt) -> Verdict | None:
        """What is to be said at once of a secret that nobody can guess; None: ``check`` says it."""
        return None

    def current(self, login: Login) -> Login | None:
        """What holds now for a client that this method let in; None when it must go."""
        return login

    def hashes(self) -> list[str]:
        """The hashes that attempts can be compared with."""
        return []

    def iterations(self) -> list[int]:
        """Those of the SCRAM keys that its users have."""
        return []

    def when_ready(self, work: Callable[[], None]) -> None:
        """Call `work` once all SCRAM keys are there that its users have: at once, or later."""
        work()

    def look(self, now_ms: int) -> None:
        """Called about once a second: see whether something changed outside."""
