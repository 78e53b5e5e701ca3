"""Publishers wait for live subscribers that read, and for no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands, frame

from tests.support import amqp, mqtt, native
from tests.support.server import Client, Server
from trivium.config import Config, LimitsConfig, Listen, StorageConfig
from trivium.errors import ConfigError
from trivium.runtime.adapter import Adapter
from trivium.runtime.pacing import MOMENT_MS, PROGRESS, STALL_MS
from trivium_amqp import adapter as amqp_adapter
from trivium_mqtt import adapter as mqtt_adapter
from trivium_native import adapter as native_adapter
from trivium_native.wire import frames

#: Output above which publishers wait, and above which messages are dropped, in these tests.
MARK = 10_000
BURST = 100_000
#: What one read brings: less than the mark.
RUN = 5
PAYLOAD = bytes(1000)
#: What the socket holds of a subscriber's output, more than enough to measure progress by.
HELD = 100 * PROGRESS


class End(Client):
    """A client that stops sending while the broker does not read."""

    def feed(self, *pieces: bytes) -> None:
        if not self.transport.is_paused and not self.is_closed:
            super().feed(*pieces)

    def fill(self) -> None:
        """The client reads for a while less than it is sent: the socket is full."""
        self.transport.waiting = HELD
        self.connection.is_writable = False

    def catch_up(self) -> None:
        """The client has read everything that the socket held."""
        self.transport.waiting = 0
        self.connection.resume_writing()
        self.server.settle()


class World(Server):
    """A broker with three roads."""

    def __init__(self, config: Config | None = None) -> None:
        limits = LimitsConfig(live_output_bytes=MARK, live_burst_bytes=BURST)
        super().__init__(
            config=config
            or Config(
                listen={"mqtt": Listen(0)}, storage=StorageConfig(mode="memory"), limits=limits
            )
        )

    def make_adapters(self) -> list[Adapter]:
        return [mqtt_adapter(), amqp_adapter(), native_adapter()]

    @property
    def dropped(self) -> int:
        return sum(adapter.metrics.messages_dropped for adapter in self.broker.adapters.values())

    def client(self, protocol: str) -> End:
        """A client that is connected."""
        end = End(self, protocol)
        end.feed(GREETINGS[protocol](self))
        assert end.take_bytes()
        return end

    def subscriber(self, protocol: str, topic: str = "t") -> End:
        """A client with a live subscription."""
        end = self.client(protocol)
        if protocol == "mqtt":
            end.feed(mqtt.subscribe(topic))
        else:
            fields = {"subscription": 1, "mode": "pubsub", "exchange": "amq.topic"}
            end.feed(_native(frames.SUBSCRIBE, fields | {"pattern": topic.encode()}))
        assert end.take_bytes()
        return end


def _native(kind: int, fields: dict[str, object]) -> bytes:
    return frames.encode_frame(kind, 1, frames.pack(fields))


def _greet_mqtt(world: World) -> bytes:
    return mqtt.connect(f"c{len(world.broker.connections)}")


def _greet_amqp(world: World) -> bytes:
    methods = [
        (amqp.start_ok(), 0),
        (commands.Connection.TuneOk(2047, 131_072, 0), 0),
        (commands.Connection.Open("/"), 0),
        (commands.Channel.Open(), 1),
    ]
    return amqp.PROTOCOL_HEADER + b"".join(frame.marshal(*method) for method in methods)


def _greet_native(world: World) -> bytes:
    return _native(frames.HELLO, {"protocol": "trivium", "version": 1, "heartbeat": 0}) + _native(
        frames.AUTH, {"username": "guest", "password": b"guest"}
    )


GREETINGS: dict[str, Callable[[World], bytes]] = {
    "mqtt": _greet_mqtt,
    "amqp": _greet_amqp,
    "native": _greet_native,
}
RUNS = {
    "mqtt": mqtt.publish("t", PAYLOAD) * RUN,
    "amqp": amqp.publish_frames("t", PAYLOAD, "amq.topic") * RUN,
    "native": frames.encode_frame(
        frames.PUBLISH, 0, native.publish(*[native.entry(PAYLOAD, b"t", flags=0)] * RUN)
    ),
}

GOODBYES = {
    "mqtt": b"\xe0\x00",
    "amqp": frame.marshal(commands.Connection.Close(200, "", 0, 0), 0),
    "native": frames.encode_frame(frames.CLOSE, 0, frames.pack([0, ""])),
}

ROADS = [
    (publisher, subscriber)
    for publisher in ("mqtt", "amqp", "native")
    for subscriber in ("mqtt", "native")
]


def is_paused(publisher: End) -> bool:
    """Whether the broker does not read it."""
    return publisher.transport.is_paused


def publish_until_paused(publisher: End, data: bytes) -> int:
    """How many runs were read until the publisher was not read any more; 100 if it always was."""
    for count in range(100):
        if publisher.transport.is_paused:
            return count
        publisher.feed(data)
    return 100


@pytest.mark.parametrize(("source", "target"), ROADS)
def test_the_publisher_waits_until_the_subscriber_has_read(source: str, target: str) -> None:
    world = World()
    subscriber = world.subscriber(target)
    publisher = world.client(source)
    received = 0
    for _ in range(5):
        subscriber.fill()
        read = publish_until_paused(publisher, RUNS[source])
        assert MARK // (RUN * 1200) <= read <= 2 + MARK // (RUN * 1000)
        assert subscriber.transport.written.count(PAYLOAD) == received
        received += read * RUN
        subscriber.catch_up()
        assert not is_paused(publisher)
        assert subscriber.transport.written.count(PAYLOAD) == received
    assert world.dropped == 0
    assert world.broker.pacing.waits == 5


@pytest.mark.parametrize(("source", "target"), ROADS)
def test_it_waits_for_a_moment_at_most_and_is_read_again(source: str, target: str) -> None:
    """The subscriber reads, but less than it is sent."""
    world = World()
    subscriber = world.subscriber(target)
    publisher = world.client(source)
    subscriber.fill()
    publish_until_paused(publisher, RUNS[source])
    for _ in range(10):
        world.advance((MOMENT_MS - 1) / 1000)
        assert is_paused(publisher)
        subscriber.transport.waiting -= PROGRESS
        world.advance(0.001)
        assert not is_paused(publisher)
        publisher.feed(RUNS[source])
        assert is_paused(publisher)
    assert world.dropped == 0


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_wall_clock_makes_no_moment_shorter_or_longer(step: int) -> None:
    world = World()
    subscriber = world.subscriber("mqtt")
    publisher = world.client("amqp")
    subscriber.fill()
    publish_until_paused(publisher, RUNS["amqp"])
    world.step_clock(step)
    world.advance((MOMENT_MS - 1) / 1000)
    assert is_paused(publisher)
    subscriber.transport.waiting -= PROGRESS
    world.advance(0.001)
    assert not is_paused(publisher)
    assert world.dropped == 0


@pytest.mark.parametrize(("source", "target"), ROADS)
def test_a_subscriber_that_does_not_read_is_dropped_from_and_slows_nobody(
    source: str, target: str
) -> None:
    world = World()
    subscriber = world.subscriber(target)
    publisher = world.client(source)
    subscriber.fill()
    waited = 0
    for _ in range(200):
        publisher.feed(RUNS[source])
        if is_paused(publisher):
            waited += MOMENT_MS
        world.advance(MOMENT_MS / 1000)
        assert not is_paused(publisher)
    assert STALL_MS <= waited < STALL_MS + 2 * MOMENT_MS
    # What is dropped comes from one mark on, and what there was is kept.
    assert world.dropped > 150 * RUN
    assert MARK <= subscriber.connection.output_size < BURST
    subscriber.catch_up()
    assert subscriber.transport.written.count(PAYLOAD) == 200 * RUN - world.dropped
    # It reads again: nothing more is lost.
    dropped = world.dropped
    subscriber.fill()
    assert publish_until_paused(publisher, RUNS[source]) < 10
    subscriber.catch_up()
    assert world.dropped == dropped


def test_a_subscriber_that_reads_next_to_nothing_slows_nobody() -> None:
    world = World()
    subscriber = world.subscriber("mqtt")
    publisher = world.client("mqtt")
    subscriber.fill()
    waited = 0
    for _ in range(200):
        publisher.feed(RUNS["mqtt"])
        waited += is_paused(publisher)
        subscriber.transport.waiting -= PROGRESS // 100
        world.advance(MOMENT_MS / 1000)
    assert waited <= STALL_MS // MOMENT_MS + 1
    assert world.dropped > 150 * RUN


def test_a_subscriber_that_reads_a_little_now_and_then_is_waited_for() -> None:
    world = World()
    subscriber = world.subscriber("mqtt")
    publisher = world.client("mqtt")
    subscriber.fill()
    publish_until_paused(publisher, RUNS["mqtt"])
    # Every second moment, for many times as long as one may read nothing.
    for moment in range(10 * STALL_MS // MOMENT_MS):
        subscriber.transport.waiting -= PROGRESS * (moment % 2)
        world.advance(MOMENT_MS / 1000)
        publisher.feed(mqtt.publish("t", b"x"))
        assert is_paused(publisher)
    assert world.dropped == 0
    # Then nothing any more, however much it has read before.
    moments = 0
    while is_paused(publisher):
        world.advance(MOMENT_MS / 1000)
        publisher.feed(mqtt.publish("t", b"x"))
        moments += 1
    assert moments <= STALL_MS // MOMENT_MS + 1


def test_output_has_a_limit_also_for_a_subscriber_that_reads() -> None:
    world = World()
    subscriber = world.subscriber("mqtt")
    publishers = [world.client("mqtt") for _ in range(50)]
    subscriber.fill()
    for publisher in publishers:
        # All of them were read before the first could be stopped.
        publisher.connection.feed(RUNS["mqtt"])
    world.broker.end_turn()
    assert BURST <= subscriber.connection.output_size < BURST + len(RUNS["mqtt"])
    assert world.dropped > 0
    assert sum(is_paused(publisher) for publisher in publishers) > 10


def test_whoever_publishes_to_others_does_not_wait() -> None:
    world = World()
    subscriber = world.subscriber("mqtt")
    world.subscriber("mqtt", "other")
    publisher = world.client("mqtt")
    other = world.client("mqtt")
    subscriber.fill()
    assert publish_until_paused(publisher, RUNS["mqtt"]) < 10
    assert publish_until_paused(other, mqtt.publish("other", PAYLOAD) * RUN) == 100


@pytest.mark.parametrize("source", ["mqtt", "amqp", "native"])
def test_nobody_waits_for_what_one_published_that_has_left(source: str) -> None:
    world = World()
    subscriber = world.subscriber("mqtt")
    world.subscriber("mqtt", "other")
    leaving = world.client(source)
    publisher = world.client("mqtt")
    subscriber.fill()
    # Both in one turn.
    leaving.connection.feed(RUNS[source] * 10 + GOODBYES[source])
    publisher.connection.feed(mqtt.publish("other", PAYLOAD))
    world.settle()
    assert leaving.is_closed
    assert not is_paused(publisher)


def test_a_publisher_waits_for_the_last_of_its_subscribers() -> None:
    world = World()
    subscribers = [world.subscriber(protocol) for protocol in ("mqtt", "native", "mqtt")]
    publisher = world.client("amqp")
    for subscriber in subscribers:
        subscriber.fill()
    publish_until_paused(publisher, RUNS["amqp"])
    # The largest output passed the mark; the others do with what comes next.
    for subscriber in subscribers:
        assert is_paused(publisher)
        subscriber.catch_up()
    assert not is_paused(publisher)
    assert world.dropped == 0


@pytest.mark.parametrize("source", ["mqtt", "amqp", "native"])
def test_nobody_waits_for_a_subscriber_that_is_gone(source: str) -> None:
    world = World()
    subscriber = world.subscriber("mqtt")
    publisher = world.client(source)
    subscriber.fill()
    publish_until_paused(publisher, RUNS[source])
    subscriber.lose()
    assert not is_paused(publisher)
    assert publish_until_paused(publisher, RUNS[source]) == 100


@pytest.mark.parametrize("source", ["mqtt", "amqp", "native"])
def test_a_publisher_may_go_while_it_waits(source: str) -> None:
    world = World()
    subscriber = world.subscriber("mqtt")
    publisher = world.client(source)
    subscriber.fill()
    publish_until_paused(publisher, RUNS[source])
    publisher.lose()
    subscriber.catch_up()
    world.advance(MOMENT_MS / 1000)
    assert subscriber.transport.written.count(PAYLOAD) > 0


@pytest.mark.parametrize("source", ["mqtt", "amqp", "native"])
def test_a_wait_and_a_pause_of_all_publishers_end_each_for_itself(source: str) -> None:
    world = World()
    subscriber = world.subscriber("mqtt")
    publisher = world.client(source)
    subscriber.fill()
    publish_until_paused(publisher, RUNS[source])
    publisher.connection.blocked("")
    publisher.connection.unblocked()
    assert is_paused(publisher)
    subscriber.catch_up()
    assert not is_paused(publisher)


def test_a_will_slows_nobody() -> None:
    world = World()
    subscriber = world.subscriber("mqtt")
    publisher = world.client("mqtt")
    leaving = End(world, "mqtt")
    leaving.feed(mqtt.connect("will", will=("t", bytes(3 * MARK), 0, False)))
    subscriber.fill()
    publisher.feed(mqtt.publish("t", bytes(MARK)))
    leaving.lose()
    assert not world.broker.pacing.reached
    publisher.feed(mqtt.publish("other", b"x"))
    assert not is_paused(publisher)


@pytest.mark.parametrize("source", ["mqtt", "amqp", "native"])
@pytest.mark.parametrize("ends", ["reads", "leaves"])
def test_a_subscriber_that_ends_its_slowdown_in_the_turn_of_a_will_stops_nobody(
    source: str, ends: str
) -> None:
    """The will reaches it, it reads all or is gone, and then a publisher is fed, in one turn."""
    world = World()
    subscriber = world.subscriber("mqtt")
    first = world.client("mqtt")
    publisher = world.client(source)
    leaving = End(world, "mqtt")
    leaving.feed(mqtt.connect("will", will=("t", b"gone", 0, False)))
    subscriber.fill()
    publish_until_paused(first, RUNS["mqtt"])
    for end in (leaving, subscriber):
        if end is subscriber and ends == "reads":
            end.connection.resume_writing()
        else:
            end.connection.is_closed = True
            world.broker.remove_connection(end.connection)
            end.connection.lost()
    publisher.feed(RUNS[source])
    world.advance(MOMENT_MS / 1000)
    assert not is_paused(publisher)
    assert not is_paused(first)


def test_what_a_socket_takes_at_once_slows_nobody() -> None:
    world = World()
    subscriber = world.subscriber("mqtt")
    publisher = world.client("mqtt")
    assert publish_until_paused(publisher, RUNS["mqtt"]) == 100
    assert subscriber.transport.written.count(PAYLOAD) == 100 * RUN


@pytest.mark.parametrize(("mark", "burst"), [(0, 10), (11, 10), (-1, 10)])
def test_the_mark_is_at_most_the_burst(mark: int, burst: int) -> None:
    with pytest.raises(ConfigError, match="live_output_bytes"):
        LimitsConfig(live_output_bytes=mark, live_burst_bytes=burst)
