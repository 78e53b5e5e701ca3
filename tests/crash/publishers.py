"""Publishers that send nothing again: what is there after a crash was kept by the broker.

Each publishes numbers until its connection is lost or ``stop`` is reached, notes those that were
acknowledged, and says which number is the next that was not sent.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiormq

from interop.mqtt import Mqtt
from interop.native import open_client
from tests.crash.kills import Kills
from trivium_native.errors import NativeError
from trivium_native.values import Publication

#: publishes that wait for their acknowledgement; fewer than the acknowledgements between two kills
WINDOW = 30
#: what aiormq raises when its connection is lost
LOST = (aiormq.exceptions.AMQPError, RuntimeError, OSError, asyncio.CancelledError)
#: messages of a request of the native protocol
BATCH = 10


class MqttPublisher:
    """By paho without a session, at QoS 1."""

    def __init__(
        self, port: int, kills: Kills, topic: Callable[[int], str], retain: bool = False
    ) -> None:
        self._kills = kills
        self._topic = topic
        self._retain = retain
        self._window = threading.Semaphore(WINDOW)
        self._lost = threading.Event()
        self._numbers: dict[int, int] = {}
        self.acknowledged: list[int] = []
        self._client = Mqtt(port)
        self._client.client.on_publish = self._published
        self._client.client.on_disconnect = lambda *_: self._lost.set()

    def _published(self, _client: Any, _data: Any, packet_id: int, *_: Any) -> None:
        self.acknowledged.append(self._numbers[packet_id])
        self._kills.acknowledged()
        self._window.release()

    def run(self, number: int, stop: int) -> int:
        """Publish the numbers from ``number`` on."""
        while number < stop and not self._lost.is_set():
            if self._window.acquire(timeout=0.05):
                # A client numbers its packets from 1 on.
                self._numbers[len(self._numbers) + 1] = number
                info = self._client.publish_later(
                    self._topic(number), b"%d" % number, retain=self._retain
                )
                assert info.mid == len(self._numbers)
                number += 1
        # Until all is acknowledged, or will not be.
        waiting = WINDOW
        while waiting and not self._lost.is_set():
            if self._window.acquire(timeout=0.05):
                waiting -= 1
        self._client.close()
        return number


async def publish_by_amqp(
    url: str,
    kills: Kills,
    acknowledged: list[int],
    number: int,
    stop: int,
    exchange: str = "",
    key: str = "crash",
) -> int:
    """By aiormq with confirms, persistent messages. May raise one of LOST."""
    connection = await aiormq.connect(url)
    opened = await connection.channel(publisher_confirms=True)
    window = asyncio.Semaphore(WINDOW)
    lost = asyncio.Event()
    persistent = aiormq.spec.Basic.Properties(delivery_mode=2)

    async def publish(number: int) -> None:
        try:
            await opened.basic_publish(
                b"%d" % number, exchange=exchange, routing_key=key, properties=persistent
            )
        except LOST:
            lost.set()
        else:
            acknowledged.append(number)
            kills.acknowledged()
        finally:
            window.release()

    tasks = []
    while number < stop and not lost.is_set():
        await window.acquire()
        tasks.append(asyncio.create_task(publish(number)))
        number += 1
    await asyncio.gather(*tasks)
    with suppress(*LOST):
        await connection.close()
    return number


def batch(first: int, key: str = "crash.native") -> list[Publication]:
    """A request's messages."""
    return [Publication(payload=b"%d" % (first + i), routing_key=key) for i in range(BATCH)]


def publish_by_native(
    port: int, kills: Kills, acknowledged: list[int], number: int, stop: int
) -> int:
    """By the native client, a batch at a time."""
    with suppress(NativeError), open_client(port) as client:
        while number < stop:
            number += BATCH
            client.publish_batch(batch(number - BATCH))
            acknowledged += range(number - BATCH, number)
            kills.acknowledged()
    return number
