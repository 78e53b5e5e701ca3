"""Policies, and the delivery mode that is in force for each queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from trivium.errors import NotFound
from trivium.management.endpoints import POLICIES
from trivium.management.rest.operations import answer, body_of, listed, operation
from trivium.management.rest.schema import About, Name, Table
from trivium.management.values import shown_table
from trivium.observability.api import ApiAnswer
from trivium.vhost.policies import Policy as CorePolicy
from trivium.vhost.policy_walk import PolicyWaiter

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.queues.queue import Queue
    from trivium.vhost.virtual_host import VirtualHost

_Kind = Literal["queues", "exchanges", "streams", "all"]
_Priority = Annotated[int, About(least=-(1 << 31) + 1, most=(1 << 31) - 1)]
_Mode = Literal["as-published", "at-most-once", "at-least-once", "exactly-once"]
_MODES: Final[tuple[_Mode, ...]] = ("at-most-once", "at-least-once", "exactly-once")


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings for all objects whose name matches a pattern."""

    vhost: Name
    name: Name
    pattern: str
    apply_to: _Kind
    priority: _Priority
    definition: Table
    suspended: Annotated[bool, About(text="whether the exchanges it names are not in force")]


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """A policy that is to be there."""

    pattern: Annotated[str, About(longest=4096)]
    definition: Table
    apply_to: _Kind = "all"
    priority: _Priority = 0


@dataclass(frozen=True, slots=True)
class DeliveryMode:
    """How messages of a queue are treated whose publishers do not insist."""

    vhost: Name
    queue: str
    mode: _Mode
    source: Annotated[
        Literal["argument", "policy", "default"], About(text="who says so: the queue, its policy")
    ]


_Item = tuple["VirtualHost", CorePolicy]


class _InForce(PolicyWaiter):
    """Answers once policies are in force everywhere."""

    def __init__(self, call: Call, status: int) -> None:
        self._call = call
        self._status = status

    def in_force(self) -> None:
        self._call.answer_durably(ApiAnswer(self._status))


def _when_in_force(call: Call, status: int) -> None:
    walk = call.vhost.policy_walk
    waiter = _InForce(call, status)
    if walk.is_done:
        waiter.in_force()
    else:
        walk.wait(waiter)


def _view(item: _Item) -> Policy:
    vhost, policy = item
    kind: Any = policy.apply_to
    return Policy(
        vhost.name,
        policy.name,
        policy.pattern,
        kind,
        policy.priority,
        shown_table(policy.definition),
        not policy.passes_on,
    )


def list_all(call: Call) -> ApiAnswer:
    """Those that the caller may see."""
    every = [(vhost, policy) for vhost in call.vhosts() for policy in vhost.policies.all()]
    return listed(call, every, _view, lambda item: (item[0].name, item[1].name))


def _found(call: Call) -> CorePolicy:
    found = call.vhost.policies.get(call.names["policy"])
    if found is None:
        raise NotFound(f"no policy '{call.names['policy']}'")
    return found


def show(call: Call) -> ApiAnswer:
    """One."""
    return answer(_view((call.vhost, _found(call))))


def put(call: Call) -> None:
    """Set one; answered once it is in force everywhere."""
    wanted = body_of(call, PolicySetting)
    vhost = call.vhost
    policy = CorePolicy(
        call.names["policy"],
        wanted.pattern,
        call.table(wanted.definition),
        wanted.apply_to,
        wanted.priority,
        call.policy_setter,
    )
    is_new = vhost.policies.get(policy.name) is None
    vhost.set_policy(policy)
    _when_in_force(call, 201 if is_new else 204)


def delete(call: Call) -> None:
    """Remove one; answered once what then holds is in force everywhere."""
    call.vhost.delete_policy(_found(call).name)
    _when_in_force(call, 204)


def delivery_modes(call: Call) -> ApiAnswer:
    """Those in force, by queue."""

    def every() -> Iterator[tuple[VirtualHost, Queue]]:
        for vhost in call.vhosts():
            for queue in list(vhost.queues.values()):
                yield vhost, queue

    def view(item: tuple[VirtualHost, Queue]) -> DeliveryMode | None:
        vhost, queue = item
        if queue.is_deleted:
            return None
        number = queue.settings.delivery
        mode: _Mode = "as-published" if number < 0 else _MODES[number]
        source: Literal["argument", "policy", "default"] = "default"
        if "x-delivery" in queue.arguments:
            source = "argument"
        elif "delivery" in vhost.policies.effective(queue.name, "queues"):
            source = "policy"
        return DeliveryMode(vhost.name, queue.name, mode, source)

    return listed(
        call,
        every(),
        view,
        lambda item: (item[0].name, item[1].name),
        lambda item: not item[1].adapter,
    )


_ALL: Final = "vhosts/{vhost}/policies"
_ONE: Final = "vhosts/{vhost}/policies/{policy}"

ENDPOINTS: Final = (
    operation("GET", "policies", list_all, "Policies", result=Policy, is_list=True),
    operation("GET", _ALL, list_all, "Those of a virtual host", result=Policy, is_list=True),
    operation("GET", _ONE, show, "A policy", result=Policy),
    operation(
        "PUT", _ONE, put, "Set a policy", tags=POLICIES, body=PolicySetting, statuses=(201, 204)
    ),
    operation("DELETE", _ONE, delete, "Remove a policy", tags=POLICIES, statuses=(204,)),
    operation(
        "GET",
        "vhosts/{vhost}/delivery-modes",
        delivery_modes,
        "Delivery modes in force, by queue",
        result=DeliveryMode,
        is_list=True,
    ),
)
