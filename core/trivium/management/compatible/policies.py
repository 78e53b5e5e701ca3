"""``policies``, ``operator-policies``, ``parameters``, ``global-parameters``, ``vhost-limits``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from trivium.errors import AccessRefused, NotFound
from trivium.management.calls import NOT_FOUND, BadRequest, Call
from trivium.management.endpoints import (
    ADMINISTRATORS,
    ENTERED,
    POLICIES,
    SEEN,
    UNCHECKED,
    WATCHED,
    Endpoint,
    Handler,
)
from trivium.management.global_parameters import GlobalParameters
from trivium.management.limits import set_vhost_limits
from trivium.management.listing import Listing
from trivium.management.policies import OF_OPERATORS, USUAL, PolicyKind
from trivium.management.values import number_of, shown_table, table_of, text_of
from trivium.observability.api import ApiAnswer
from trivium.runtime.cluster_name import CLUSTER_NAME
from trivium.security.identity import ADMINISTRATOR
from trivium.vhost.policies import Policy

if TYPE_CHECKING:
    from trivium.messages.message import HeaderValue
    from trivium.routing.exchanges import Declarer
    from trivium.vhost.virtual_host import VirtualHost

_Item = tuple["VirtualHost", Policy]

#: In a document, beside what RabbitMQ knows of a policy: to what it applies here.
NARROWED_TO: Final = "narrowed-to"


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


def exported_policy(item: _Item) -> dict[str, object]:
    """A policy in a document: for RabbitMQ it applies to what it did in the document that brought
    it, for us to what that meant."""
    found = shown_policy(item)
    _, policy = item
    if policy.imported_as:
        found |= {"apply-to": policy.imported_as, NARROWED_TO: policy.apply_to}
    return found


def policy_of(name: str, body: Mapping[str, object], declarer: Declarer | None) -> Policy:
    """The policy that a body describes, of ``declarer``. Raises BadRequest, PreconditionFailed."""
    for key in ("pattern", "definition"):
        if key not in body:
            raise BadRequest(f"[{{key_missing,{key}}}]")
    definition: dict[str, HeaderValue] = table_of(body, "definition")
    if isinstance(body.get("priority"), str):
        raise BadRequest("priority should be a number")
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


def _policy_order(item: _Item) -> tuple[str, ...]:
    return item[0].name, item[1].name


def _handlers(
    kind: PolicyKind,
) -> tuple[Callable[[Call], ApiAnswer], Callable[[Call], ApiAnswer], Handler, Handler]:
    """Those that list, show, set and remove policies of a kind."""

    def get_all(call: Call) -> ApiAnswer:
        every = kind.all(call)
        return Listing(call, every, shown_policy, _policy_order).answer()

    def get_one(call: Call) -> ApiAnswer:
        return ApiAnswer(200, shown_policy((call.vhost, kind.get(call, call.names["name"]))))

    def put(call: Call) -> None:
        kind.put(call, policy_of(call.names["name"], call.body, kind.setter(call)))

    def delete(call: Call) -> None:
        kind.delete(call, call.names["name"])

    return get_all, get_one, put, delete


# Parameters

LIMITS: Final = "vhost-limits"
OPERATOR_POLICY: Final = "operator_policy"


def parameters_of(
    vhost: VirtualHost, show: Callable[[_Item], dict[str, object]] = shown_policy
) -> Iterator[dict[str, object]]:
    """What RabbitMQ keeps in parameters: limits of virtual hosts, policies of operators."""
    for policy in vhost.policies.operators.all():
        value = show((vhost, policy))
        found = {"component": OPERATOR_POLICY, "vhost": vhost.name, "name": policy.name}
        del value["vhost"], value["name"]
        if NARROWED_TO in value:
            # RabbitMQ takes nothing more in a value.
            found[NARROWED_TO] = str(value.pop(NARROWED_TO))
        yield {**found, "value": value}
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
    if component == OPERATOR_POLICY:
        value = table_of(call.body, "value")
        OF_OPERATORS.put(call, policy_of(call.names["name"], value, None))
        return
    if component != LIMITS:
        raise BadRequest(f"Validation failed\n\ncomponent {component} not found\n")
    is_new = not call.vhost.settings.limits
    set_vhost_limits(call.broker, call.vhost, table_of(call.body, "value"))
    call.created(is_new)


def delete_parameter(call: Call) -> None:
    """Remove one."""
    _parameter(call)
    if call.names["component"] == OPERATOR_POLICY:
        OF_OPERATORS.delete(call, call.names["name"])
        return
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


def _require_for(call: Call) -> None:
    """Raise AccessRefused unless the caller may change the parameter, as by every other path: the
    broker's name is for administrators (``cluster-name``)."""
    if call.names["name"] == CLUSTER_NAME and ADMINISTRATOR not in call.identity.tags:
        raise AccessRefused("Not administrator user")


def put_global(call: Call) -> None:
    """Set one of them."""
    if "value" not in call.body:
        raise BadRequest("[{key_missing,value}]")
    _require_for(call)
    is_new = GlobalParameters(call.broker).set(call.names["name"], call.body["value"])
    call.created(is_new)


def delete_global(call: Call) -> None:
    """Remove one of them."""
    _require_for(call)
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


_PARAMETER: Final = "parameters/{component}/{vhost}/{name}"
_GLOBAL: Final = "global-parameters/{name}"


def _endpoints(kind: PolicyKind, path: str, tags: frozenset[str], vhost: str) -> Iterator[Endpoint]:
    get_all, get_one, put, delete = _handlers(kind)
    yield Endpoint("GET", path, get_all)
    yield Endpoint("GET", path + "/{vhost}", get_all)
    yield Endpoint("GET", path + "/{vhost}/{name}", get_one, tags)
    yield Endpoint("PUT", path + "/{vhost}/{name}", put, tags, vhost)
    yield Endpoint("DELETE", path + "/{vhost}/{name}", delete, tags, vhost)


ENDPOINTS: Final = (
    *_endpoints(USUAL, "policies", POLICIES, ENTERED),
    *_endpoints(OF_OPERATORS, "operator-policies", ADMINISTRATORS, SEEN),
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
