"""The broker as a whole: ``overview``, ``nodes``, ``whoami`` and what else there is one of."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trivium import __version__
from trivium.errors import NotFound
from trivium.management import views
from trivium.management.calls import NOT_FOUND, BadRequest, Call
from trivium.management.census import Census
from trivium.management.compatible import shown
from trivium.management.compatible.stats import Stats
from trivium.management.endpoints import (
    ADMINISTRATORS,
    ANYBODY,
    WATCHERS,
    Endpoint,
)
from trivium.management.figures import Figures, Sums, of_traffic
from trivium.management.global_parameters import GlobalParameters
from trivium.management.listing import Listing, Slices, only_columns
from trivium.management.values import encode, text_of
from trivium.observability.api import ApiAnswer
from trivium.routing.exchanges import EXCHANGE_TYPES
from trivium.runtime.cluster_name import CLUSTER_NAME, cluster_name
from trivium.security.identity import ADMINISTRATOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trivium.runtime.broker import Broker

#: The version of RabbitMQ whose interface this is: clients choose what they ask by it.
DIALECT: Final = "3.13.0"
#: What clients read as the version of Erlang.
_PLATFORM: Final = f"none (Python {platform.python_version()})"

_TYPES: Final = [{"name": name, "description": "", "enabled": True} for name in EXCHANGE_TYPES]


def get_whoami(call: Call) -> ApiAnswer:
    """Who asks."""
    identity = call.identity
    return ApiAnswer(200, {"name": identity.name, "tags": sorted(identity.tags)})


def get_overview(call: Call) -> ApiAnswer:
    """What there is, in numbers."""
    return ApiAnswer(200, parts=_overview(call, Stats(call)))


def _overview(call: Call, stats: Stats) -> Iterator[bytes]:
    broker = call.broker
    is_short = call.asks("disable_stats")
    found: dict[str, object] = {
        "management_version": DIALECT,
        "rabbitmq_version": DIALECT,
        "product_name": "Trivium",
        "product_version": __version__,
        "cluster_name": cluster_name(broker.storage),
        "erlang_version": _PLATFORM,
        "erlang_full_version": _PLATFORM,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [], "basic": [], "detailed": []},
        "exchange_types": _TYPES,
        "release_series_support_status": "supported",
        "disable_stats": is_short,
        "enable_queue_totals": call.asks("enable_queue_totals"),
        "statistics_db_event_queue": 0,
        "node": shown.NODE,
        "listeners": _listeners(broker),
        "contexts": _contexts(broker),
    }
    census = Census()
    for _ in census.count(call.vhosts()):
        yield b""
    if not is_short:
        clients = _Clients(call)
        for _ in clients.count():
            yield b""
        found["object_totals"] = {**clients.shown(), **_objects(census)}
        totals = messages_of(census)
        sees_all = ADMINISTRATOR in call.identity.tags
        found["queue_totals"] = stats.lengths(broker, totals) if sees_all else totals
        found |= {"churn_rates": {}, "message_stats": {}}
        if call.watches:
            found["churn_rates"] = stats.rates(broker, call.state.churn.figures())
            found |= stats.message_stats(broker, of_traffic(clients.sums.all))
    elif call.asks("enable_queue_totals"):
        found["queue_totals"] = messages_of(census)
    yield encode(only_columns(call, found))


def _objects(census: Census) -> dict[str, object]:
    """How many things there are."""
    return {
        "consumers": census.consumers,
        "exchanges": census.exchanges,
        "queues": census.queues + census.streams,
    }


def messages_of(census: Census) -> Figures:
    """How many messages there are, those of streams among them."""
    ready = census.ready + census.records
    return {
        "messages": ready + census.unsettled,
        "messages_ready": ready,
        "messages_unacknowledged": census.unsettled,
    }


def _listeners(broker: Broker) -> list[dict[str, object]]:
    return [
        {
            "node": shown.NODE,
            "protocol": protocol,
            "ip_address": host,
            "port": port,
            "socket_opts": {},
            "name": name,
        }
        for name, protocol, host, port in views.listener_addresses(broker)
    ]


def _contexts(broker: Broker) -> list[dict[str, object]]:
    return [
        {
            "node": shown.NODE,
            "description": "Trivium HTTP API",
            "path": "/",
            "ip": host,
            "port": str(port),
        }
        for _, protocol, host, port in views.listener_addresses(broker)
        if protocol == "http"
    ]


class _Clients:
    """The connections that a caller may see, and their channels."""

    def __init__(self, call: Call) -> None:
        self._broker = call.broker
        self._own = None if call.watches else call.identity.name
        self._connections = 0
        self._channels = 0
        #: what all have counted, once that is summed up
        self.sums = Sums(call.broker)

    def count(self) -> Iterator[None]:
        """Count; each time that it pauses others are to be served."""
        slices = Slices()
        for each in list(self._broker.connections):
            self.sums.add(each)
            if each.login is not None and self._own in (None, each.identity.name):
                self._connections += 1
                self._channels += each.usage.channels
            if slices.is_over:
                yield
                slices.begin()

    def shown(self) -> dict[str, object]:
        """How many there are."""
        return {"connections": self._connections, "channels": self._channels}


def _node(call: Call) -> dict[str, object]:
    broker = call.broker
    churn = Stats(call).rates(broker, call.state.churn.figures())
    alarms = broker.alarms
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "name": shown.NODE,
        "type": "disc",
        "running": not broker.is_stopping,
        "being_drained": False,
        "uptime": broker.elapsed_ms - call.state.began_at,
        "os_pid": str(os.getpid()),
        "processors": os.cpu_count() or 1,
        "run_queue": 0,
        "rates_mode": "basic",
        "partitions": [],
        "cluster_links": [],
        "mem_used": max(broker.driver.resident_memory(), 0),
        "mem_limit": alarms.memory_high,
        "mem_alarm": alarms.is_memory_short,
        "mem_calculation_strategy": "rss",
        "disk_free": max(broker.driver.free_disk(), 0),
        "disk_free_limit": alarms.disk_low,
        "disk_free_alarm": alarms.is_disk_short,
        "fd_total": files,
        "fd_used": open_files(),
        "sockets_total": broker.config.limits.max_connections,
        "sockets_used": len(broker.connections),
        "proc_total": 1,
        "proc_used": 1,
        "net_ticktime": 0,
        "exchange_types": _TYPES,
        "auth_mechanisms": [
            {"name": name, "description": "", "enabled": True}
            for name in ("PLAIN", "AMQPLAIN", "EXTERNAL")
        ],
        "applications": [
            {"name": "trivium", "description": "Trivium", "version": __version__},
        ],
        "contexts": _contexts(broker),
        "enabled_plugins": [],
        "db_dir": str(broker.config.storage.data),
        "config_files": [],
        "log_files": [],
        **churn,
    }


def open_files() -> int:
    """Files and sockets that this process has open; 0 where the system does not tell."""
    try:
        return len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        return 0


def get_nodes(call: Call) -> ApiAnswer:
    """The one node."""
    return Listing(call, [_node(call)], lambda node: node, lambda _: (shown.NODE,)).answer()


def _check_node(call: Call) -> None:
    if call.names["node"] != shown.NODE:
        raise NotFound(NOT_FOUND)


def get_node(call: Call) -> ApiAnswer:
    """It, by its name."""
    _check_node(call)
    return ApiAnswer(200, _node(call))


def get_memory(call: Call) -> ApiAnswer:
    """What its memory is for, which is not known; clients know this word."""
    _check_node(call)
    return ApiAnswer(200, {"memory": "not_available"})


def get_cluster_name(call: Call) -> ApiAnswer:
    """The name of the broker, for people."""
    return ApiAnswer(200, {"name": cluster_name(call.broker.storage)})


def put_cluster_name(call: Call) -> None:
    """Give it another."""
    GlobalParameters(call.broker).set(CLUSTER_NAME, text_of(call.body, "name"))
    call.gone()


def _nothing(call: Call, found: Iterable[dict[str, object]] = ()) -> ApiAnswer:
    return Listing(call, found, lambda each: each, lambda each: (str(each["name"]),)).answer()


def get_nothing(call: Call) -> ApiAnswer:
    """Of extensions, feature flags and what is deprecated there is nothing to say."""
    return _nothing(call)


def get_authentication(call: Call) -> ApiAnswer:
    """How people log in on pages: by user name and password."""
    found = {"enable_uaa": False, "oauth_enabled": False, "uaa_client_id": "", "uaa_location": ""}
    return ApiAnswer(200, found)


def get_attempts(call: Call) -> ApiAnswer:
    """Logins by protocol."""
    _check_node(call)
    every = [
        {
            "protocol": shown.PROTOCOLS.get(protocol, protocol),
            "auth_attempts": found.failed + found.succeeded,
            "auth_attempts_failed": found.failed,
            "auth_attempts_succeeded": found.succeeded,
        }
        for protocol, found in call.state.attempts.items()
    ]
    return Listing(call, every, lambda each: each, lambda each: (str(each["protocol"]),)).answer()


def get_attempts_by_source(call: Call) -> ApiAnswer:
    """Logins by address, which are not counted."""
    _check_node(call)
    return _nothing(call)


def forget_attempts(call: Call) -> ApiAnswer:
    """Begin to count anew."""
    _check_node(call)
    call.state.attempts.clear()
    call.broker.events.tell("user.authentication.reset")
    return ApiAnswer(204)


def rebalance(call: Call) -> ApiAnswer:
    """With one node all is where it should be."""
    return ApiAnswer(204)


def refuse_flag(call: Call) -> ApiAnswer:
    """There are no feature flags to enable."""
    raise BadRequest("there are no feature flags")


_ATTEMPTS: Final = "auth/attempts/{node}"

ENDPOINTS: Final = (
    Endpoint("GET", "whoami", get_whoami),
    Endpoint("GET", "overview", get_overview),
    Endpoint("GET", "nodes", get_nodes, WATCHERS),
    Endpoint("GET", "nodes/{node}", get_node, WATCHERS),
    Endpoint("GET", "nodes/{node}/memory", get_memory, WATCHERS),
    Endpoint("GET", "cluster-name", get_cluster_name),
    Endpoint("PUT", "cluster-name", put_cluster_name, ADMINISTRATORS),
    Endpoint("GET", "extensions", get_nothing),
    Endpoint("GET", "feature-flags", get_nothing, ADMINISTRATORS),
    Endpoint("PUT", "feature-flags/{name}/enable", refuse_flag, ADMINISTRATORS),
    Endpoint("GET", "deprecated-features", get_nothing),
    Endpoint("GET", "deprecated-features/used", get_nothing),
    Endpoint("GET", "auth", get_authentication, ANYBODY),
    Endpoint("GET", _ATTEMPTS, get_attempts, WATCHERS),
    Endpoint("DELETE", _ATTEMPTS, forget_attempts, ADMINISTRATORS),
    Endpoint("GET", _ATTEMPTS + "/source", get_attempts_by_source, WATCHERS),
    Endpoint("DELETE", _ATTEMPTS + "/source", forget_attempts, ADMINISTRATORS),
    Endpoint("POST", "rebalance/queues", rebalance, ADMINISTRATORS),
)
