"""The metrics that a scrape asks for, read with Prometheus's own parser."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from tests.support import amqp
from tests.support.core import RecordingConsumer, message, open_broker
from tests.support.metrics import Key, metrics_text, parse
from tests.support.permitted import make_server
from tests.support.storages import HeldStorage
from trivium.common.histograms import Histogram
from trivium.common.quotas import USER
from trivium.config import Config, MetricsConfig
from trivium.host import Timings
from trivium.observability.metrics import (
    ROWS_AT_ONCE,
    Sample,
    histogram_samples,
    render,
)
from trivium.runtime.broker import Broker
from trivium.runtime.exposition import metrics
from trivium.runtime.object_samples import FAMILIES
from trivium.vhost.virtual_host import VirtualHost

DETAILED = "/metrics/detailed"


@pytest.fixture
def broker() -> Broker:
    return open_broker(HeldStorage())


@pytest.fixture
def vhost(broker: Broker) -> VirtualHost:
    return broker.vhosts["/"]


def scrape(broker: Broker, *families: str, vhost: str = "") -> dict[Key, float]:
    query = [("family", family) for family in families]
    if vhost:
        query.append(("vhost", vhost))
    return parse(metrics_text(broker, DETAILED, *query))


def value(found: dict[Key, float], name: str, **labels: str) -> float:
    return found[f"trivium_detailed_{name}", tuple(sorted(labels.items()))]


def limit(broker: Broker, **settings: Any) -> None:
    broker.config = Config(metrics=MetricsConfig(**settings))


# What is asked for


def test_metrics_have_nothing_of_single_objects(broker: Broker, vhost: VirtualHost) -> None:
    vhost.declare_queue("q")
    assert "detailed" not in metrics_text(broker)


@pytest.mark.parametrize(
    ("path", "query"),
    [("/metrics/per-object", ()), ("/metrics", (("per_object", "true"),))],
)
def test_per_object_metrics_have_everything(
    broker: Broker, vhost: VirtualHost, path: str, query: tuple[tuple[str, str], ...]
) -> None:
    vhost.declare_queue("q")
    found = parse(metrics_text(broker, path, *query))
    assert found["trivium_queues", ()] == 1
    assert value(found, "queue_consumers", vhost="/", queue="q") == 0


def test_what_metrics_have_can_be_configured(broker: Broker, vhost: VirtualHost) -> None:
    limit(broker, per_object=True)
    assert "detailed" in metrics_text(broker)
    assert "detailed" not in metrics_text(broker, "/metrics", ("per_object", "false"))


def test_detailed_metrics_have_what_is_named_alone(broker: Broker, vhost: VirtualHost) -> None:
    vhost.declare_queue("q")
    names = {name for name, _ in scrape(broker, "queue_consumer_count")}
    assert names == {"trivium_detailed_queue_consumers", "trivium_detailed_objects_left_out"}
    assert metrics_text(broker, DETAILED) == ""


def test_detailed_metrics_of_one_virtual_host(broker: Broker) -> None:
    broker.virtual_hosts.declare("other")
    for vhost in broker.vhosts.values():
        vhost.declare_queue("q")
    found = scrape(broker, "queue_consumer_count", vhost="other")
    hosts = [dict(labels).get("vhost") for _, labels in found]
    assert [host for host in hosts if host] == ["other"]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        (DETAILED, ("family", "unknown")),
        ("/metrics", ("family", "queue_consumer_count")),
        ("/metrics", ("per_object", "perhaps")),
        (DETAILED, ("per_object", "true")),
    ],
)
def test_what_is_not_known_is_refused_at_once(
    broker: Broker, path: str, query: tuple[str, str]
) -> None:
    with pytest.raises(ValueError, match=query[0]):
        metrics(broker, path, [query])


# How it is written


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\\nb", 'ä"\\\n,{}='])
def test_labels_are_escaped(broker: Broker, vhost: VirtualHost, name: str) -> None:
    vhost.declare_queue(name)
    vhost.declare_exchange(name, "direct")
    found = parse(metrics_text(broker, "/metrics/per-object"))
    assert value(found, "queue_consumers", vhost="/", queue=name) == 0
    assert value(found, "exchange_messages_published_total", vhost="/", exchange=name) == 0


def test_each_family_is_described_once_whatever_there_is(
    broker: Broker, vhost: VirtualHost
) -> None:
    for name in ("a", "b"):
        queue = vhost.declare_queue(name, arguments={"x-max-length": 1})
        for _ in range(3):
            queue.put(message(b"x"), b"")
    # ``parse`` says so.
    parse(metrics_text(broker, "/metrics/per-object"))


def test_names_follow_the_rules_of_prometheus(broker: Broker, vhost: VirtualHost) -> None:
    for family in FAMILIES.values():
        for metric in family.metrics:
            assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
            assert metric.kind in ("counter", "gauge")
            assert metric.text


def test_a_histogram_has_rising_buckets_sum_and_count() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 3.0):
        histogram.observe(seconds)
    found = parse("".join(render({}, list[Sample | None](histogram_samples("x", "X", histogram)))))
    buckets = [found["trivium_x_bucket", (("le", each),)] for each in ("0.1", "1.0", "+Inf")]
    assert buckets == [2, 3, 4]
    assert found["trivium_x_count", ()] == 4
    assert found["trivium_x_sum", ()] == pytest.approx(3.65)


# Bounds


def test_no_more_series_than_may_be(broker: Broker, vhost: VirtualHost) -> None:
    limit(broker, max_series=7)
    for number in range(10):
        vhost.declare_queue(f"q{number}")
    found = scrape(broker, "queue_consumer_count", "queue_coarse_metrics")
    assert len(found) == 7 + 1
    assert found["trivium_detailed_objects_left_out", ()] == 3 + 10


def test_families_share_what_room_there_is(broker: Broker, vhost: VirtualHost) -> None:
    vhost.declare_stream("s", 2)
    # There are 4 samples of each queue, 5 of each partition, 3 of each exchange.
    names = ("queue_coarse_metrics", "stream_metrics", "exchange_metrics")
    exchanges = len(vhost.exchanges)
    for number in range(100):
        vhost.declare_queue(f"q{number}")
    limit(broker, max_series=2 * 5 + 4 * 10 + 3 * exchanges)
    found = scrape(broker, *names)
    assert len(found) == broker.config.metrics.max_series + 1
    assert found["trivium_detailed_objects_left_out", ()] == 90
    assert value(found, "stream_partition_records", vhost="/", stream="s", partition="1") == 0
    # Each family has a third, and what streams leave is for the others.
    limit(broker, max_series=5 + 5 + 40)
    found = scrape(broker, *names)
    kinds = Counter(name.split("_")[2] for name, _ in found)
    assert kinds["stream"] == 10
    assert (kinds["queue"], kinds["exchange"]) == (20, min(18, 3 * exchanges))
    # Too little for a share to be of any use: what fits first is there.
    limit(broker, max_series=5)
    assert len(scrape(broker, *names)) == 4 + 1


def test_given_up_messages_are_counted_from_0_on_for_each_reason(broker: Broker) -> None:
    found = parse(metrics_text(broker))
    for name, reasons in (
        ("dead_lettered", ("delivery_limit", "expired", "maxlen", "rejected")),
        ("dropped", ("expired", "moved", "purged", "undeliverable")),
    ):
        for reason in reasons:
            full = f"trivium_queue_messages_{name}_total"
            assert found[full, (("reason", reason),)] == 0


def test_dead_letters_of_an_object_are_counted_from_0_on(
    broker: Broker, vhost: VirtualHost
) -> None:
    vhost.declare_queue("with", arguments={"x-dead-letter-exchange": "amq.fanout"})
    vhost.declare_queue("without")
    found = scrape(broker, "queue_delivery_metrics", "vhost_metrics")
    for reason in ("delivery_limit", "expired", "maxlen", "rejected"):
        name = "queue_messages_dead_lettered_total"
        assert value(found, name, vhost="/", queue="with", reason=reason) == 0
        name = "vhost_messages_dead_lettered_total"
        assert value(found, name, vhost="/", reason=reason) == 0
    assert not any(
        "dead_lettered" in name and ("queue", "without") in labels for name, labels in found
    )


def test_others_are_served_while_metrics_are_made(broker: Broker, vhost: VirtualHost) -> None:
    for number in range(10 * ROWS_AT_ONCE):
        vhost.declare_queue(f"q{number}")
    for path, query in ((DETAILED, [("family", "queue_coarse_metrics")]), ("/metrics", [])):
        pieces = list(metrics(broker, path, query))
        assert pieces.count("") >= 9, path


def test_a_queue_that_goes_meanwhile_counts_once(broker: Broker, vhost: VirtualHost) -> None:
    for number in range(2 * ROWS_AT_ONCE):
        vhost.declare_queue(f"q{number}").put(message(b"x"), b"")
    pieces = metrics(broker, DETAILED, [("family", "vhost_metrics")])
    first = next(pieces)
    assert first == ""
    for name in ("q0", f"q{2 * ROWS_AT_ONCE - 1}"):
        vhost.delete_queue(vhost.queues[name])
    found = parse("".join(pieces))
    expected = 2 * ROWS_AT_ONCE
    assert value(found, "vhost_messages_published_total", vhost="/") == expected
    found = scrape(broker, "vhost_metrics")
    assert value(found, "vhost_messages_published_total", vhost="/") == expected


# What the families say


def test_queue_metrics(broker: Broker, vhost: VirtualHost) -> None:
    queue = vhost.declare_queue("q", durable=True)
    consumer = RecordingConsumer(credit=2)
    queue.add_consumer(consumer)
    for _ in range(3):
        queue.put(message(b"12345"), b"")
    queue.settle(consumer.entries[0])
    found = scrape(broker, "queue_coarse_metrics", "queue_consumer_count", "queue_delivery_metrics")
    of = {"vhost": "/", "queue": "q"}
    states = {"ready": 1, "unsettled": 1, "waiting": 0}
    for state, count in states.items():
        assert value(found, "queue_messages", **of, state=state) == count
    assert value(found, "queue_ready_bytes", **of) == 5
    assert value(found, "queue_consumers", **of) == 1
    assert value(found, "queue_messages_published_total", **of) == 3
    assert value(found, "queue_messages_delivered_total", **of, ack="manual") == 2
    assert value(found, "queue_messages_acknowledged_total", **of) == 1


def test_stream_and_group_metrics(broker: Broker, vhost: VirtualHost) -> None:
    stream = vhost.declare_stream("s", 2)
    for number in range(4):
        stream.accept(message(b"x", b"%d" % number, "e"))
    broker.end_turn()
    assert isinstance(broker.storage, HeldStorage)
    broker.storage.complete()
    filled = next(each for each in stream.partitions if each.high_watermark)
    vhost.groups.commit("g", stream, [(filled.index, 1)])
    found = scrape(broker, "stream_metrics", "group_metrics")
    of = {"vhost": "/", "stream": "s", "partition": str(filled.index)}
    count = filled.high_watermark
    assert value(found, "stream_partition_records", **of) == count
    assert value(found, "stream_partition_high_watermark", **of) == count
    assert value(found, "stream_partition_records_appended_total", **of) == count
    assert value(found, "group_lag_records", **of, group="g") == count - 1
    assert value(found, "group_committed_offset", **of, group="g") == 1
    groups = [name for name, _ in found if name == "trivium_detailed_group_lag_records"]
    assert len(groups) == 1, "not of partitions where it never committed"


def test_account_metrics_have_what_is_gone(broker: Broker) -> None:
    account = broker.quotas.account(USER, "ann")
    account.traffic.published += 3
    account.traffic.bytes_sent += 10
    found = scrape(broker, "user_client_metrics")
    assert value(found, "user_client_messages_published_total", user="ann") == 3
    assert value(found, "user_client_sent_bytes_total", user="ann") == 10


def test_connection_and_channel_metrics() -> None:
    server = make_server()
    client = server.amqp("root")
    client.open_channel(2)
    client.publish("k", exchange="x")
    client.consume("q")
    server.mqtt("root", "device")
    # One that is not in yet is not shown.
    amqp.Client(server)
    families = ("connection_metrics", "connection_coarse_metrics", "channel_metrics")
    found = scrape(server.broker, *families)
    labels = {"vhost": "/", "connection": "127.0.0.1:1 -> ", "user": "root", "protocol": "amqp"}
    expected = {
        "connection_messages_published_total": 1,
        "connection_messages_delivered_total": 1,
        "connection_channels": 2,
        "connection_received_bytes_total": client.connection.traffic.bytes_received,
    }
    for name, wanted in expected.items():
        assert value(found, name, **labels) == wanted
    of_channel = {**labels, "channel": "1"}
    assert value(found, "channel_messages_unsettled", **of_channel) == 1
    assert value(found, "channel_consumers", **of_channel) == 1
    protocols = {dict(key)["protocol"] for _, key in found if "connection" in dict(key)}
    assert protocols == {"amqp", "mqtt", "native"}


def test_connections_of_other_virtual_hosts_are_left_out() -> None:
    server = make_server()
    server.amqp("root")
    assert scrape(server.broker, "connection_metrics", vhost="elsewhere").keys() == {
        ("trivium_detailed_objects_left_out", ())
    }


def test_what_became_of_messages_is_summed_up(broker: Broker, vhost: VirtualHost) -> None:
    queue = vhost.declare_queue("q", arguments={"x-max-length": 1})
    for _ in range(3):
        queue.put(message(b"x"), b"")
    vhost.delete_queue(queue)
    found = parse(metrics_text(broker))
    assert found["trivium_queue_messages_published_total", ()] == 3
    assert found["trivium_queue_messages_dropped_total", (("reason", "maxlen"),)] == 2


# Times


def test_acknowledgements_are_measured_once_for_each_write_batch() -> None:
    class Storage(HeldStorage):
        @property
        def changes(self) -> int:
            return 1

    storage = Storage()
    timings = Timings()
    timings.began_at = time.monotonic()
    timings.end_turn(storage, 0)
    assert storage.waiters == [], "nothing came"
    for received in (1, 2):
        timings.end_turn(storage, received)
    storage.commit()
    storage.complete()
    assert sum(timings.acknowledgements.counts) == 1


def test_one_of_many_deliveries_is_measured(broker: Broker, vhost: VirtualHost) -> None:
    queue = vhost.declare_queue("q")
    queue.add_consumer(RecordingConsumer())
    sent = message(b"x")
    broker.now_ms = sent.timestamp + 2_000
    for _ in range(130):
        queue.put(sent, b"")
    found = parse(metrics_text(broker))
    assert found["trivium_publish_deliver_seconds_count", ()] == 3
    assert found["trivium_publish_deliver_seconds_sum", ()] == 6
