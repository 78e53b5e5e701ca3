"""``policies``, ``operator-policies``, ``parameters``, ``global-parameters``, ``vhost-limits``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from trivium.errors import NotFound
from trivium.management.calls import NOT_FOUND, BadRequest, Call
from trivium.management.endpoints import (
    ADMINISTRATORS,
    ENTERED,
    POLICIES,
    SEEN,
    UNCHECKED,
    WATCHED,
    Endpoint,
)
from trivium.management.global_parameters import GlobalParameters
from trivium.management.limits import set_vhost_limits
from trivium.management.listing import Listing
from trivium.management.values import number_of, shown_table, table_of, text_of
from trivium.observability.api import ApiAnswer
from trivium.vhost.policies import Policy
from trivium.vhost.policy_walk import PolicyWaiter

if TYPE_CHECKING:
    from trivium.messages.message import HeaderValue
    from trivium.routing.exchanges import Declarer
    from trivium.vhost.virtual_host import VirtualHost

_Item = tuple["VirtualHost", Policy]


def shown_policy(item: _Item) -> dict[str, object]:
    """A policy."""
    vhost, policy = item
    return {
        "vhost": vhost.name,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": shown_table(policy.definition),
        "priority": policy.priority,
    }


def policy_of(name: str, body: Mapping[str, object], declarer: Declarer) -> Policy:
    """The policy that a body describes, of ``declarer``. Raises BadRequest, PreconditionFailed."""
    for key in ("pattern", "definition"):
        if key not in body:
            raise BadRequest(f"[{{key_missing,{key}}}]")
    definition: dict[str, HeaderValue] = table_of(body, "definition")
    priority = number_of(body, "priority", 0)
    if abs(priority) >= 1 << 31:
        raise BadRequest("'priority' has at most 31 bits")
    return Policy(
        name,
        text_of(body, "pattern"),
        definition,
        text_of(body, "apply-to", "all"),
        priority,
        declarer,
    )


class _InForce(PolicyWaiter):
    """Answers once policies are in force."""

    def __init__(self, call: Call, answer: ApiAnswer) -> None:
        self._call = call
        self._answer = answer

    def in_force(self) -> None:
        self._call.answer_durably(self._answer)


def _when_in_force(call: Call, vhost: VirtualHost, status: int) -> None:
    waiter = _InForce(call, ApiAnswer(status))
    if vhost.policy_walk.is_done:
        waiter.in_force()
    else:
        vhost.policy_walk.wait(waiter)


def get_all(call: Call) -> ApiAnswer:
    """Those that the caller may see."""
    every = [(vhost, policy) for vhost in call.vhosts() for policy in vhost.policies.all()]
    return Listing(call, every, shown_policy, lambda item: (item[0].name, item[1].name)).answer()


def _found(call: Call) -> Policy:
    found = call.vhost.policies.get(call.names["name"])
    if found is None:
        raise NotFound(NOT_FOUND)
    return found


def get_one(call: Call) -> ApiAnswer:
    """One."""
    return ApiAnswer(200, shown_policy((call.vhost, _found(call))))


def put(call: Call) -> None:
    """Set one."""
    vhost = call.vhost
    policy = policy_of(call.names["name"], call.body, call.policy_setter)
    is_new = vhost.policies.get(policy.name) is None
    vhost.set_policy(policy)
    _when_in_force(call, vhost, 201 if is_new else 204)


def delete(call: Call) -> None:
    """Remove one."""
    vhost = call.vhost
    vhost.delete_policy(_found(call).name)
    _when_in_force(call, vhost, 204)


def get_none(call: Call) -> ApiAnswer:
    """There are no policies of operators beside the others."""
    return Listing(call, (), lambda found: found, lambda _: ("",)).answer()


def find_none(call: Call) -> ApiAnswer:
    """So there is none of a name."""
    raise NotFound(NOT_FOUND)


def refuse_operator_policy(call: Call) -> ApiAnswer:
    """And none can be made."""
    raise BadRequest("there are no operator policies: use a policy of a higher priority")


# Parameters

LIMITS: Final = "vhost-limits"


def parameters_of(vhost: VirtualHost) -> Iterator[dict[str, object]]:
    """What is kept in parameters: the limits of virtual hosts."""
    if vhost.settings.limits:
        yield {
            "component": LIMITS,
            "vhost": vhost.name,
            "name": "limits",
            "value": dict(vhost.settings.limits),
        }


def _parameter_order(found: Mapping[str, object]) -> tuple[str, ...]:
    return str(found["vhost"]), str(found["component"]), str(found["name"])


def get_parameters(call: Call) -> ApiAnswer:
    """All, or those of a component."""
    component = call.names.get("component")
    every = [
        found
        for vhost in call.vhosts()
        for found in parameters_of(vhost)
        if component in (None, found["component"])
    ]
    return Listing(call, every, lambda found: found, _parameter_order).answer()


def _parameter(call: Call) -> dict[str, object]:
    for found in parameters_of(call.vhost):
        if (found["component"], found["name"]) == (call.names["component"], call.names["name"]):
            return found
    raise NotFound(NOT_FOUND)


def get_parameter(call: Call) -> ApiAnswer:
    """One."""
    return ApiAnswer(200, _parameter(call))


def put_parameter(call: Call) -> None:
    """Set one of a component that there is."""
    component = call.names["component"]
    if component != LIMITS:
        raise BadRequest(f"Validation failed\n\ncomponent {component} not found\n")
    is_new = not call.vhost.settings.limits
    set_vhost_limits(call.broker, call.vhost, table_of(call.body, "value"))
    call.created(is_new)


def delete_parameter(call: Call) -> None:
    """Remove one."""
    _parameter(call)
    set_vhost_limits(call.broker, call.vhost, {})
    call.gone()


def get_globals(call: Call) -> ApiAnswer:
    """The global ones."""
    every = GlobalParameters(call.broker).all()
    return Listing(call, every, _shown_global, lambda found: (found[0],)).answer()


def _shown_global(found: tuple[str, object]) -> dict[str, object]:
    return {"name": found[0], "value": found[1]}


def get_global(call: Call) -> ApiAnswer:
    """One of them."""
    name = call.names["name"]
    return ApiAnswer(200, {"name": name, "value": GlobalParameters(call.broker).get(name)})


def put_global(call: Call) -> None:
    """Set one of them."""
    if "value" not in call.body:
        raise BadRequest("[{key_missing,value}]")
    is_new = GlobalParameters(call.broker).set(call.names["name"], call.body["value"])
    call.created(is_new)


def delete_global(call: Call) -> None:
    """Remove one of them."""
    GlobalParameters(call.broker).delete(call.names["name"])
    call.gone()


# Limits of virtual hosts


def get_limits(call: Call) -> ApiAnswer:
    """Those of all that the caller may see, or of one."""
    vhosts = call.vhosts()
    if "vhost" not in call.names and call.watches:
        vhosts = list(call.broker.vhosts.values())
    every = [
        {"vhost": vhost.name, "value": dict(vhost.settings.limits)}
        for vhost in vhosts
        if vhost.settings.limits
    ]
    return Listing(call, every, lambda found: found, lambda found: (str(found["vhost"]),)).answer()


def put_limit(call: Call) -> None:
    """Set one limit."""
    vhost = call.vhost
    value = number_of(call.body, "value")
    limits = {**vhost.settings.limits, call.names["limit"]: value}
    set_vhost_limits(call.broker, vhost, limits)
    call.gone()


def delete_limit(call: Call) -> None:
    """Take one limit away."""
    vhost = call.vhost
    limits = dict(vhost.settings.limits)
    limits.pop(call.names["limit"], None)
    set_vhost_limits(call.broker, vhost, limits)
    call.gone()


_POLICY: Final = "policies/{vhost}/{name}"
_OPERATORS: Final = "operator-policies/{vhost}/{name}"
_PARAMETER: Final = "parameters/{component}/{vhost}/{name}"
_GLOBAL: Final = "global-parameters/{name}"

ENDPOINTS: Final = (
    Endpoint("GET", "policies", get_all),
    Endpoint("GET", "policies/{vhost}", get_all),
    Endpoint("GET", _POLICY, get_one, POLICIES),
    Endpoint("PUT", _POLICY, put, POLICIES, ENTERED),
    Endpoint("DELETE", _POLICY, delete, POLICIES, ENTERED),
    Endpoint("GET", "operator-policies", get_none),
    Endpoint("GET", "operator-policies/{vhost}", get_none),
    Endpoint("GET", _OPERATORS, find_none, ADMINISTRATORS),
    Endpoint("PUT", _OPERATORS, refuse_operator_policy, ADMINISTRATORS, ENTERED),
    Endpoint("DELETE", _OPERATORS, find_none, ADMINISTRATORS, ENTERED),
    Endpoint("GET", "parameters", get_parameters, POLICIES),
    Endpoint("GET", "parameters/{component}", get_parameters, POLICIES),
    Endpoint("GET", "parameters/{component}/{vhost}", get_parameters, POLICIES),
    Endpoint("GET", _PARAMETER, get_parameter, POLICIES),
    Endpoint("PUT", _PARAMETER, put_parameter, ADMINISTRATORS, SEEN),
    Endpoint("DELETE", _PARAMETER, delete_parameter, ADMINISTRATORS, SEEN),
    Endpoint("GET", "global-parameters", get_globals, POLICIES),
    Endpoint("GET", _GLOBAL, get_global, POLICIES),
    Endpoint("PUT", _GLOBAL, put_global, POLICIES),
    Endpoint("DELETE", _GLOBAL, delete_global, POLICIES),
    Endpoint("GET", "vhost-limits", get_limits),
    Endpoint("GET", "vhost-limits/{vhost}", get_limits, vhost=WATCHED),
    Endpoint("PUT", "vhost-limits/{vhost}/{limit}", put_limit, ADMINISTRATORS, UNCHECKED),
    Endpoint("DELETE", "vhost-limits/{vhost}/{limit}", delete_limit, ADMINISTRATORS, UNCHECKED),
)
