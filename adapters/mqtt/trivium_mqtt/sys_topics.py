"""``$SYS/broker/...``: figures of the broker for MQTT clients, under Mosquitto's names.

The values are those of all virtual hosts. They are published in the default one, retained, and only
when they have changed. Sessions may be very many, so they are looked at a part in each second.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from typing import TYPE_CHECKING, Final

from trivium import __version__
from trivium.runtime.virtual_hosts import DEFAULT_VHOST

if TYPE_CHECKING:
    from trivium.observability.metrics import ProtocolMetrics
    from trivium.runtime.broker import Broker
    from trivium_mqtt.sessions import Sessions

#: Sessions that are looked at in one second.
_AT_ONCE: Final = 2000
#: Averages are over so many minutes.
_MINUTES: Final = (1, 5, 15)

#: Topics below ``load`` that say how many there were in a minute, and of what.
_LOADS: Final = (
    ("messages/received", "messages_received"),
    ("messages/sent", "messages_sent"),
    ("publish/received", "messages_received"),
    ("publish/sent", "messages_sent"),
    ("publish/dropped", "messages_dropped"),
    ("bytes/received", "bytes_received"),
    ("bytes/sent", "bytes_sent"),
    ("sockets", "connections_opened"),
    ("connections", "connects_received"),
)


class _Census:
    """What all sessions together have, as of the last time that all were looked at."""

    def __init__(self) -> None:
        self.total = 0
        self.connected = 0
        self.subscriptions = 0
        self.waiting = 0


class SysTopics:
    """Publishes every ``interval`` seconds; ``tick`` is called about once a second."""

    def __init__(
        self,
        broker: Broker,
        sessions: dict[str, Sessions],
        metrics: ProtocolMetrics,
        interval: int,
    ) -> None:
        self._broker = broker
        self._sessions = sessions
        self._metrics = metrics
        self._interval_ms = interval * 1000
        self._started_at = broker.elapsed_ms
        self._next_at = broker.elapsed_ms
        self._said: dict[str, str] = {}
        self._census = _Census()
        self._counting: Iterator[None] | None = None
        self._most_connected = 0
        self._most_memory = 0
        # Of each load: what was counted by the last look, and the averages.
        self._counted = [0] * len(_LOADS)
        self._averages = [[0.0] * len(_MINUTES) for _ in _LOADS]
        self._averaged_at = broker.elapsed_ms

    def tick(self) -> None:
        """Look at some sessions, and publish if it is time."""
        if self._counting is None:
            self._counting = self._count()
        try:
            next(self._counting)
        except StopIteration:
            self._counting = None
        if self._broker.elapsed_ms >= self._next_at:
            self._next_at = self._broker.elapsed_ms + self._interval_ms
            self._publish()

    def _count(self) -> Iterator[None]:
        """Look at all sessions, a part at a time."""
        census = _Census()
        seen = 0
        for sessions in list(self._sessions.values()):
            for session in list(sessions.by_client.values()):
                census.total += 1
                census.connected += session.connection is not None
                census.subscriptions += len(session.subscriptions or ())
                if session.outgoing is not None:
                    queue = session.outgoing.queue
                    census.waiting += len(queue) + queue.unsettled
                seen += 1
                if seen % _AT_ONCE == 0:
                    yield
        self._census = census
        self._most_connected = max(self._most_connected, census.connected)

    def _publish(self) -> None:
        own = self._broker.vhosts[DEFAULT_VHOST].own
        for topic, value in (*self._figures(), *self._loads()):
            if self._said.get(topic) != value:
                self._said[topic] = value
                own.publish(f"$SYS/broker/{topic}".replace("/", ".").encode(), value.encode(), True)

    def _figures(self) -> Iterator[tuple[str, str]]:
        broker = self._broker
        census = self._census
        metrics = self._metrics
        yield "version", f"trivium version {__version__}"
        yield "uptime", f"{(broker.elapsed_ms - self._started_at) // 1000} seconds"
        away = census.total - census.connected
        retained = retained_bytes = 0
        for vhost in broker.vhosts.values():
            retained += len(vhost.retained) + len(vhost.own.retained)
            retained_bytes += vhost.retained.bytes + vhost.own.retained.bytes
        memory = max(broker.driver.resident_memory(), 0)
        self._most_memory = max(self._most_memory, memory)
        shared = sum(sessions.shares.members for sessions in self._sessions.values())
        expired = sum(sessions.deadlines.ended for sessions in self._sessions.values())
        for topic, count in (
            ("clients/total", census.total),
            ("clients/connected", census.connected),
            ("clients/active", census.connected),
            ("clients/disconnected", away),
            ("clients/inactive", away),
            ("clients/maximum", self._most_connected),
            ("clients/expired", expired),
            ("subscriptions/count", census.subscriptions),
            ("shared_subscriptions/count", shared),
            ("retained messages/count", retained),
            ("messages/stored", census.waiting + retained),
            ("store/messages/count", census.waiting + retained),
            ("store/messages/bytes", retained_bytes),
            ("messages/received", metrics.messages_received),
            ("messages/sent", metrics.messages_sent),
            ("publish/messages/received", metrics.messages_received),
            ("publish/messages/sent", metrics.messages_sent),
            ("publish/messages/dropped", metrics.messages_dropped),
            ("publish/bytes/received", metrics.payload_bytes_received),
            ("publish/bytes/sent", metrics.payload_bytes_sent),
            ("bytes/received", metrics.bytes_received),
            ("bytes/sent", metrics.bytes_sent),
            ("heap/current", memory),
            ("heap/maximum", self._most_memory),
        ):
            yield topic, str(count)

    def _loads(self) -> Iterator[tuple[str, str]]:
        """How much there is in a minute: averages in which the past counts less and less."""
        now = self._broker.elapsed_ms
        minutes = (now - self._averaged_at) / 60_000
        self._averaged_at = now
        for index, (topic, attribute) in enumerate(_LOADS):
            count: int = getattr(self._metrics, attribute)
            in_a_minute = (count - self._counted[index]) / minutes if minutes > 0 else 0.0
            self._counted[index] = count
            averages = self._averages[index]
            for at, span in enumerate(_MINUTES):
                averages[at] = in_a_minute + exp(-minutes / span) * (averages[at] - in_a_minute)
                yield f"load/{topic}/{span}min", f"{averages[at]:.2f}"
