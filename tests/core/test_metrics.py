"""Counters as Prometheus sees them, read with Prometheus's own parser."""

from collections.abc import Iterable

import psutil
import pytest

from tests.support.metrics import Key, parse
from trivium import __version__
from trivium.observability.metrics import ProtocolMetrics, Sample, render
from trivium.observability.process import process_samples


def rendered(
    protocols: dict[str, ProtocolMetrics], samples: Iterable[Sample | None]
) -> dict[Key, float]:
    return parse("".join(render(protocols, samples)))


def test_counters_carry_the_protocol_as_label() -> None:
    mqtt, amqp = ProtocolMetrics(), ProtocolMetrics()
    mqtt.messages_received = 3
    amqp.messages_received = 2**60
    values = rendered({"mqtt": mqtt, "amqp": amqp}, [])
    assert values["trivium_messages_received_total", (("protocol", "mqtt"),)] == 3
    assert values["trivium_messages_received_total", (("protocol", "amqp"),)] == 2**60


def test_every_counter_is_rendered() -> None:
    metrics = ProtocolMetrics()
    # Only MQTT counts these, and has its own way to show them.
    own = {"payload_bytes_received", "payload_bytes_sent", "connects_received"}
    names = [name for name in dir(metrics) if not name.startswith("_") and name not in own]
    assert "messages_dropped" in names
    for number, name in enumerate(names, start=1):
        setattr(metrics, name, number * 1000)
    shown = set(rendered({"mqtt": metrics}, []).values())
    assert {number * 1000 for number in range(1, len(names) + 1)} <= shown


def test_open_connections_are_opened_less_closed() -> None:
    metrics = ProtocolMetrics()
    metrics.connections_opened, metrics.connections_closed = 7, 5
    values = rendered({"mqtt": metrics}, [])
    assert values["trivium_connections", (("protocol", "mqtt"),)] == 2


def test_samples_of_one_name_form_one_family() -> None:
    samples = [
        Sample("queue_messages", "gauge", "Messages in queues", 4, 'state="ready"'),
        Sample("queue_messages", "gauge", "Messages in queues", 1, 'state="unacknowledged"'),
        Sample("process_cpu_seconds_total", "counter", "CPU time", 0.25),
    ]
    text = "".join(render({}, samples))
    values = parse(text)
    assert values["trivium_queue_messages", (("state", "ready"),)] == 4
    assert values["trivium_queue_messages", (("state", "unacknowledged"),)] == 1
    assert values["process_cpu_seconds_total", ()] == 0.25
    assert text.count("# TYPE trivium_queue_messages gauge") == 1
    assert '\ntrivium_queue_messages{state="ready"} 4\n' in text


def test_process_metrics_describe_this_process() -> None:
    values = rendered({}, process_samples())
    own = psutil.Process()
    ((_, labels),) = (key for key in values if key[0] == "trivium_info")
    assert dict(labels)["version"] == __version__
    assert values["process_resident_memory_bytes", ()] == pytest.approx(
        own.memory_info().rss, rel=0.2
    )
    assert values["process_open_fds", ()] == pytest.approx(own.num_fds(), abs=2)
    assert 0 < values["process_cpu_seconds_total", ()] < 10_000
    assert values["process_start_time_seconds", ()] >= own.create_time() - 1
