"""``vhosts``: virtual hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trivium.management.calls import BadRequest, Call
from trivium.management.census import Census
from trivium.management.compatible.general import messages_of
from trivium.management.compatible.shown import NODE
from trivium.management.compatible.stats import Stats
from trivium.management.endpoints import ADMINISTRATORS, UNCHECKED, Endpoint
from trivium.management.figures import Sums, of_connection, of_traffic
from trivium.management.listing import Listing, Slices, only_columns
from trivium.management.values import checked, encode, flag_of, text_of
from trivium.observability.api import ApiAnswer
from trivium.vhost.settings import VirtualHostSettings

if TYPE_CHECKING:
    from trivium.common.counters import Traffic
    from trivium.runtime.broker import Broker
    from trivium.vhost.virtual_host import VirtualHost


def fields(vhost: VirtualHost) -> dict[str, object]:
    """What is shown of one."""
    settings = vhost.settings
    described = settings.described()
    return {
        "name": vhost.name,
        **described,
        "metadata": {"description": settings.description, "tags": list(settings.tags)},
        "tracing": vhost.tap is not None,
    }


_Counted = tuple["VirtualHost", Census, "Traffic"]


def _counted(broker: Broker, vhosts: Iterable[VirtualHost]) -> Iterator[_Counted | None]:
    """Each with what is in it, and what its clients counted; None where others may be served."""
    sums = Sums(broker)
    for _ in sums.count():
        yield None
    for vhost in vhosts:
        census = Census()
        for _ in census.count([vhost]):
            yield None
        yield vhost, census, sums.of_vhost(vhost.name)


def _described(found: _Counted, stats: Stats) -> dict[str, object]:
    vhost, census, traffic = found
    return {
        **fields(vhost),
        "cluster_state": {NODE: "running"},
        **stats.lengths(vhost, messages_of(census)),
        **stats.message_stats(vhost, of_traffic(traffic)),
        **stats.bytes(vhost, of_connection(traffic)),
    }


def get_all(call: Call) -> ApiAnswer:
    """Those that the caller may see, with how many messages they have."""
    every = list(call.broker.vhosts.values()) if call.watches else call.vhosts()
    if call.asks("disable_stats"):
        return Listing(call, every, fields, lambda vhost: (vhost.name,)).answer()
    stats = Stats(call)
    return Listing(
        call,
        _counted(call.broker, every),
        lambda found: _described(found, stats),
        lambda found: (found[0].name,),
    ).answer()


def get_one(call: Call) -> ApiAnswer:
    """One."""
    vhost = call.vhost
    stats = Stats(call)

    def parts() -> Iterator[bytes]:
        slices = Slices()
        for found in _counted(call.broker, [vhost]):
            if found is not None:
                yield encode(only_columns(call, _described(found, stats)))
            elif slices.is_over:
                yield b""
                slices.begin()

    return ApiAnswer(200, parts=parts())


def settings_of(known: VirtualHost | None, body: Mapping[str, object]) -> VirtualHostSettings:
    """What is to be set about one: what a body names, and what else is set about a known one."""
    settings = VirtualHostSettings() if known is None else known.settings
    if "description" in body:
        settings = replace(settings, description=text_of(body, "description"))
    if "tags" in body:
        settings = replace(settings, tags=_tags(body["tags"]))
    # Some clients write it without a line.
    for key in ("default_queue_type", "defaultqueuetype"):
        if key in body:
            kind = text_of(body, key)
            settings = replace(settings, default_queue_type="" if kind == "undefined" else kind)
    return settings


def put(call: Call) -> None:
    """Make one, or give one that exists what is named; clients name other things too."""
    name = call.names["vhost"]
    virtual_hosts = call.broker.virtual_hosts
    known = virtual_hosts.by_name.get(name)
    settings = settings_of(known, call.body)
    is_traced = flag_of(call.body, "tracing") if "tracing" in call.body else None
    virtual_hosts.declare(name, settings)
    if is_traced is not None:
        virtual_hosts.set_tracing(name, is_traced)
    call.created(known is None)


def delete(call: Call) -> None:
    """Delete one with all that is in it."""
    call.broker.virtual_hosts.delete(call.names["vhost"], call.gone)


def _tags(value: object) -> tuple[str, ...]:
    """A list of them, or a text with commas between."""
    if isinstance(value, str):
        value = [tag.strip() for tag in value.split(",") if tag.strip()]
    if not isinstance(value, list):
        raise BadRequest("'tags' are a list of texts")
    for tag in value:
        if not isinstance(tag, str):
            raise BadRequest("'tags' are a list of texts")
    return tuple(checked(tag, "tags") for tag in value)


ENDPOINTS: Final = (
    Endpoint("GET", "vhosts", get_all),
    Endpoint("GET", "vhosts/{vhost}", get_one, ADMINISTRATORS),
    Endpoint("PUT", "vhosts/{vhost}", put, ADMINISTRATORS, UNCHECKED),
    Endpoint("DELETE", "vhosts/{vhost}", delete, ADMINISTRATORS, UNCHECKED),
)
