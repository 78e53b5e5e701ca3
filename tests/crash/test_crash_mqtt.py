"""MQTT clients over a broker that is killed: what PUBACK and PUBCOMP promise holds."""

from __future__ import annotations

import queue
import threading
from typing import Any, cast

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from interop.amqp import channel, consume
from interop.brokers import TriviumProcess
from interop.mqtt import PATIENCE, V5, V311, Mqtt
from tests.crash.kills import Kills
from tests.crash.publishers import WINDOW, MqttPublisher

VERSIONS = pytest.mark.parametrize("version", [V311, V5], ids=["v311", "v5"])
HOUR = 3600


def resuming(
    broker: TriviumProcess, client_id: str, version: MQTTProtocolVersion = V5, **options: Any
) -> Mqtt:
    """A client with a persistent session."""
    return Mqtt(broker.ports["mqtt"], client_id, version=version, session=HOUR, **options)


def publish_all(
    publisher: Mqtt, topic: str, count: int, qos: int, kills: Kills, *others: Mqtt
) -> None:
    """Publish numbers while the broker is killed; returns when all are acknowledged.

    The publisher and ``others`` resume their sessions after each kill.
    """
    # paho's own window does not hold for what it sends again on a new connection, and it sends new
    # messages ahead of those.
    window = threading.Semaphore(WINDOW)
    idle = threading.Semaphore(0)
    sent = acknowledged = 0
    inner = publisher.client.on_publish
    assert inner is not None

    def published(*arguments: Any) -> None:
        nonlocal acknowledged
        cast("Any", inner)(*arguments)
        acknowledged += 1
        kills.acknowledged()
        window.release()
        if acknowledged == sent:
            idle.release()

    def publish() -> None:
        nonlocal sent
        for i in range(count):
            if not (window.acquire(timeout=PATIENCE) and kills.may_publish.wait(PATIENCE)):
                return
            sent += 1
            publisher.publish_later(topic, b"%d" % i, qos)

    publisher.client.on_publish = published
    thread = threading.Thread(target=publish)
    thread.start()
    for _ in range(kills.kills):
        kills.restart()
        for client in (*others, publisher):
            assert client.resume().session_present, "the session survives"
        while acknowledged < sent:
            assert idle.acquire(timeout=PATIENCE), f"{acknowledged} of {sent} were acknowledged"
        # Identifiers that were released before the kill must be good for new messages.
        publisher.client._last_mid = 0
        kills.may_publish.set()
    while acknowledged < count:
        assert idle.acquire(timeout=PATIENCE), f"{acknowledged} of {count} were acknowledged"
    thread.join()
    publisher.client.on_publish = inner


def numbers_until(client: Mqtt, end: bytes) -> list[int]:
    """What a client receives up to a last message."""
    found: list[int] = []
    while (payload := bytes(client.receive().payload)) != end:
        found.append(int(payload))
    return found


def firsts(numbers: list[int]) -> list[int]:
    """The numbers without repetitions, in the order of their first occurrence."""
    return list(dict.fromkeys(numbers))


@VERSIONS
def test_puback_means_kept_for_an_offline_session(
    broker: TriviumProcess, seed: int, version: MQTTProtocolVersion
) -> None:
    count = 1500
    sleeper = resuming(broker, "sleeper", version)
    sleeper.subscribe("crash/#", 1)
    sleeper.close()
    with resuming(broker, "publisher", version) as publisher:
        publish_all(publisher, "crash/a", count, 1, Kills(broker, seed, count))
        publisher.publish("crash/end", b"end")
    with resuming(broker, "sleeper", version) as sleeper:
        assert sleeper.connack.session_present
        assert firsts(numbers_until(sleeper, b"end")) == list(range(count))


@VERSIONS
def test_puback_means_kept_for_a_connected_session(
    broker: TriviumProcess, seed: int, version: MQTTProtocolVersion
) -> None:
    count = 1500
    with (
        resuming(broker, "subscriber", version) as subscriber,
        resuming(broker, "publisher", version) as publisher,
    ):
        subscriber.subscribe("crash/#", 1)
        publish_all(publisher, "crash/a", count, 1, Kills(broker, seed, count), subscriber)
        publisher.publish("crash/end", b"end")
        found = numbers_until(subscriber, b"end")
        assert firsts(found) == list(range(count))


@VERSIONS
def test_qos_2_is_exactly_once_from_end_to_end(
    broker: TriviumProcess, seed: int, version: MQTTProtocolVersion
) -> None:
    count = 800
    with (
        resuming(broker, "subscriber", version) as subscriber,
        resuming(broker, "publisher", version) as publisher,
    ):
        subscriber.subscribe("crash/#", 2)
        publish_all(publisher, "crash/a", count, 2, Kills(broker, seed, count), subscriber)
        found = sorted(int(payload) for payload in subscriber.receive_payloads(count))
        assert found == list(range(count)), "each once"
        publisher.publish("crash/end", b"end", 2)
        assert subscriber.receive().payload == b"end", "and none again"


def test_qos_2_is_exactly_once_for_an_offline_session(broker: TriviumProcess, seed: int) -> None:
    count = 800
    sleeper = resuming(broker, "sleeper")
    sleeper.subscribe("crash/#", 2)
    sleeper.close()
    with resuming(broker, "publisher") as publisher:
        publish_all(publisher, "crash/a", count, 2, Kills(broker, seed, count))
        publisher.publish("crash/end", b"end", 2)
    with resuming(broker, "sleeper") as sleeper:
        assert numbers_until(sleeper, b"end") == list(range(count))


@pytest.mark.parametrize("broker", ["plain", "encrypted"], indirect=True)
def test_qos_2_publishes_are_once_and_in_order_in_an_amqp_queue(
    broker: TriviumProcess, seed: int
) -> None:
    count = 800
    with channel(broker.ports["amqp"]) as opened:
        opened.queue_declare("crash", durable=True)
        opened.queue_bind("crash", "amq.topic", "crash.#")
    with resuming(broker, "publisher") as publisher:
        publish_all(publisher, "crash/a", count, 2, Kills(broker, seed, count))
    with channel(broker.ports["amqp"]) as opened:
        found = consume(opened, "crash", count, auto_ack=True)
        numbers = [int(message.body) for message in found]
        assert sorted(numbers) == list(range(count)), "each once"
        assert numbers == list(range(count)), "in order"
        opened.cancel()
        assert opened.queue_declare("crash", passive=True).method.message_count == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_subscriber_of_a_backlog_gets_all_of_it(
    broker: TriviumProcess, seed: int, qos: int
) -> None:
    """The kills fall between deliveries, their acknowledgements and the release of QoS 2."""
    count = 1000
    sleeper = resuming(broker, "sleeper")
    sleeper.subscribe("crash/#", qos)
    sleeper.close()
    with Mqtt(broker.ports["mqtt"], inflight=200) as publisher:
        infos = [publisher.publish_later("crash/a", b"%d" % i, qos) for i in range(count)]
        for info in infos:
            info.wait_for_publish(20)
    kills = Kills(broker, seed, count)
    sleeper = resuming(broker, "sleeper", connects=False, ReceiveMaximum=20)
    numbers: queue.Queue[int] = queue.Queue()

    def received(_client: object, _data: object, message: Any) -> None:
        numbers.put(int(message.payload))
        kills.acknowledged()

    sleeper.client.on_message = received
    assert sleeper.connect().session_present
    for _ in range(kills.kills):
        kills.restart()
        assert sleeper.resume().session_present
    missing = set(range(count))
    found = []
    while missing:
        found.append(numbers.get(timeout=20))
        missing.discard(found[-1])
    with Mqtt(broker.ports["mqtt"]) as publisher:
        publisher.publish("crash/end", b"-1", qos)
    while (number := numbers.get(timeout=20)) != -1:
        found.append(number)
    sleeper.close()
    if qos == 2:
        assert sorted(found) == list(range(count)), "each once"
    else:
        assert firsts(found) == list(range(count))


@VERSIONS
def test_what_may_have_been_delivered_comes_back_with_dup(
    broker: TriviumProcess, version: MQTTProtocolVersion
) -> None:
    first = resuming(broker, "subscriber", version, acknowledges=False)
    first.subscribe("crash/a", 1)
    with Mqtt(broker.ports["mqtt"]) as publisher:
        for i in range(10):
            publisher.publish("crash/a", b"%d" % i)
    assert not any(first.receive().dup for _ in range(10))
    broker.kill()
    first.disconnected()
    first.client.disconnect()
    first.client.loop_stop()
    broker.start()
    with resuming(broker, "subscriber", version) as again:
        messages = [again.receive() for _ in range(10)]
        assert [int(m.payload) for m in messages] == list(range(10))
        assert all(m.dup for m in messages)
        with Mqtt(broker.ports["mqtt"]) as publisher:
            publisher.publish("crash/a", b"new")
        message = again.receive()
        assert (message.payload, message.dup) == (b"new", False)


def test_puback_means_the_retained_message_is_kept(broker: TriviumProcess, seed: int) -> None:
    """Each topic's retained message is the last acknowledged one, or one that was sent later."""

    def topic_of(number: int) -> str:
        return f"crash/{number % 7}"

    kills = Kills(broker, seed, 600)
    number = 1
    for _ in range(kills.kills):
        restart = threading.Thread(target=kills.restart)
        restart.start()
        publisher = MqttPublisher(broker.ports["mqtt"], kills, topic_of, retain=True)
        number = publisher.run(number, 1_000_000)
        restart.join()
        acknowledged = {topic_of(n): n for n in publisher.acknowledged}
        with Mqtt(broker.ports["mqtt"]) as reader:
            reader.subscribe("crash/+", 1)
            for _ in range(7):
                message = reader.receive()
                assert acknowledged[message.topic] <= int(message.payload) < number


def test_qos_1_after_a_crash_in_one_turn_is_settled_for_good(broker: TriviumProcess) -> None:
    """What the subscriber acknowledged before a publish of its own that was answered stays away."""
    with resuming(broker, "subscriber") as subscriber, Mqtt(broker.ports["mqtt"]) as publisher:
        subscriber.subscribe("crash/#", 1)
        for i in range(20):
            publisher.publish("crash/a", b"%d" % i)
        assert subscriber.receive_payloads(20) == [b"%d" % i for i in range(20)]
        # Its PUBACK leaves this client after those of the messages, and is answered after them.
        subscriber.publish("crash/own", b"own")
        assert subscriber.receive().payload == b"own"
    broker.restart()
    with resuming(broker, "subscriber") as subscriber:
        assert subscriber.connack.session_present
        subscriber.publish("crash/end", b"end")
        left = numbers_until_text(subscriber, b"end")
        assert set(left) <= {b"own"}


def numbers_until_text(client: Mqtt, end: bytes) -> list[bytes]:
    found: list[bytes] = []
    while (payload := bytes(client.receive().payload)) != end:
        found.append(payload)
    return found
