"""Real brokers that run short of disk or memory, as shipped but for their marks."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from interop.amqp import PERSISTENT, channel, connection, get
from interop.brokers import LOOPBACK, PROTOCOLS, TriviumProcess
from interop.mqtt import PATIENCE, Mqtt
from interop.native import open_client
from tests.crash.small_disk import small_disk
from trivium.cli import EXIT_IO, EXIT_OK
from trivium_native.errors import Blocked, ConnectionFailed
from trivium_native.values import Publication

MIB = 1 << 20
READY = '{"status": "ready"}'
#: bytes of a message and messages of a request
SIZE = 16 * 1024
BATCH = 16


def wait_for(what: Callable[[], bool], said: str) -> None:
    """Ask until something has become so; ``what`` waits for an answer each time."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, said


def readiness(port: int) -> str:
    """What /health/ready answers."""
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/health/ready") as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        return f"{refused.code} {refused.read().decode()}"


def body(number: int) -> bytes:
    return b"%d " % number + b"x" * SIZE


class Filler:
    """Publishes numbers by the native protocol until it is refused or the connection is lost."""

    def __init__(self, port: int, key: str, *, is_durable: bool = True) -> None:
        self._port = port
        self._key = key
        self._is_durable = is_durable
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        #: numbers that were acknowledged
        self.acknowledged: list[int] = []

    def _run(self) -> None:
        number = 0
        with open_client(self._port) as client:
            while not self._is_stopped.is_set():
                publications = [
                    Publication(
                        payload=body(number + i),
                        routing_key=self._key,
                        mandatory=True,
                        persistent=self._is_durable,
                    )
                    for i in range(BATCH)
                ]
                try:
                    client.publish_batch(publications)
                except (Blocked, ConnectionFailed):
                    return
                self.acknowledged += range(number, number + BATCH)
                number += BATCH

    @contextmanager
    def filling(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_stopped.set()
            self._thread.join()


def drain(opened: BlockingChannel, queue: str, is_last: Callable[[bytes], bool]) -> list[bytes]:
    """Consume and acknowledge until ``is_last``; what came, cut at its first space."""
    opened.basic_qos(prefetch_count=100)
    found: list[bytes] = []
    for method, _, payload in opened.consume(queue, inactivity_timeout=PATIENCE):
        assert method is not None, f"{len(found)} messages came"
        assert payload is not None
        found.append(payload.partition(b" ")[0])
        assert method.delivery_tag is not None
        opened.basic_ack(method.delivery_tag)
        if is_last(found[-1]):
            break
    opened.cancel()
    return found


def count(opened: BlockingChannel, queue: str) -> int:
    return opened.queue_declare(queue, passive=True).method.message_count


def test_publishers_wait_on_each_protocol_while_the_disk_is_short_and_consumers_go_on(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "data", 288 * MIB) as disk:
        broker = TriviumProcess(
            tmp_path,
            protocols=(*PROTOCOLS, "http"),
            environment={"TRIVIUM_LIMITS__DISK_FREE_BYTES": str(128 * MIB)},
            prefix=disk.prefix,
        )
        broker.start()
        try:
            use_up_the_disk(broker.ports)
            assert broker.stop() == EXIT_OK, broker.log_tail()
        finally:
            if broker.is_running:
                broker.kill()
        broker.check_log()
        log = broker.log.read_text()
        assert log.count("publishers are paused") >= 1, log
        assert log.count("publishers are paused") == log.count("the alarm is over"), log


def use_up_the_disk(ports: dict[str, int]) -> None:
    with (
        channel(ports["amqp"]) as consumer,
        connection(ports["amqp"]) as publisher,
        Mqtt(ports["mqtt"], keepalive=5) as device,
    ):
        told: list[str] = []
        publisher.add_on_connection_blocked_callback(
            lambda _, frame: told.append(frame.method.reason)
        )
        publisher.add_on_connection_unblocked_callback(lambda *_: told.append("go on"))

        def is_told(times: int) -> bool:
            publisher.process_data_events(1)
            return len(told) == times

        consumer.queue_declare("q", durable=True)
        consumer.queue_bind("q", "amq.topic", "#")
        filler = Filler(ports["native"], "native")
        with filler.filling():
            wait_for(lambda: readiness(ports["http"]) != READY, "no alarm")
            assert readiness(ports["http"]) == (
                '503 {"status": "unready", "reason": "low on disk: publishers are paused"}'
            )
            before = count(consumer, "q")
            opened = publisher.channel()
            opened.basic_publish("amq.topic", "amqp", b"amqp", PERSISTENT)
            wait_for(lambda: is_told(1), "not told")
            assert told == ["low on disk"]
            info = device.publish_later("mqtt", b"mqtt", qos=1)
            # Answered although it was sent behind the publish.
            assert device.subscribe("other") == 0
            assert not info.is_published()
            with open_client(ports["native"]) as client, pytest.raises(Blocked, match="on disk"):
                client.publish_batch([Publication(payload=b"native", routing_key="native")])
            assert count(consumer, "q") == before
            waiting = {b"amqp", b"mqtt"}

            def is_last(payload: bytes) -> bool:
                waiting.discard(payload)
                return not waiting

            found = drain(consumer, "q", is_last)
            info.wait_for_publish(PATIENCE)
            assert info.is_published()
            wait_for(lambda: is_told(2), "not told")
        assert told == ["low on disk", "go on"]
        wait_for(lambda: readiness(ports["http"]) == READY, "the alarm goes on")
        with open_client(ports["native"]) as client:
            client.publish_batch([Publication(payload=b"native", routing_key="native")])
        assert device.publish("mqtt", b"after") == 0
        rest = drain(consumer, "q", lambda payload: payload == b"after")
        assert rest == [b"native", b"after"]
        numbers = {int(name) for name in found if name.isdigit()}
        assert numbers >= set(filler.acknowledged)
        assert len(filler.acknowledged) * SIZE > 64 * MIB


PAIRS = 3000
LARGE_SIZE = 40_000


@pytest.mark.parametrize("queues", [("q", "q"), ("large", "small")])
def test_small_messages_do_not_keep_the_disk_short(tmp_path: Path, queues: tuple[str, str]) -> None:
    """Large ones that lay between them are consumed: that they are half of all must not matter."""

    def started(mark: int) -> TriviumProcess:
        broker = TriviumProcess(
            tmp_path,
            protocols=("amqp", "http"),
            environment={"TRIVIUM_LIMITS__DISK_FREE_BYTES": str(mark)},
            prefix=disk.prefix,
        )
        broker.start()
        return broker

    with small_disk(tmp_path / "data", 288 * MIB) as disk:
        broker = started(0)
        try:
            with channel(broker.ports["amqp"]) as opened:
                for name in queues:
                    opened.queue_declare(name, durable=True)
                for number in range(PAIRS):
                    if number == PAIRS - 1:
                        # What came before it is kept as well.
                        opened.confirm_delivery()
                    opened.basic_publish("", queues[0], b"x" * LARGE_SIZE, PERSISTENT)
                    opened.basic_publish("", queues[1], b"%08d" % number, PERSISTENT)
            with channel(broker.ports["amqp"]) as opened:
                consume_large(opened, queues[0])
            broker.kill()
            broker = started(224 * MIB)
            wait_for(lambda: readiness(broker.ports["http"]) == READY, "the alarm goes on")
            with channel(broker.ports["amqp"], confirms=True) as opened:
                opened.basic_publish("", queues[1], b"after", PERSISTENT)
                found = drain(opened, queues[1], lambda payload: payload == b"after")
            assert found == [*(b"%08d" % number for number in range(PAIRS)), b"after"]
            assert broker.stop() == EXIT_OK, broker.log_tail()
        finally:
            if broker.is_running:
                broker.kill()
        broker.check_log()
        assert "publishers are paused" in broker.log.read_text()


def consume_large(opened: BlockingChannel, queue: str) -> None:
    """Acknowledge the large messages of ``PAIRS``, and leave what is between them."""
    left = PAIRS
    for method, _, payload in opened.consume(queue, inactivity_timeout=PATIENCE):
        assert method is not None, f"{left} did not come"
        assert payload is not None
        if len(payload) == LARGE_SIZE:
            assert method.delivery_tag is not None
            opened.basic_ack(method.delivery_tag)
            left -= 1
            if left == 0:
                break
    # The acknowledgements are durable once this is.
    opened.queue_declare("done", durable=True)
    opened.confirm_delivery()
    opened.basic_publish("", "done", b"", PERSISTENT)


def test_a_full_disk_ends_the_broker_with_74_and_loses_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "data", 64 * MIB) as disk:
        broker = TriviumProcess(
            tmp_path, environment={"TRIVIUM_LIMITS__DISK_FREE_BYTES": "0"}, prefix=disk.prefix
        )
        broker.start()
        with channel(broker.ports["amqp"]) as opened:
            opened.queue_declare("q", durable=True)
            opened.queue_bind("q", "amq.topic", "#")
        filler = Filler(broker.ports["native"], "native")
        assert broker.process is not None
        with filler.filling():
            assert broker.process.wait(PATIENCE) == EXIT_IO
        assert "No space left on device" in broker.log_tail()
        assert len(filler.acknowledged) * SIZE > 16 * MIB
        disk.resize(256 * MIB)
        broker.start()
        with channel(broker.ports["amqp"]) as opened:
            numbers = []
            while (message := get(opened, "q")) is not None:
                numbers.append(int(message.body.partition(b" ")[0]))
        assert numbers == sorted(set(numbers))
        assert set(numbers) >= set(filler.acknowledged)
        assert broker.stop() == EXIT_OK


def test_memory_that_consumers_freed_ends_the_alarm(tmp_path: Path) -> None:
    broker = TriviumProcess(
        tmp_path,
        protocols=("amqp", "native", "http"),
        environment={"TRIVIUM_LIMITS__MEMORY_HIGH_BYTES": str(200 * MIB)},
    )
    broker.start()
    try:
        ports = broker.ports
        with channel(ports["amqp"]) as consumer:
            consumer.queue_declare("q", durable=False)
            consumer.queue_bind("q", "amq.topic", "#")
            filler = Filler(ports["native"], "native", is_durable=False)
            with filler.filling():
                wait_for(lambda: "low on memory" in readiness(ports["http"]), "no alarm")
                last = b"%d" % (filler.acknowledged[-1])
                drain(consumer, "q", lambda payload: payload == last)
                wait_for(lambda: readiness(ports["http"]) == READY, "the alarm goes on")
        assert broker.stop() == EXIT_OK, broker.log_tail()
    finally:
        if broker.is_running:
            broker.kill()
    broker.check_log()
