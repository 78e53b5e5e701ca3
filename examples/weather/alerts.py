"""The back end: pika keeps means and alerts in queues, and reads them from there."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pika

MEANS, ALERTS = "weather-means", "weather-alerts"


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean temperature of a day, of so many readings."""

    city: str
    day: str
    mean: float
    readings: int


def declare_queues(port: int) -> None:
    """Make the queues before anything is published, so that they miss nothing."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        for queue, key in ((MEANS, "weather.*.mean"), (ALERTS, "weather.*.alert")):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.topic", key)


def read_queue(port: int, queue: str) -> list[Mean]:
    """Take everything out of a queue, by city and day.

    Spark delivers at least once: a task that it repeats publishes its rows again, with the same
    values. Keyed by city and day, they count once.
    """
    found: dict[tuple[str, str], Mean] = {}
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        while True:
            method, _, body = channel.basic_get(queue)
            if method is None or body is None:
                return [found[key] for key in sorted(found)]
            mean = Mean(**json.loads(body))
            found[mean.city, mean.day] = mean
            assert method.delivery_tag is not None
            channel.basic_ack(method.delivery_tag)
