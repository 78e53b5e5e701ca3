"""``health/checks``: 200 where all is well, else 503 with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.management import views
from trivium.management.calls import BadRequest, Call
from trivium.management.compatible.shown import NODE
from trivium.management.endpoints import Endpoint
from trivium.management.publishing import message_of, publish
from trivium.messages.message import Properties
from trivium.observability.api import ApiAnswer

if TYPE_CHECKING:
    from trivium.queues.queue import Queue

#: What protocols are called in paths -> here.
_PROTOCOLS: Final = {
    "amqp": "amqp",
    "amqp091": "amqp",
    "amqp0.9.1": "amqp",
    "amqps": "amqp",
    "amqp/ssl": "amqp",
    "mqtts": "mqtt",
    "mqtt/ssl": "mqtt",
    "https": "http",
}
_WELL: Final = ApiAnswer(200, {"status": "ok"})

#: Seconds of the units of times in paths.
_UNITS: Final = {
    "days": 86_400,
    "weeks": 7 * 86_400,
    "months": 30 * 86_400,
    "years": 365 * 86_400,
}


def _failed(reason: str, **more: object) -> ApiAnswer:
    return ApiAnswer(503, {"status": "failed", "reason": reason, **more})


def is_well(call: Call) -> ApiAnswer:
    """Of one node there is no more to check than that it answers."""
    return _WELL


def check_alarms(call: Call) -> ApiAnswer:
    """Whether publishers are paused for want of memory or disk."""
    alarms = call.broker.alarms
    named = (("memory", alarms.is_memory_short), ("disk", alarms.is_disk_short))
    found = [{"node": NODE, "resource": name} for name, is_short in named if is_short]
    return _failed("There are alarms", alarms=found) if found else _WELL


def check_port(call: Call) -> ApiAnswer:
    """Whether a port is listened on."""
    text = call.names["port"]
    if not (text.isascii() and text.isdecimal()) or int(text[:9]) > 65_535:
        raise BadRequest("Invalid port")
    port = int(text[:9])
    ports = [found for _, _, _, found in views.listener_addresses(call.broker) if found]
    if port in ports:
        return ApiAnswer(200, {"status": "ok", "port": port})
    return _failed("No active listener", missing=port, ports=ports)


def check_protocol(call: Call) -> ApiAnswer:
    """Whether a protocol is listened for."""
    name = call.names["protocol"]
    wanted = _PROTOCOLS.get(name.lower(), name.lower())
    protocols = [protocol for _, protocol, _, _ in views.listener_addresses(call.broker)]
    if wanted in protocols:
        return ApiAnswer(200, {"status": "ok", "protocol": wanted})
    return _failed("No active listener", missing=name, protocols=sorted(set(protocols)))


def check_certificates(call: Call) -> ApiAnswer:
    """Whether the certificates of the listeners are good for some time."""
    text, unit = call.names["within"], call.names["unit"]
    if not (text.isascii() and text.isdecimal()) or unit not in _UNITS:
        raise BadRequest("a time is a number of days, weeks, months or years")
    until_ms = call.broker.now_ms + int(text[:6]) * _UNITS[unit] * 1000
    expired = [
        {"listener": name, "expires_at": expires_ms // 1000}
        for name, expires_ms in views.certificate_ends(call.broker)
        if expires_ms <= until_ms
    ]
    return _failed("Certificates expiring", expired=expired) if expired else _WELL


def check_ready(call: Call) -> ApiAnswer:
    """Whether clients can connect and publish."""
    reason = call.broker.unready()
    return _WELL if reason is None else _failed(reason)


def check_connections(call: Call) -> ApiAnswer:
    """Whether there is room for more connections."""
    most = call.broker.config.limits.max_connections
    count = len(call.broker.connections)
    if count < most:
        return ApiAnswer(200, {"status": "ok", "current": count, "limit": most})
    return _failed("Connection limit is reached", current=count, limit=most)


ALIVENESS: Final = "aliveness-test"


def check_aliveness(call: Call) -> None:
    """Publish a message to a queue of its own, and take it back."""
    vhost = call.vhost
    queue = vhost.queues.get(ALIVENESS)
    if queue is None:
        queue = vhost.declare_queue(ALIVENESS)
    key = ALIVENESS.encode()
    publish(vhost, message_of(call.broker, vhost, "", key, Properties(), b"test_message"))
    _take(call, queue)


def _take(call: Call, queue: Queue) -> None:
    entry = queue.get()
    if entry is None:
        call.done(_failed("the message has not come back"))
        return
    queue.settle(entry)
    call.answer_durably(_WELL)


_CHECKS: Final = "health/checks/"
_QUORUM: Final = _CHECKS + "quorum-queues-without-elected-leaders/"

ENDPOINTS: Final = (
    Endpoint("GET", _CHECKS + "alarms", check_alarms),
    Endpoint("GET", _CHECKS + "local-alarms", check_alarms),
    Endpoint("GET", _CHECKS + "port-listener/{port}", check_port),
    Endpoint("GET", _CHECKS + "protocol-listener/{protocol}", check_protocol),
    Endpoint("GET", _CHECKS + "certificate-expiration/{within}/{unit}", check_certificates),
    Endpoint("GET", _CHECKS + "virtual-hosts", is_well),
    Endpoint("GET", _CHECKS + "node-is-mirror-sync-critical", is_well),
    Endpoint("GET", _CHECKS + "node-is-quorum-critical", is_well),
    Endpoint("GET", _CHECKS + "metadata-store/initialized", is_well),
    Endpoint("GET", _CHECKS + "metadata-store/initialized/with-data", is_well),
    Endpoint("GET", _QUORUM + "all-vhosts", is_well),
    Endpoint("GET", _QUORUM + "all-vhosts/pattern/{pattern}", is_well),
    Endpoint("GET", _QUORUM + "vhost/{vhost}", is_well),
    Endpoint("GET", _QUORUM + "vhost/{vhost}/pattern/{pattern}", is_well),
    Endpoint("GET", _CHECKS + "below-node-connection-limit", check_connections),
    Endpoint("GET", _CHECKS + "ready-to-serve-clients", check_ready),
    Endpoint("GET", _CHECKS + "is-in-service", check_ready),
    Endpoint("GET", "healthchecks/node", check_ready),
    Endpoint("GET", "healthchecks/node/{node}", check_ready),
    Endpoint("GET", "aliveness-test/{vhost}", check_aliveness),
)
