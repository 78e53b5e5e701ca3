"""Policies, and the delivery mode that is in force for each queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from trivium.management.endpoints import ADMINISTRATORS, POLICIES
from trivium.management.policies import OF_OPERATORS, USUAL, PolicyKind
from trivium.management.rest.operations import CONDITIONS, answer, body_of, listed, operation
from trivium.management.rest.schema import About, Name, Table
from trivium.management.values import shown_table
from trivium.observability.api import ApiAnswer
from trivium.vhost.policies import Policy as CorePolicy
from trivium.vhost.policies import kind_of

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.queues.queue import Queue
    from trivium.vhost.virtual_host import VirtualHost

_Kind = Literal["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"]
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


def _listed(call: Call, kind: PolicyKind) -> ApiAnswer:
    return listed(call, kind.all(call), _view, lambda item: (item[0].name, item[1].name))


def _put(call: Call, kind: PolicyKind) -> None:
    wanted = body_of(call, PolicySetting)
    policy = CorePolicy(
        call.names["policy"],
        wanted.pattern,
        call.table(wanted.definition),
        wanted.apply_to,
        wanted.priority,
        kind.setter(call),
    )
    kind.put(call, policy)


def _is_there(call: Call, kind: PolicyKind) -> bool:
    return kind.of(call.vhost).get(call.names["policy"]) is not None


def list_all(call: Call) -> ApiAnswer:
    """Those that the caller may see."""
    return _listed(call, USUAL)


def show(call: Call) -> ApiAnswer:
    """One."""
    return answer(_view((call.vhost, USUAL.get(call, call.names["policy"]))))


def put(call: Call) -> None:
    """Set one; answered once it is in force everywhere."""
    _put(call, USUAL)


def delete(call: Call) -> None:
    """Remove one; answered once what then holds is in force everywhere."""
    USUAL.delete(call, call.names["policy"])


def operators_list_all(call: Call) -> ApiAnswer:
    """Those of operators that the caller may see."""
    return _listed(call, OF_OPERATORS)


def operators_show(call: Call) -> ApiAnswer:
    """One of operators."""
    return answer(_view((call.vhost, OF_OPERATORS.get(call, call.names["policy"]))))


def operators_put(call: Call) -> None:
    """Set one of operators; answered once it is in force everywhere."""
    _put(call, OF_OPERATORS)


def operators_delete(call: Call) -> None:
    """Remove one of operators; answered once what then holds is in force everywhere."""
    OF_OPERATORS.delete(call, call.names["policy"])


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
        elif "delivery" in vhost.policies.in_force(queue.name, kind_of(queue.arguments)).definition:
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

_ALL_OF_OPERATORS: Final = "vhosts/{vhost}/operator-policies"
_ONE_OF_OPERATORS: Final = "vhosts/{vhost}/operator-policies/{policy}"

ENDPOINTS: Final = (
    operation(
        "GET",
        "operator-policies",
        operators_list_all,
        "Policies of operators: limits that no other policy exceeds",
        result=Policy,
        is_list=True,
    ),
    operation(
        "GET",
        _ALL_OF_OPERATORS,
        operators_list_all,
        "Those of a virtual host",
        result=Policy,
        is_list=True,
    ),
    operation(
        "GET",
        _ONE_OF_OPERATORS,
        operators_show,
        "A policy of operators",
        result=Policy,
        tags=ADMINISTRATORS,
    ),
    operation(
        "PUT",
        _ONE_OF_OPERATORS,
        operators_put,
        "Set a policy of operators",
        tags=ADMINISTRATORS,
        body=PolicySetting,
        headers=CONDITIONS,
        is_there=lambda call: _is_there(call, OF_OPERATORS),
        statuses=(201, 204),
    ),
    operation(
        "DELETE",
        _ONE_OF_OPERATORS,
        operators_delete,
        "Remove a policy of operators",
        tags=ADMINISTRATORS,
        statuses=(204,),
    ),
    operation("GET", "policies", list_all, "Policies", result=Policy, is_list=True),
    operation("GET", _ALL, list_all, "Those of a virtual host", result=Policy, is_list=True),
    operation("GET", _ONE, show, "A policy", result=Policy),
    operation(
        "PUT",
        _ONE,
        put,
        "Set a policy",
        tags=POLICIES,
        body=PolicySetting,
        headers=CONDITIONS,
        is_there=lambda call: _is_there(call, USUAL),
        statuses=(201, 204),
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
