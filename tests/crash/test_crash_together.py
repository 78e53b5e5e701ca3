"""All protocols publish to one queue and one stream over a broker that is killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from interop.amqp import bodies, channel, url
from interop.brokers import TriviumProcess
from interop.mqtt import PATIENCE
from interop.native import open_client, read_all
from tests.crash.kills import Kills
from tests.crash.publishers import LOST, MqttPublisher, publish_by_amqp, publish_by_native

EACH = 600
MQTT, AMQP, NATIVE = 0, 1_000_000, 2_000_000


@pytest.mark.parametrize("broker", ["plain", "encrypted"], indirect=True)
def test_what_any_protocol_acknowledged_is_in_the_queue_and_in_the_stream(
    broker: TriviumProcess, seed: int
) -> None:
    ports = broker.ports
    with channel(ports["amqp"]) as opened, open_client(ports["native"]) as client:
        opened.queue_declare("crash", durable=True)
        opened.queue_bind("crash", "amq.topic", "crash.#")
        client.declare_stream("log")
        client.bind_stream("log", "amq.topic", "crash.#")
    # A native acknowledgement counts once for its batch.
    kills = Kills(broker, seed, 2 * EACH)
    acknowledged: list[int] = []

    def by_mqtt(number: int, stop: int) -> int:
        publisher = MqttPublisher(ports["mqtt"], kills, lambda _: "crash/mqtt")
        number = publisher.run(number, stop)
        acknowledged.extend(publisher.acknowledged)
        return number

    def by_amqp(number: int, stop: int) -> int:
        return asyncio.run(
            publish_by_amqp(
                url(ports["amqp"]), kills, acknowledged, number, stop, "amq.topic", "crash.amqp"
            )
        )

    def by_native(number: int, stop: int) -> int:
        return publish_by_native(ports["native"], kills, acknowledged, number, stop)

    def work(publish: Callable[[int, int], int], number: int) -> None:
        stop = number + EACH
        while number < stop:
            assert kills.is_up.wait(PATIENCE)
            try:
                number = publish(number, stop)
            except LOST:
                # It was killed again while this one connected, so nothing was sent.
                continue

    threads = [
        threading.Thread(target=kills.restart_each),
        threading.Thread(target=work, args=(by_mqtt, MQTT)),
        threading.Thread(target=work, args=(by_amqp, AMQP)),
        threading.Thread(target=work, args=(by_native, NATIVE)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with channel(ports["amqp"]) as opened:
        queued = [int(body) for body in bodies(opened, "crash")]
    with open_client(ports["native"]) as client:
        streamed = [int(record.payload) for record in read_all(client, "log")]
    assert set(queued) >= set(acknowledged)
    assert len(acknowledged) > 2 * EACH, "most was acknowledged"
    assert len(queued) == len(set(queued)), "nothing was sent twice"
    assert streamed == queued, "the same messages in the same order"
