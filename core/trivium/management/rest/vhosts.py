"""Virtual hosts, and how much each may have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final, Literal

from trivium.common.quotas import CONNECTIONS, VHOST, check_limits
from trivium.management.endpoints import ADMINISTRATORS, UNCHECKED
from trivium.management.limits import set_vhost_limits
from trivium.management.rest.operations import CONDITIONS, answer, body_of, listed, operation
from trivium.management.rest.schema import About, Count, Limits, Name
from trivium.management.rest.users import LimitsSetting
from trivium.observability.api import ApiAnswer
from trivium.queues.arguments import CLASSIC
from trivium.security.permissions import CONFIGURE
from trivium.vhost.settings import (
    MAX_DESCRIPTION_BYTES,
    MAX_TAG_BYTES,
    MAX_TAGS,
    VirtualHostSettings,
)

if TYPE_CHECKING:
    from trivium.management.calls import Call
    from trivium.vhost.virtual_host import VirtualHost as CoreVirtualHost

_Type = Literal["classic", "quorum", "stream"]
_Tag = Annotated[str, About(shortest=1, longest=MAX_TAG_BYTES)]


@dataclass(frozen=True, slots=True)
class VirtualHost:
    """A virtual host."""

    name: Name
    description: str
    tags: list[str]
    default_queue_type: _Type
    limits: Limits
    tracing: Annotated[bool, About(text="whether its firehose is on")]
    exchanges: Count
    queues: Count
    streams: Count
    retained_messages: Count
    retained_bytes: Count
    queued_bytes: Count
    connections: Count
    suspended: Annotated[int, About(text="declarations that are not in force", least=0)]
    may_configure: Annotated[bool, About(text="whether the caller may, any name at all")]


@dataclass(frozen=True, slots=True)
class VirtualHostLimits:
    """How much a virtual host may have: what is set for it alone."""

    name: Name
    limits: Limits


@dataclass(frozen=True, slots=True)
class VirtualHostSetting:
    """What is to be set about one; what is left out stays as it is."""

    description: Annotated[str | None, About(longest=MAX_DESCRIPTION_BYTES)] = None
    tags: Annotated[list[_Tag] | None, About(longest=MAX_TAGS)] = None
    default_queue_type: _Type | None = None
    limits: Limits | None = None


def _view(call: Call, vhost: CoreVirtualHost) -> VirtualHost:
    settings = vhost.settings
    kind: _Type = settings.default_queue_type or CLASSIC  # type: ignore[assignment]
    return VirtualHost(
        vhost.name,
        settings.description,
        list(settings.tags),
        kind,
        dict(settings.limits),
        vhost.tap is not None,
        len(vhost.exchanges),
        len(vhost.queues),
        len(vhost.streams),
        len(vhost.retained),
        vhost.retained.bytes,
        vhost.queued_bytes,
        call.broker.quotas.account(VHOST, vhost.name).used[CONNECTIONS],
        len(vhost.suspensions),
        call.broker.permissions.access(call.identity, vhost.name).may_some(CONFIGURE),
    )


def list_all(call: Call) -> ApiAnswer:
    """Those that the caller may see."""
    every = list(call.broker.vhosts.values()) if call.watches else call.vhosts()
    return listed(call, every, lambda vhost: _view(call, vhost), lambda vhost: (vhost.name,))


def show(call: Call) -> ApiAnswer:
    """One."""
    return answer(_view(call, call.vhost))


def put(call: Call) -> None:
    """Make one, or give one that exists what is named."""
    wanted = body_of(call, VirtualHostSetting)
    name = call.names["vhost"]
    virtual_hosts = call.broker.virtual_hosts
    known = virtual_hosts.by_name.get(name)
    settings = VirtualHostSettings() if known is None else known.settings
    if wanted.description is not None:
        settings = replace(settings, description=wanted.description)
    if wanted.tags is not None:
        settings = replace(settings, tags=tuple(wanted.tags))
    if wanted.default_queue_type is not None:
        settings = replace(settings, default_queue_type=wanted.default_queue_type)
    if wanted.limits is not None:
        settings = replace(settings, limits=check_limits(VHOST, wanted.limits))
    virtual_hosts.declare(name, settings)
    call.created(known is None)


def delete(call: Call) -> None:
    """Delete one with all that is in it."""
    call.broker.virtual_hosts.delete(call.names["vhost"], call.gone)


def limits(call: Call) -> ApiAnswer:
    """Those of one."""
    vhost = call.vhost
    return answer(VirtualHostLimits(vhost.name, dict(vhost.settings.limits)))


def put_limits(call: Call) -> None:
    """Give one these, in place of those of its own."""
    set_vhost_limits(call.broker, call.vhost, body_of(call, LimitsSetting).limits)
    call.gone()


def trace_on(call: Call) -> None:
    """Switch its firehose on, until it is switched off or the broker stops."""
    call.broker.virtual_hosts.set_tracing(call.names["vhost"], True)
    call.created(False)


def trace_off(call: Call) -> None:
    """Switch its firehose off."""
    call.broker.virtual_hosts.set_tracing(call.names["vhost"], False)
    call.gone()


_ONE: Final = "vhosts/{vhost}"
_LIMITS: Final = "vhosts/{vhost}/limits"
_TRACING: Final = "vhosts/{vhost}/tracing"
_SET: Final = {"tags": ADMINISTRATORS, "vhost": UNCHECKED}

ENDPOINTS: Final = (
    operation("GET", "vhosts", list_all, "Virtual hosts", result=VirtualHost, is_list=True),
    operation("GET", _ONE, show, "A virtual host", result=VirtualHost),
    operation(
        "PUT",
        _ONE,
        put,
        "Make or change a virtual host",
        body=VirtualHostSetting,
        headers=CONDITIONS,
        is_there=lambda call: call.names["vhost"] in call.broker.vhosts,
        statuses=(201, 204),
        **_SET,
    ),
    operation("DELETE", _ONE, delete, "Delete a virtual host", statuses=(204,), **_SET),
    operation("GET", _LIMITS, limits, "Limits of a virtual host", result=VirtualHostLimits),
    operation(
        "PUT",
        _LIMITS,
        put_limits,
        "Give a virtual host these limits",
        body=LimitsSetting,
        statuses=(204,),
        **_SET,
    ),
    operation("PUT", _TRACING, trace_on, "Switch the firehose on", statuses=(204,), **_SET),
    operation("DELETE", _TRACING, trace_off, "Switch the firehose off", statuses=(204,), **_SET),
)
