"""One call of an endpoint: who calls, what it is about, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from trivium.common.quotas import LISTENER, USER, VHOST, Account
from trivium.errors import AccessRefused, NotFound
from trivium.management.endpoints import WATCHERS, Endpoint
from trivium.management.endpoints import BadRequest as BadRequest
from trivium.management.topology import Operator, operator
from trivium.management.values import check_names
from trivium.observability.api import OWN, ApiAnswer, ApiRefused, ApiRequest, refusal
from trivium.runtime.adapter import connection_name
from trivium.security.identity import ADMINISTRATOR
from trivium.storage.base import DurabilityWaiter

if TYPE_CHECKING:
    from trivium.common.values import HeaderValue
    from trivium.management.state import ManagementState
    from trivium.routing.exchanges import Declarer
    from trivium.runtime.adapter import Connection
    from trivium.runtime.broker import Broker
    from trivium.security.identity import Identity
    from trivium.security.permissions import Access
    from trivium.vhost.virtual_host import VirtualHost

Done = Callable[[ApiAnswer], None]

#: What the reason of a 404 is where nothing else is said.
NOT_FOUND: Final = "Not Found"


def _nothing() -> None:
    """There is nothing to give back."""


class _Durable(DurabilityWaiter):
    """Answers once a write batch is durable."""

    def __init__(self, answer: ApiAnswer, done: Done) -> None:
        self._answer = answer
        self._done = done

    def write_batch_durable(self, write_batch: int) -> None:
        self._done(self._answer)


class Call:
    """A call of ``endpoint``, whose path has ``names``."""

    def __init__(
        self,
        broker: Broker,
        state: ManagementState,
        request: ApiRequest,
        endpoint: Endpoint,
        names: dict[str, str],
        done: Done,
        later: Callable[[Callable[[], ApiAnswer | None]], None],
    ) -> None:
        self.broker = broker
        self.state = state
        self.request = request
        self.endpoint = endpoint
        self.names = names
        self.done = done
        #: does some work in the name of this call, and answers as a handler does
        self.later = later
        #: whether what it publishes counts for the rates already
        self.is_paid = False
        self._vhost: VirtualHost | None = None

    @property
    def identity(self) -> Identity:
        """Who calls."""
        return self.request.identity

    @property
    def accounts(self) -> tuple[Account, Account, Account]:
        """Those of the caller, the virtual host of the path and the listener."""
        quotas = self.broker.quotas
        return (
            quotas.account(USER, self.identity.name),
            quotas.account(VHOST, self.vhost.name),
            quotas.account(LISTENER, self.request.listener.name),
        )

    @property
    def watches(self) -> bool:
        """Whether the caller may see what other clients do."""
        return bool(self.identity.tags & WATCHERS)

    def may_go_on(self, now_ms: int) -> bool:
        """Whether what the caller came with still holds, unchanged, at this time of the wall clock:
        for answers that go on."""
        request = self.request
        if request.session is not None:
            return self.broker.authentication.sessions.use(request.session)
        login = request.login
        return login is None or self.broker.authenticator.still_holds(login, now_ms)

    def require_login(self, give_back: Callable[[], None] = _nothing) -> None:
        """Raise ApiRefused, 401, after ``give_back``, where what the caller came with does not hold
        any more: its body, or what it waited for, took a while."""
        if not self.may_go_on(self.broker.now_ms):
            give_back()
            text = "what the request came with does not hold any more"
            raise ApiRefused(refusal(401, "not_authorised", text))

    def go_on(
        self, work: Callable[[], ApiAnswer | None], give_back: Callable[[], None] = _nothing
    ) -> None:
        """``later`` for a call that has waited: it is answered 401, after ``give_back``, where what
        the caller came with does not hold any more, and 404 where its virtual host is gone. Where
        the caller is gone nothing is done."""
        self.state.waits.end(self)

        def resumed() -> ApiAnswer | None:
            if self.request.has_left():
                give_back()
                # Nobody gets it.
                return ApiAnswer(408)
            self.require_login(give_back)
            vhost = self._vhost
            if vhost is not None and self.broker.vhosts.get(vhost.name) is not vhost:
                give_back()
                raise NotFound(f"no virtual host '{vhost.name}'")
            return work()

        self.later(resumed)

    def require_own(self, user: str) -> None:
        """Raise AccessRefused unless the caller may end what a user's clients have: who watches
        sees it, and no more (RabbitMQ: an administrator closes connections of others)."""
        if ADMINISTRATOR not in self.identity.tags and user != self.identity.name:
            text = f"what user '{user}' has is ended by that user or an administrator"
            self.broker.permissions.denied(f"HTTP API: {text}", self.identity)
            raise AccessRefused(text)

    def end(self, connection: Connection, reason: str) -> None:
        """Close a client's connection, for a reason that it is told. Raises AccessRefused."""
        name = connection.identity.name
        self.require_own(name)
        connection.managed().close(reason)
        self.broker.events.tell(
            "connection.ended", connection=connection_name(connection), owner=name, why=reason
        )

    def may_see(self, vhost: str) -> bool:
        """Whether the caller may see what is in a virtual host."""
        return ADMINISTRATOR in self.identity.tags or self.may_enter(vhost)

    @property
    def vhost(self) -> VirtualHost:
        """The virtual host of the path; once found also when it is deleted before a long answer is
        made. Raises NotFound."""
        found = self._vhost
        if found is None:
            found = self._vhost = self.broker.vhosts.get(self.names["vhost"])
        if found is None:
            name = self.names["vhost"]
            is_own = self.request.path[:1] == (OWN,)
            raise NotFound(f"no virtual host '{name}'" if is_own else NOT_FOUND)
        return found

    @property
    def access(self) -> Access:
        """What the caller may do in the virtual host of the path."""
        return self.broker.permissions.access(self.identity, self.vhost.name)

    @property
    def operator(self) -> Operator:
        """The caller as who declares something in the virtual host of the path."""
        return operator(self.broker, self.identity, self.vhost.name)

    @property
    def policy_setter(self) -> Declarer:
        """The caller as who sets a policy there."""
        return self.broker.authentication.declarers.of_policy(self.identity, self.vhost.name)

    def may_enter(self, vhost: str) -> bool:
        """Whether the caller has any permission in a virtual host."""
        return self.broker.permissions.access(self.identity, vhost).may_enter

    def vhosts(self) -> list[VirtualHost]:
        """The virtual hosts in which the caller may see, or that of the path; by name."""
        if "vhost" in self.names:
            return [self.vhost]
        every = [vhost for _, vhost in sorted(self.broker.vhosts.items())]
        return [vhost for vhost in every if self.may_see(vhost.name)]

    @property
    def body(self) -> dict[str, object]:
        """The JSON object of the body, empty without one. Raises BadRequest."""
        body = self.request.body
        if body is None:
            return {}
        if not isinstance(body, dict):
            raise BadRequest("a body is a JSON object")
        return body

    def table(self, values: Mapping[str, object]) -> dict[str, HeaderValue]:
        """JSON's own values, which are checked, as arguments or headers. Raises BadRequest."""
        check_names(values, "a table")
        found: dict[str, Any] = dict(values)
        return found

    def asks(self, name: str) -> bool:
        """Whether the query has ``name=true``."""
        return self.request.query.get(name) == "true"

    def answer_durably(self, answer: ApiAnswer) -> None:
        """Answer once all is durable that was done until now."""
        storage = self.broker.storage
        if storage.is_durable:
            storage.wait(_Durable(answer, self.done))
        else:
            self.done(answer)

    def created(self, is_new: bool) -> None:
        """Answer, durably, that something is there: 201 where it was not before, else 204."""
        self.answer_durably(ApiAnswer(201 if is_new else 204))

    def gone(self) -> None:
        """Answer, durably, that something is not there any more."""
        self.answer_durably(ApiAnswer(204))
