"""Decides whether a client may connect, the same for every protocol.

A listener has a chain of methods. The first one that knows the user decides.

Once any password is hashed every refusal takes the same work, of a user that does not exist too: a
hash of each kind that there is. So the time until the answer does not tell who exists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Literal

from trivium.common.events import Events
from trivium.listen import ListenerConfig
from trivium.security.attempts import BUSY, REFUSED, Attempt, Decided, Login, Method, Verdict
from trivium.security.clock import Clock
from trivium.security.exchanges import TOKEN_METHODS, Exchange, ScramSteps, TokenExchange
from trivium.security.failures import Failures
from trivium.security.hash_queue import HashQueue
from trivium.security.identity import Identity
from trivium.security.lines import Turns
from trivium.security.passwords import kind_of, verify_password, work_of
from trivium.security.scram import SCRAM_SHA_256, MadeUpKeys, ScramKeys
from trivium.security.stored import MAX_PASSWORD_BYTES, PasswordMethod

logger = logging.getLogger(__name__)

#: longest password, token or user name that is looked at; what some issuers sign has several KiB
MAX_CREDENTIAL_BYTES: Final = 16 * 1024

#: kinds of hashes whose work a refusal takes, the costliest ones: more would make refusals too dear
MAX_KINDS: Final = 4

#: the `reason` of a failure where nobody looked at what the client showed
PUT_OFF: Final = "too many others want to come in"

#: Called with who the client is, None when it may not connect.
Done = Callable[[Login | None], None]


class Authenticator:
    """The methods of one broker; `chain` names those of listeners that name none, in order."""

    def __init__(
        self,
        methods: Iterable[Method],
        chain: tuple[str, ...],
        anonymous: Literal["loopback", "always", "never"],
        hashes: HashQueue,
        clock: Clock,
        anonymous_tags: frozenset[str] = frozenset(),
        events: Events | None = None,
    ) -> None:
        self._methods = {method.name: method for method in methods}
        self._chain = chain
        self._anonymous = anonymous
        self._hashes = hashes
        #: who clients without credentials are
        self.anonymous = Identity("", anonymous_tags, is_anonymous=True)
        self._clock = clock
        self._events = events or Events()
        self._failures = Failures()
        self._turns = Turns(self._failures, clock, self._events, hashes.patience_ms)
        # By chain a hash of each kind, the costliest first: what a password that is refused is
        # compared with, for the work alone.
        self._decoys: dict[tuple[str, ...], dict[str, str]] = {}
        #: the SCRAM keys of users who have none; None: SCRAM is off
        self.made_up: MadeUpKeys | None = None
        # By chain, the iterations that users have, for those who have none.
        self._iterations: dict[tuple[str, ...], list[int]] = {}

    def admits_anonymous(self, listener: ListenerConfig, is_local: bool = True) -> bool:
        """Whether clients without credentials may connect to this listener: one that is not
        ``is_local`` speaks for somebody elsewhere, though it is on this machine."""
        rule = listener.anonymous or self._anonymous
        return is_local and listener.is_loopback if rule == "loopback" else rule == "always"

    def authenticate(self, attempt: Attempt, done: Done) -> None:
        """Call `done` with who the client is, None when it may not connect: at once, or later.

        It is later where a hash must be computed or somebody else must be asked.
        """
        if max(len(attempt.password), len(attempt.username or "")) > MAX_CREDENTIAL_BYTES:
            self._ended(attempt, REFUSED, done)
            return
        chain = self._chain_of(attempt)
        login = self._recognised(chain, attempt)
        if login is not None and attempt.renews in (None, login.identity.name):
            # No count is cleared: it tells nothing of who guesses passwords.
            self._answer(attempt, login, done)
            return
        self._decide(attempt, lambda decided: self._ask(chain, 0, attempt, decided), done)

    def exchange(self, name: str, attempt: Attempt) -> Exchange | None:
        """The exchange of this name, by which a client comes in or renews what it came with.

        None where there is no such exchange. Whatever else the client shows is not looked at.
        """
        attempt = replace(
            attempt,
            username=attempt.username or "",
            password=b"",
            admits_anonymous=False,
            ignores_unknown=False,
        )
        chain = self._chain_of(attempt)
        method = TOKEN_METHODS.get(name)
        if method is not None and method in chain:
            return TokenExchange(self, replace(attempt, only=method))
        has_scram = any(self._methods[each].has_scram for each in chain)
        if name == SCRAM_SHA_256 and self.made_up is not None and has_scram:
            return ScramSteps(self, attempt)
        return None

    def prove(self, attempt: Attempt, check: Callable[[], Login | None], done: Done) -> None:
        """Call `done` with what `check` says of a client that has proved who it is, or has not."""
        self._decide(attempt, lambda decided: decided(Verdict(self._still(check()))), done)

    def when_ready(self, work: Callable[[], None]) -> None:
        """Call `work` once all SCRAM keys are there, at once or later: so long everybody waits,
        whether or not they are a user whose keys are missing."""
        for method in self._methods.values():
            if method.has_scram:
                method.when_ready(work)
                return
        work()

    def scram_keys(self, attempt: Attempt) -> tuple[ScramKeys, Login | None]:
        """The keys of a user, and what holds once it has proved that it knows the password.

        Those of one who has none, or is not known, are made up, and nothing holds.
        """
        assert self.made_up is not None
        name = attempt.username or ""
        chain = self._chain_of(attempt)
        counts = self._iterations.get(chain)
        if counts is None:
            counts = [count for each in chain for count in self._methods[each].iterations()]
            self._iterations[chain] = counts
        made_up = self.made_up.of(name, counts)
        for each in chain:
            method = self._methods[each]
            if not isinstance(method, PasswordMethod):
                continue
            user = method.find(name)
            if user is not None:
                if user.scram is None or (user.is_local and not attempt.is_loopback):
                    return made_up, None
                return user.scram, method.login(user)
        return made_up, None

    def current(self, login: Login) -> Login | None:
        """What holds now for a client that is in; None when it must go."""
        method = self._methods.get(login.method)
        return login if method is None else method.current(login)

    def still_holds(self, login: Login, now_ms: int) -> bool:
        """Whether all that a client came with holds, unchanged, at this time of the wall clock."""
        current = self.current(login)
        return (
            current is not None
            and current.identity == login.identity
            and not 0 < login.expires_ms <= now_ms
        )

    def renew(self, login: Login, attempt: Attempt, done: Done) -> None:
        """Call `done` with what holds from now on for a client that shows a new credential.

        None when it is refused, or is another user's. What does not expire needs no renewal.
        """
        if not login.expires_ms:
            done(login)
            return
        self.authenticate(replace(attempt, renews=login.identity.name), done)

    def decides_by_vhost(self, login: Login) -> bool:
        """Whether what let a client in is to be asked again, by ``enter``, once the client names
        its virtual host."""
        method = self._methods.get(login.method)
        return method is not None and method.decides_by_vhost

    def enter(self, login: Login, attempt: Attempt, done: Done) -> None:
        """Call `done` with what holds in the virtual host of an attempt that has led to ``login``
        before it was named; None where the client may not enter it. It is no login of its own:
        nothing is counted, and nothing told."""
        method = self._methods[login.method]
        method.check(attempt, lambda verdict: done(verdict.login))

    def changed(self) -> None:
        """Users or their passwords are others than before."""
        self._decoys.clear()
        self._iterations.clear()

    def look(self, now_ms: int) -> None:
        """Called about once a second: see whether something changed outside."""
        for method in self._methods.values():
            method.look(now_ms)

    def _chain_of(self, attempt: Attempt) -> tuple[str, ...]:
        """The methods that are asked, in order."""
        chain = attempt.methods or self._chain
        if attempt.only is None:
            return chain
        return tuple(name for name in chain if name == attempt.only)

    def _recognised(self, chain: tuple[str, ...], attempt: Attempt) -> Login | None:
        """Who shows what nobody can guess, a token, key or certificate, and needs no turn: others
        who fail behind its address do not keep it out. None: it takes its turn, and is told then
        what it shows is worth, so that a wrong one waits.
        """
        now = self._clock.now()
        if attempt.shows_nothing or not self._failures.may_look(attempt, now):
            return None
        for name in chain:
            verdict = self._methods[name].recognise(attempt)
            if verdict is None:
                return None
            if verdict.is_known:
                if verdict.login is None:
                    self._failures.looked(attempt, now)
                return verdict.login
        return None

    def _decide(self, attempt: Attempt, ask: Callable[[Decided], None], done: Done) -> None:
        """Have `ask` decide when it is the attempt's turn."""
        if attempt.shows_nothing:
            ask(lambda verdict: self._answer(attempt, verdict.login, done, verdict.reason))
            return

        def decided(verdict: Verdict) -> None:
            if verdict.is_busy:
                attempt.is_put_off()
            try:
                self._ended(attempt, verdict, done)
            finally:
                self._turns.end(attempt, _is_own(attempt, verdict.login))

        def begin(may_begin: bool) -> None:
            if may_begin:
                ask(decided)
            else:
                # Nobody looked at it, whoever it is: it is no failure.
                attempt.is_put_off()
                self._answer(attempt, None, done, PUT_OFF)

        self._turns.take(attempt, begin)

    def _ended(self, attempt: Attempt, verdict: Verdict, done: Done) -> None:
        """An attempt to show who one is has ended, well or badly.

        One whose password was not looked at has failed too: what counts must not tell who exists.
        """
        login = verdict.login
        if login is not None and attempt.renews not in (None, login.identity.name):
            # What somebody else came with is not renewed by it.
            login = None
        if login is None:
            self._failed(attempt)
        elif _is_own(attempt, login):
            self._failures.succeeded(attempt)
        self._answer(attempt, login, done, PUT_OFF if verdict.is_busy else verdict.reason)

    def _failed(self, attempt: Attempt) -> None:
        for by, name in self._failures.failed(attempt, self._clock.now()):
            logger.warning("logins of %s %r fail again and again: they are slowed down", by, name)
            self._events.tell("user.authentication.slowed", by=by, **{by: name})

    def _answer(self, attempt: Attempt, login: Login | None, done: Done, reason: str = "") -> None:
        """Tell what came of an attempt: of each one here. `reason`: why it failed, if not plain."""
        self._events.tell(
            "user.authentication.failure" if login is None else "user.authentication.success",
            user=attempt.username if login is None else login.identity.name,
            method="" if login is None else login.method or "anonymous",
            address=attempt.address,
            protocol=attempt.protocol,
            listener=attempt.listener,
            vhost=attempt.vhost,
            client_id=attempt.client_id,
            **({"reason": reason} if reason else {}),
        )
        done(login)

    def _still(self, login: Login | None) -> Login | None:
        """What still holds: between two messages the user may have got another password."""
        return None if login is None else self.current(login)

    def _ask(self, chain: tuple[str, ...], at: int, attempt: Attempt, done: Decided) -> None:
        """Ask the method at a place of the chain, and those behind it."""
        if at == len(chain):
            self._nobody(chain, attempt, done)
            return

        def decided(verdict: Verdict) -> None:
            if not verdict.is_known:
                self._ask(chain, at + 1, attempt, done)
            elif verdict.login is not None or verdict.is_busy:
                done(verdict)
            else:
                self._refuse(
                    chain,
                    attempt,
                    verdict.hashed,
                    lambda found: done(replace(found, reason=verdict.reason)),
                )

        self._methods[chain[at]].check(attempt, decided)

    def _nobody(self, chain: tuple[str, ...], attempt: Attempt, done: Decided) -> None:
        """No method knows who this is."""
        has_none = attempt.shows_nothing
        if attempt.admits_anonymous and (has_none or attempt.ignores_unknown):
            done(Verdict(Login(identity=self.anonymous)))
        elif has_none:
            done(REFUSED)
        else:
            self._refuse(chain, attempt, "", done)

    def _refuse(self, chain: tuple[str, ...], attempt: Attempt, hashed: str, done: Decided) -> None:
        """Answer no, after the work of checking a hash of each kind that ``hashed`` is not of."""
        decoys = self._decoys_of(chain)
        if hashed:
            kind = kind_of(hashed)
            left = [stored for each, stored in decoys.items() if each != kind]
        else:
            left = list(decoys.values())
        if not left or len(attempt.password) > MAX_PASSWORD_BYTES:
            done(REFUSED)
            return

        def work() -> bool:
            for stored in left:
                verify_password(stored, attempt.password)
            return False

        self._hashes.run(attempt, work, lambda result: done(BUSY if result is None else REFUSED))

    def _decoys_of(self, chain: tuple[str, ...]) -> dict[str, str]:
        decoys = self._decoys.get(chain)
        if decoys is None:
            found: dict[str, str] = {}
            for name in chain:
                for stored in self._methods[name].hashes():
                    found.setdefault(kind_of(stored), stored)
            costliest = sorted(found, key=lambda kind: work_of(found[kind]), reverse=True)
            decoys = {kind: found[kind] for kind in costliest[:MAX_KINDS]}
            self._decoys[chain] = decoys
        return decoys


def _is_own(attempt: Attempt, login: Login | None) -> bool:
    """Whether an attempt was right for the user whom it names: beside a token may stand any."""
    return login is not None and attempt.username in (None, "", login.identity.name)
