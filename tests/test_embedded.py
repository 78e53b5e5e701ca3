"""The broker inside a program that blocks."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live import TIMEOUT
from trivium import Config, Listen, embedded, logging
from trivium.config import StorageConfig
from trivium.embedded import EmbeddedBroker
from trivium.errors import TriviumError
from trivium.runtime.broker import Broker
from trivium.runtime.server import Server
from trivium.storage.errors import StorageFailed, StorageLocked
from trivium_native import errors, inside
from trivium_native.sync import connect
from trivium_native.values import Publication

MEMORY = StorageConfig(mode="memory")
ALONE = Config(listen={}, storage=MEMORY)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded.start(ALONE) as found:
        yield found


def open_files() -> dict[str, str]:
    """What the descriptors of this process are, but for the one that reads them."""
    found = {}
    for file in Path("/proc/self/fd").iterdir():
        try:
            found[file.name] = str(file.readlink())
        except FileNotFoundError:
            pass
    return found


# Life


def test_it_listens_once_it_has_started_until_it_is_stopped() -> None:
    broker = embedded.start(Config(listen={"native": Listen(0)}, storage=MEMORY))
    with broker:
        url = f"trivium://{broker.listeners['native']}"
        with connect(url) as client:
            client.declare_queue("q")
        assert broker.is_running
    with pytest.raises(errors.ConnectionFailed):
        connect(url)
    broker.stop()


@pytest.mark.parametrize("mode", ["memory", "disk"])
def test_nothing_is_left_of_one_that_was_stopped(mode: str, tmp_path: Path) -> None:
    def run() -> weakref.ref[Server]:
        listen = {name: Listen(0) for name in ("mqtt", "amqp", "native", "http")}
        storage = MEMORY if mode == "memory" else StorageConfig(data=tmp_path / "data")
        with embedded.start(Config(listen=listen, storage=storage)) as broker:
            with broker.client() as client, client.subscribe() as messages:
                client.publish(b"1", routing_key="a")
                assert next(messages).payload == b"1"
            with connect(f"trivium://{broker.listeners['native']}") as far:
                far.declare_queue("q")
            server = broker.broker.server
            assert server is not None
            return weakref.ref(server)

    run()
    threads, files = set(threading.enumerate()), open_files()
    server = run()
    assert set(threading.enumerate()) == threads
    assert open_files() == files
    gc.collect()
    assert server() is None


@pytest.mark.parametrize("mode", ["memory", "disk"])
async def test_nothing_is_left_on_the_loop_of_a_program(mode: str, tmp_path: Path) -> None:
    async def run() -> weakref.ref[Server]:
        listen = {name: Listen(0) for name in ("mqtt", "amqp", "native", "http")}
        storage = MEMORY if mode == "memory" else StorageConfig(data=tmp_path / "data")
        async with Broker(Config(listen=listen, storage=storage)) as broker:
            async with broker.client() as client:
                await client.declare_queue("q")
            assert broker.server is not None
            return weakref.ref(broker.server)

    # The loop keeps the threads of its pool.
    await run()
    threads, files, tasks = set(threading.enumerate()), open_files(), asyncio.all_tasks()
    server = await run()
    assert {each.name.partition("_")[0] for each in set(threading.enumerate()) - threads} <= {
        "asyncio"
    }
    assert open_files() == files
    assert asyncio.all_tasks() == tasks
    # A thread of the pool may be about to let its last work go.
    async with asyncio.timeout(TIMEOUT):
        while server() is not None:
            gc.collect()
            await asyncio.sleep(0)


def test_what_prevents_a_start_is_raised_to_who_starts(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    config = Config(listen={}, storage=StorageConfig(data=tmp_path / "data"))
    with embedded.start(config) as broker:
        with pytest.raises(StorageLocked, match="data is in use by this process already"):
            embedded.start(config)
        assert broker.is_running
    with embedded.start(Config(listen={"mqtt": Listen(0)}, storage=MEMORY)) as broker:
        port = int(broker.listeners["mqtt"].rpartition(":")[2])
        with pytest.raises(TriviumError, match="cannot listen"):
            embedded.start(Config(listen={"amqp": Listen(port)}, storage=MEMORY))
    assert set(threading.enumerate()) == threads


async def test_a_broker_that_has_not_started_says_so() -> None:
    broker = Broker(ALONE)
    with pytest.raises(RuntimeError, match="the broker has not started"):
        broker.client()
    with pytest.raises(RuntimeError, match="the broker has not started"):
        broker.reload()
    with pytest.raises(RuntimeError, match="the broker has not started"):
        await broker.wait_failed()
    with pytest.raises(RuntimeError, match="the broker has not started"):
        await inside.connect(broker).__aenter__()
    with pytest.raises(RuntimeError, match="the broker has not started"):
        logging.Handler(broker)


async def test_a_broker_runs_once() -> None:
    broker = Broker(ALONE)
    async with broker:
        with pytest.raises(RuntimeError, match="runs once"):
            await broker.__aenter__()
        async with broker.client() as client:
            await client.declare_queue("q")
    with pytest.raises(RuntimeError, match="runs once"):
        await broker.__aenter__()


def test_one_that_has_stopped_listens_nowhere() -> None:
    with embedded.start(Config(listen={"native": Listen(0)}, storage=MEMORY)) as broker:
        assert broker.listeners
    assert broker.listeners == {}


def test_several_brokers_run_in_one_process(broker: EmbeddedBroker) -> None:
    with embedded.start(ALONE) as other, broker.client() as one, other.client() as two:
        one.declare_queue("q")
        with pytest.raises(errors.NotFound):
            two.purge("q")


async def fail(broker: Broker) -> None:
    assert broker.server is not None
    broker.server.fail(StorageFailed("the disk is gone"))


def test_a_broker_that_fails_says_so_when_it_is_stopped() -> None:
    broker = embedded.start(ALONE)
    broker.call(fail(broker.broker))
    with pytest.raises(StorageFailed, match="the disk is gone"):
        broker.stop()
    assert not broker.is_running
    broker.stop()


def test_an_error_of_the_block_goes_before_that_of_the_broker() -> None:
    broker = embedded.start(ALONE)
    broker.call(fail(broker.broker))
    with pytest.raises(ValueError, match="mine"), broker:
        raise ValueError("mine")


def test_a_program_that_ends_without_stopping_it_ends_all_the_same(tmp_path: Path) -> None:
    """And loses nothing that was acknowledged."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from trivium import Config, embedded\n"
        "from trivium.config import StorageConfig\n"
        "storage = StorageConfig(data=Path(sys.argv[1]))\n"
        "broker = embedded.start(Config(listen={}, storage=storage))\n"
        "with broker.client() as client:\n"
        "    client.declare_queue('q')\n"
        "    client.publish(b'kept', exchange='', routing_key='q')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with (
        embedded.start(Config(listen={}, storage=StorageConfig(data=tmp_path))) as broker,
        broker.client() as client,
        client.consume("q") as deliveries,
    ):
        assert next(deliveries).payload == b"kept"


# Calls


def test_a_coroutine_runs_on_the_brokers_loop(broker: EmbeddedBroker) -> None:
    async def name() -> str:
        assert asyncio.get_running_loop()
        return threading.current_thread().name

    assert broker.call(name()) == "trivium-broker"


def test_the_brokers_own_loop_does_not_wait_for_itself(broker: EmbeddedBroker) -> None:
    async def nothing() -> None:
        pass

    async def call() -> None:
        with pytest.raises(RuntimeError, match="own loop"):
            broker.call(nothing())
        with pytest.raises(RuntimeError, match="own loop"):
            broker.stop()

    broker.call(call())


def test_nothing_runs_once_it_has_stopped() -> None:
    with embedded.start(ALONE) as broker:
        client = broker.client()
    with pytest.raises(RuntimeError, match="has stopped"):
        client.declare_queue("q")


# The client


def test_a_client_is_there_until_it_is_closed(broker: EmbeddedBroker) -> None:
    client = broker.client()
    client.declare_queue("q")
    client.close()
    with pytest.raises(errors.ConnectionFailed, match="closed"):
        client.declare_queue("q")
    with broker.client() as client:
        client.declare_queue("q")
    with pytest.raises(errors.ConnectionFailed, match="closed"):
        client.declare_queue("q")


def test_publish_consume_acknowledge_declare(broker: EmbeddedBroker) -> None:
    with broker.client() as client:
        client.declare_queue("q")
        client.bind("queue", "q", pattern="sensors.#")
        client.publish_batch(
            [Publication(payload=b"%d" % n, routing_key="sensors.a") for n in range(3)]
        )
        with client.consume("q", credit=2) as deliveries:
            for number, delivery in zip(range(3), deliveries, strict=False):
                assert delivery.payload == b"%d" % number
                deliveries.ack(delivery, wait=True)
        assert client.declare_queue("q").messages == 0


def test_an_error_is_raised_to_who_calls(broker: EmbeddedBroker) -> None:
    with broker.client() as client:
        with pytest.raises(errors.NotFound):
            client.purge("q")
        with pytest.raises(errors.NotFound):
            client.consume("q").__enter__()
        client.declare_queue("q")
    with pytest.raises(errors.AuthenticationFailed), broker.client(username="nobody"):
        pass


def test_a_group_reads_a_stream_and_commits(broker: EmbeddedBroker) -> None:
    with broker.client() as client:
        client.declare_stream("s")
        client.bind("stream", "s", pattern="#")
        client.publish(b"1", routing_key="a")
        with client.join("g", ["s"]) as consumer:
            batch = next(consumer)
            assert [record.payload for record in batch.records()] == [b"1"]
            with client.transaction() as transaction:
                transaction.publish(Publication(payload=b"2", routing_key="b"))
                commits = consumer.offsets()
                transaction.commit_offsets(commits)
            consumer.committed(commits)
            assert next(consumer).next_offset == 2
            assert [each.stream for each in consumer.assigned] == ["s"]
        assert [each.committed for each in client.committed("g", "s")] == [1]


def test_threads_may_share_a_client(broker: EmbeddedBroker) -> None:
    with broker.client() as client:
        client.declare_queue("q")

        def publish() -> None:
            for _ in range(20):
                client.publish(b"x", exchange="", routing_key="q")

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.declare_queue("q").messages == 80
