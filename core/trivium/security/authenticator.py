"""Decides whether a client may connect, the same for every protocol.

A listener has a chain of methods. The first one that knows the user decides.

Once any password is hashed every refusal takes a hash's work, of a user that does not exist too:
the time until the answer does not tell who exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

from trivium.listen import ListenerConfig
from trivium.security.attempts import Attempt, Login, Method, Verdict
from trivium.security.failures import Failures
from trivium.security.identity import Identity
from trivium.security.passwords import verify_password
from trivium.security.stored import MAX_PASSWORD_BYTES, Remembered, RunInPool

#: longest password or token that is looked at; what some issuers sign has several KiB
MAX_CREDENTIAL_BYTES: Final = 16 * 1024

#: Called with who the client is, None when it may not connect.
Done = Callable[[Login | None], None]


class Clock:
    """The time that the authenticator goes by."""

    def now(self) -> int:
        """Milliseconds on a clock that is never set."""
        return 0

    def call_later(self, milliseconds: int, work: Callable[[], None]) -> None:
        """Call `work` after some time."""
        work()


class Authenticator:
    """The methods of one broker; `chain` names those of listeners that name none, in order."""

    def __init__(
        self,
        methods: Iterable[Method],
        chain: tuple[str, ...],
        anonymous: Literal["loopback", "always", "never"],
        remembered: Remembered,
        run_in_pool: RunInPool,
        clock: Clock,
        anonymous_tags: frozenset[str] = frozenset(),
    ) -> None:
        self._methods = {method.name: method for method in methods}
        self._chain = chain
        self._anonymous = anonymous
        self._remembered = remembered
        self._run_in_pool = run_in_pool
        #: who clients without credentials are
        self.anonymous = Identity("", anonymous_tags, is_anonymous=True)
        self._clock = clock
        self._failures = Failures()
        # By chain, what an unknown user's password is compared with, for the work alone.
        self._decoys: dict[tuple[str, ...], list[str]] = {}

    def admits_anonymous(self, listener: ListenerConfig) -> bool:
        """Whether clients without credentials may connect to this listener."""
        rule = listener.anonymous or self._anonymous
        return listener.is_loopback if rule == "loopback" else rule == "always"

    def authenticate(self, attempt: Attempt, done: Done) -> None:
        """Call `done` with who the client is, None when it may not connect: at once, or later.

        It is later where a hash must be computed or somebody else must be asked.
        """
        if len(attempt.password) > MAX_CREDENTIAL_BYTES:
            done(None)
            return
        chain = attempt.methods or self._chain
        if attempt.only is not None:
            chain = tuple(name for name in chain if name == attempt.only)
        shows_nothing = attempt.username is None and not attempt.password
        if shows_nothing:
            self._ask(chain, 0, attempt, done)
            return

        def decided(login: Login | None) -> None:
            if login is None:
                self._failures.failed(attempt, self._clock.now())
            else:
                self._failures.succeeded(attempt)
            done(login)

        wait = self._failures.wait(attempt, self._clock.now())
        if wait:
            self._clock.call_later(wait, lambda: self._ask(chain, 0, attempt, decided))
        else:
            self._ask(chain, 0, attempt, decided)

    def current(self, login: Login) -> Login | None:
        """What holds now for a client that is in; None when it must go."""
        method = self._methods.get(login.method)
        return login if method is None else method.current(login)

    def renew(self, login: Login, attempt: Attempt, done: Done) -> None:
        """Call `done` with what holds from now on for a client that shows a new credential.

        None when it is refused, or is another user's. What does not expire needs no renewal.
        """
        if not login.expires_ms:
            done(login)
            return

        def decided(found: Login | None) -> None:
            is_same = found is not None and found.identity.name == login.identity.name
            done(found if is_same else None)

        self.authenticate(attempt, decided)

    def changed(self) -> None:
        """Users or their passwords are others than before."""
        self._decoys.clear()

    def look(self, now_ms: int) -> None:
        """Called about once a second: see whether something changed outside."""
        for method in self._methods.values():
            method.look(now_ms)

    def _ask(self, chain: tuple[str, ...], at: int, attempt: Attempt, done: Done) -> None:
        """Ask the method at a place of the chain, and those behind it."""
        if at == len(chain):
            self._nobody(chain, attempt, done)
            return

        def decided(verdict: Verdict) -> None:
            if not verdict.is_known:
                self._ask(chain, at + 1, attempt, done)
            elif verdict.login is not None or verdict.has_hashed:
                done(verdict.login)
            else:
                self._refuse(chain, attempt, done)

        self._methods[chain[at]].check(attempt, decided)

    def _nobody(self, chain: tuple[str, ...], attempt: Attempt, done: Done) -> None:
        """No method knows who this is."""
        has_none = attempt.username is None and not attempt.password
        if attempt.admits_anonymous and (has_none or attempt.ignores_unknown):
            done(Login(identity=self.anonymous))
        elif has_none:
            done(None)
        else:
            self._refuse(chain, attempt, done)

    def _refuse(self, chain: tuple[str, ...], attempt: Attempt, done: Done) -> None:
        """Answer no, after the work of checking the hashed password of one of the users.

        It is the same one each time, since hashes may differ in what they cost.
        """
        decoys = self._decoys.get(chain)
        if decoys is None:
            decoys = [stored for name in chain for stored in self._methods[name].hashes()]
            self._decoys[chain] = decoys
        if not decoys or len(attempt.password) > MAX_PASSWORD_BYTES:
            done(None)
            return
        decoy = decoys[self._remembered.choose(attempt.username or "", len(decoys))]
        self._run_in_pool(lambda: verify_password(decoy, attempt.password), lambda _: done(None))
