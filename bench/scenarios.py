"""The loads that can be run, a row of :data:`SCENARIOS` each, and how to make their connections."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from bench.amqp_clients import AmqpConsumer, AmqpPublisher, AmqpSetup
from bench.doors import PLAIN, TLS, WEBSOCKET
from bench.endpoints import Address, Publisher, Receiver, closed_on_error
from bench.frames import payload
from bench.load import Lane, Limits
from bench.mqtt_clients import MqttPublisher, MqttSubscriber
from bench.native_clients import NativeConsumer, NativePublisher, NativeReader, NativeSetup

RECEIVE_BYTES: Final = 256 * 1024
"""Receive buffer of a receiver where there are few; many share :data:`RECEIVE_BYTES_IN_ALL`."""
RECEIVE_BYTES_IN_ALL: Final = 16 * 1024 * 1024
BACKLOG: Final = 10_000
"""Messages on their way from the publishers to their slowest receivers, at most."""
BACKLOG_BYTES: Final = 4 * 1024 * 1024
"""The same in bytes of payload, for large ones: at QoS 0 a broker may drop what it cannot hold."""


@dataclass(frozen=True)
class Scenario:
    """One load: ``lanes`` publishers, each with a topic or queue and ``receivers`` of its own."""

    name: str
    title: str
    source: str
    """The protocol that messages come in by: ``mqtt``, ``amqp`` or ``native``."""
    target: str
    """The protocol that messages go out by."""
    qos: int = 0
    acknowledge_every: int = 100
    """Deliveries of a queue per acknowledgement; above 1 AMQP's is sent with ``multiple``."""
    lanes: int = 1
    receivers: int = 1
    """How many get each message. Without any, what was acknowledged to the publisher counts."""
    is_stream: bool = False
    """Native messages go to a stream, and receivers fetch from it; otherwise to a queue."""
    per_request: int = 1
    """Messages that a native publisher puts into one request."""
    is_idempotent: bool = False
    """The native publisher is an idempotent producer."""
    topics: int = 1
    """MQTT topics that each publisher publishes to in turn; a receiver has a wildcard for them."""
    payload: int = 64
    window: int = 1000
    """Messages sent and not yet acknowledged, per publisher; the consumers' prefetch as well."""
    door: str = PLAIN
    """What stands before both protocols: one of :mod:`bench.doors`."""
    at_full_speed: bool = False
    """The publisher sends whatever its socket takes, however far behind the receivers are."""
    on_disk: bool = False
    latency_rate: int = 5000
    """Messages published per second, over all lanes, in the paced run."""
    quick: bool = False
    goals: tuple[float, float] | None = None
    """How many times the peer's rate the compiled and the interpreted server must reach."""

    @property
    def protocols(self) -> frozenset[str]:
        """The protocols a server must speak to be put under this load."""
        return frozenset((self.source, self.target))

    @property
    def is_acknowledged(self) -> bool:
        """The publisher hears what became of its messages."""
        return self.source != "mqtt" or self.qos > 0

    @property
    def limits(self) -> Limits:
        """What each lane may have under way in a closed run."""
        if self.at_full_speed:
            return Limits(self.window)
        backlog = min(BACKLOG, BACKLOG_BYTES // self.payload)
        return Limits(self.window, max(1, backlog // self.lanes))


_QOS0 = Scenario("mqtt-qos0-1to1", "MQTT QoS 0, 1 to 1", "mqtt", "mqtt", quick=True, goals=(8, 2))
_QOS1 = Scenario(
    "mqtt-qos1-1to1", "MQTT QoS 1, 1 to 1", "mqtt", "mqtt", qos=1, quick=True, goals=(5, 2)
)
_QOS2 = Scenario("mqtt-qos2-1to1", "MQTT QoS 2, 1 to 1", "mqtt", "mqtt", qos=2)
_FANOUT = Scenario(
    "mqtt-qos0-fanout-1to10",
    "MQTT QoS 0, 1 to 10",
    "mqtt",
    "mqtt",
    receivers=10,
    latency_rate=1000,
    quick=True,
    goals=(15, 2),
)
_NATIVE = Scenario(
    "native-publish",
    "native persistent publishes to a queue that nobody consumes, 1 to a request",
    "native",
    "native",
    receivers=0,
    window=2000,
    on_disk=True,
)
_AMQP = Scenario(
    "amqp-confirmed-1q",
    "AMQP persistent, confirmed, acked by 100, 1 queue",
    "amqp",
    "amqp",
    on_disk=True,
    quick=True,
    goals=(5, 2),
)


def _on_request(base: Scenario, **changes: Any) -> Scenario:
    """Return a scenario that differs from ``base`` and runs when it is asked for."""
    return replace(base, quick=False, goals=None, **changes)


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        _QOS0,
        _QOS1,
        _FANOUT,
        _QOS2,
        *(
            _on_request(
                base,
                name=f"{base.name}-100t",
                title=f"{base.title}, 100 topics in turn",
                topics=100,
            )
            for base in (_QOS0, _QOS1)
        ),
        _AMQP,
        replace(
            _AMQP,
            name="amqp-confirmed-4q",
            title="AMQP persistent, confirmed, acked by 100, 4 queues",
            lanes=4,
            quick=False,
        ),
        replace(
            _AMQP,
            name="amqp-confirmed-1q-ack1",
            title="AMQP persistent, confirmed, acked one by one, 1 queue",
            acknowledge_every=1,
            quick=False,
        ),
        replace(
            _AMQP,
            name="amqp-confirmed-4q-ack1",
            title="AMQP persistent, confirmed, acked one by one, 4 queues",
            acknowledge_every=1,
            lanes=4,
            quick=False,
        ),
        Scenario(
            "mqtt-to-amqp",
            "MQTT QoS 1 to AMQP acked by 100, 1 queue",
            "mqtt",
            "amqp",
            qos=1,
            on_disk=True,
        ),
        *(
            _on_request(
                base,
                name=f"{base.name}-{size // 1024}k",
                title=f"{base.title}, {size // 1024} KiB",
                payload=size,
                latency_rate=1000,
            )
            for base in (_QOS0, _QOS1, _AMQP)
            for size in (1024, 16 * 1024)
        ),
        *(
            _on_request(
                base,
                name=f"{base.name}-full",
                title=f"{base.title}, publisher at full speed",
                at_full_speed=True,
            )
            for base in (_QOS0, _FANOUT)
        ),
        _on_request(
            _QOS0,
            name="mqtt-qos0-1000c",
            title="MQTT QoS 0, 500 pairs, 1000 connections",
            lanes=500,
            window=20,
        ),
        *(
            _on_request(
                _QOS1,
                name=f"mqtt-qos1-{2 * pairs}c",
                title=f"MQTT QoS 1, {pairs} pairs, one message under way in each",
                lanes=pairs,
                window=1,
            )
            for pairs in (100, 1000)
        ),
        *(
            _on_request(
                base,
                name=base.name.replace("1to1", "50to50"),
                title=base.title.replace("1 to 1", "50 pairs, window 100"),
                lanes=50,
                window=100,
            )
            for base in (_QOS0, _QOS1, _QOS2)
        ),
        *(
            _on_request(
                base,
                name=f"{base.name}-1000t",
                title=f"{base.title}, 1000 topics in turn",
                topics=1000,
            )
            for base in (_QOS0, _QOS1, _QOS2)
        ),
        _on_request(
            _AMQP,
            name="amqp-confirmed-20q",
            title="AMQP persistent, confirmed, acked by 50, 20 queues, window 100",
            lanes=20,
            window=100,
            acknowledge_every=50,
        ),
        _NATIVE,
        replace(
            _QOS1,
            name="mqtt-tls-qos1-1to1",
            title="MQTT QoS 1, 1 to 1, by TLS 1.3",
            door=TLS,
            quick=False,
            goals=(4, 1),
        ),
        replace(
            _AMQP,
            name="amqp-tls-confirmed-1q",
            title="AMQP persistent, confirmed, acked by 100, 1 queue, by TLS 1.3",
            door=TLS,
            quick=False,
            goals=(3, 1),
        ),
        replace(
            _QOS0,
            name="mqtt-ws-qos0-1to1",
            title="MQTT QoS 0, 1 to 1, by WebSocket, a frame for each packet",
            door=WEBSOCKET,
            quick=False,
            goals=(4, 1),
        ),
        replace(
            _NATIVE,
            name="native-publish-100",
            title="native persistent publishes to a queue that nobody consumes, 100 to a request",
            per_request=100,
        ),
        replace(
            _NATIVE,
            name="native-publish-idempotent",
            title="the same by an idempotent producer, 1 to a request",
            is_idempotent=True,
        ),
        replace(
            _NATIVE,
            name="native-queue",
            title="native persistent publishes, 100 to a request, to a queue, acked by 100",
            per_request=100,
            receivers=1,
        ),
        replace(
            _NATIVE,
            name="native-fetch-1to10",
            title="native publishes, 100 to a request, to a stream that 10 clients fetch",
            per_request=100,
            receivers=10,
            is_stream=True,
            latency_rate=1000,
        ),
    )
}

DEFAULT: Final = tuple(SCENARIOS)[:10]
"""What a run without ``--scenario`` measures."""

_run_numbers = itertools.count(1)


@contextmanager
def open_lanes(scenario: Scenario, addresses: Mapping[str, Address]) -> Iterator[list[Lane]]:
    """Connect the scenario's clients to a server; delete their queues afterwards.

    ``addresses`` names the server's address by protocol.

    Raises:
        PeerError: the server refused something.
    """
    run = f"bench-{next(_run_numbers)}"
    with ExitStack() as stack:
        yield [
            _open_lane(scenario, addresses, f"{run}-{number}", stack)
            for number in range(scenario.lanes)
        ]


def _open_lane(
    scenario: Scenario, addresses: Mapping[str, Address], name: str, stack: ExitStack
) -> Lane:
    if scenario.target == "native":
        _declare_native(scenario, addresses["native"], name, stack)
    receivers = []
    for number in range(scenario.receivers):
        receivers.append(_open_receiver(scenario, addresses, name, number, stack))
        stack.callback(receivers[-1].close)
    publisher = _open_publisher(scenario, addresses[scenario.source], name)
    stack.callback(publisher.close)
    return Lane(publisher, receivers)


def _topic(name: str) -> str:
    return f"bench/{name}"


def _open_receiver(
    scenario: Scenario, addresses: Mapping[str, Address], name: str, number: int, stack: ExitStack
) -> Receiver:
    address = addresses[scenario.target]
    body = payload(scenario.payload)
    in_all = scenario.lanes * scenario.receivers
    receive_bytes = min(RECEIVE_BYTES, RECEIVE_BYTES_IN_ALL // in_all)
    every = scenario.acknowledge_every
    if scenario.target == "mqtt":
        client_id, topic = f"{name}-r{number}", _topic(name)
        return MqttSubscriber(
            address, client_id, topic, scenario.qos, body, receive_bytes, scenario.topics
        )
    if scenario.target == "native":
        session = NativeSetup(address)
        if scenario.is_stream:
            return NativeReader(session, name, body, receive_bytes)
        return NativeConsumer(session, name, body, scenario.window, every, receive_bytes)
    setup = AmqpSetup(address)
    stack.callback(_delete_queue, address, name)
    with closed_on_error(setup.socket):
        setup.declare_queue(name)
        if scenario.source == "mqtt":
            setup.bind_queue(name, "amq.topic", _topic(name).replace("/", "."))
    return AmqpConsumer(setup, name, body, scenario.window, every, receive_bytes)


def _open_publisher(scenario: Scenario, address: Address, name: str) -> Publisher:
    body = payload(scenario.payload)
    is_windowed = scenario.is_acknowledged or scenario.at_full_speed
    batch = scenario.window if is_windowed else scenario.limits.backlog
    if scenario.source == "mqtt":
        return MqttPublisher(
            address, f"{name}-p", _topic(name), scenario.qos, body, batch, scenario.topics
        )
    if scenario.source == "native":
        is_idempotent = scenario.is_idempotent
        return NativePublisher(
            address, name, body, batch, scenario.per_request, is_idempotent=is_idempotent
        )
    return AmqpPublisher(address, "", name, body, batch)


def _delete_queue(address: Address, name: str) -> None:
    setup = AmqpSetup(address)
    with closed_on_error(setup.socket):
        setup.delete_queue(name)
        setup.close()


def _declare_native(scenario: Scenario, address: Address, name: str, stack: ExitStack) -> None:
    """Declare what the lane's messages go to; delete it afterwards, and the lane's producer."""
    kinds = ["stream" if scenario.is_stream else "queue"]
    if scenario.is_idempotent:
        kinds.append("producer")
    setup = NativeSetup(address)
    with closed_on_error(setup.socket):
        setup.declare(kinds[0], name)
        setup.close()
    stack.callback(_delete_native, address, kinds, name)


def _delete_native(address: Address, kinds: Sequence[str], name: str) -> None:
    setup = NativeSetup(address)
    with closed_on_error(setup.socket):
        for kind in kinds:
            setup.delete(kind, name)
        setup.close()
