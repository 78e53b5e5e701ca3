"""What is remembered of a broker between two calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakSet

from trivium.management.figures import Churn, everything
from trivium.management.leases import Leases
from trivium.management.orders import Orders
from trivium.management.pacing import Waiting
from trivium.management.places import Places
from trivium.management.sampling import Sampler
from trivium.management.waits import Waits

if TYPE_CHECKING:
    from trivium.management.group_reading import PolledMember
    from trivium.runtime.broker import Broker


class Attempts:
    """Logins over one protocol."""

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0


class ManagementState:
    """What one broker's management counts by itself."""

    def __init__(self, broker: Broker) -> None:
        #: by protocol, since the start or since they were forgotten
        self.attempts: dict[str, Attempts] = {}
        #: ``Broker.elapsed_ms`` when it began
        self.began_at = broker.elapsed_ms
        #: messages that are with users who have no connection
        self.leases = Leases(broker)
        #: requests that publish, and do so later
        self.waiting = Waiting()
        #: requests that wait
        self.waits = Waits(broker)
        #: clients that are sent live figures
        self.places = Places()
        #: the names of queues and streams
        self.orders = Orders()
        #: members of groups that have no connection, as long as they are members
        self.members: WeakSet[PolledMember] = WeakSet()
        #: clients that are sent messages, by user
        self.subscribers: dict[str, int] = {}
        #: the document of our own API, once somebody has asked for it; until then what makes it
        self.openapi = b""
        self.openapi_parts: Iterator[bytes] | None = None
        self.openapi_made: list[bytes] = []
        self.churn = Churn(broker)
        self.sampler = Sampler(broker, lambda: everything(broker, self.churn.figures))
        broker.events.listen(self._heard)

    def _heard(self, event: str, about: dict[str, object]) -> None:
        self.churn.heard(event)
        if event == "vhost.deleted":
            self.orders.forget(str(about["vhost"]))
        elif event == "user.authentication.success":
            self._of(about).succeeded += 1
        elif event == "user.authentication.failure":
            self._of(about).failed += 1
        elif event.startswith(("user.", "permission.", "role.")) and event != "permission.denied":
            self.waits.look_soon()
        # A new user gets nothing of whom others have known by its name.
        if event in ("user.created", "user.deleted"):
            name = str(about["name"])
            self.leases.forget(name)
            for member in [each for each in self.members if each.user == name]:
                member.drop()

    def _of(self, about: dict[str, object]) -> Attempts:
        return self.attempts.setdefault(str(about.get("protocol", "")), Attempts())
