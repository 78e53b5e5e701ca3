"""Log records as messages."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from trivium import Config, Listen, embedded
from trivium.config import EVERYTHING, StorageConfig, UserConfig
from trivium.embedded import EmbeddedBroker
from trivium.logging import Handler
from trivium.runtime.broker import Broker

MEMORY = StorageConfig(mode="memory")
QUIET = UserConfig(password="p", permissions={"/": {"configure": "", "write": "", "read": ""}})
CONFIG = Config(
    listen={"native": Listen(0)},
    storage=MEMORY,
    users={"quiet": QUIET, "app": UserConfig(password="p", permissions=EVERYTHING)},
)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded.start(CONFIG) as found:
        yield found


@pytest.fixture
def logger(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    """One that nobody else has, and whose records go nowhere else."""
    found = logging.Logger("app.db", logging.DEBUG)
    yield found
    for handler in found.handlers:
        handler.close()


def url_of(broker: EmbeddedBroker, user: str = "app") -> str:
    return f"trivium://{user}:p@{broker.listeners['native']}"


def drain(client: Any, queue: str = "q") -> list[tuple[str, Any]]:
    """Keys and payloads of what is in a queue."""
    found = []
    count = client.declare_queue(queue).messages
    with client.consume(queue) as deliveries:
        for _ in range(count):
            delivery = next(deliveries)
            found.append((delivery.routing_key.decode(), delivery.payload))
            deliveries.ack(delivery, wait=True)
    return found


@pytest.fixture(params=["url", "inside"])
def where(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Any:
    return url_of(broker) if request.param == "url" else broker


def test_records_are_messages_of_a_topic(
    broker: EmbeddedBroker, logger: logging.Logger, where: Any
) -> None:
    with broker.client() as client:
        client.declare_queue("q")
        client.bind("queue", "q", pattern="logs.#.error")
        logger.addHandler(Handler(where))
        logger.info("not this")
        try:
            raise ValueError("why")
        except ValueError:
            logger.exception("it failed: %d", 7)
        logger.handlers[0].flush()
        ((key, payload),) = drain(client)
    assert key == "logs.app.db.error"
    record = json.loads(payload)
    assert (record["level"], record["logger"], record["message"]) == (
        "error",
        "app.db",
        "it failed: 7",
    )
    assert "ValueError: why" in record["exception"]


def test_records_go_to_a_stream_in_their_order(
    broker: EmbeddedBroker, logger: logging.Logger, where: Any
) -> None:
    with broker.client() as client:
        client.declare_stream("logs")
        handler = Handler(where, stream="logs")
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        for number in range(1000):
            logger.info("%d", number)
        handler.close()
        fetched = client.fetch("logs", 0, 0)
        payloads = [record.payload for batch in fetched.batches for record in batch.records()]
    assert payloads == [b"%d" % number for number in range(1000)]
    assert handler.dropped == 0


def test_what_does_not_fit_is_dropped_and_counted_and_nobody_waits(logger: logging.Logger) -> None:
    # Nothing listens there.
    handler = Handler("trivium://127.0.0.1:1", capacity=10, close_seconds=0.01)
    logger.addHandler(handler)
    for _ in range(25):
        logger.info("x")
    assert handler.dropped == 15
    handler.close()
    assert handler.dropped == 25
    logger.info("after the end")
    assert handler.dropped == 26
    assert "127.0.0.1:1" in str(handler.error)


def test_bytes_are_bounded_as_well(logger: logging.Logger) -> None:
    handler = Handler("trivium://127.0.0.1:1", capacity_bytes=1000, close_seconds=0.01)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.info("a" * 600)
    logger.info("b" * 600)
    logger.info("c" * 400)
    assert handler.dropped == 1


def test_what_the_broker_refuses_is_dropped_and_the_rest_goes_on(
    broker: EmbeddedBroker, logger: logging.Logger
) -> None:
    handler = Handler(url_of(broker), stream="logs")
    logger.addHandler(handler)
    logger.info("there is no such stream yet")
    handler.flush()
    assert handler.dropped == 1
    assert handler.error is not None
    with broker.client() as client:
        client.declare_stream("logs")
        logger.info("now there is")
        handler.flush()
        assert client.metadata(["logs"])[0].partitions[0].high_watermark == 1


def test_a_user_who_may_not_publish(broker: EmbeddedBroker, logger: logging.Logger) -> None:
    handler = Handler(url_of(broker, "quiet"))
    logger.addHandler(handler)
    logger.info("x")
    handler.flush()
    assert handler.dropped == 1
    assert "refused" in str(handler.error)


def test_it_comes_back_when_the_broker_does(logger: logging.Logger) -> None:
    with embedded.start(CONFIG) as broker:
        port = int(broker.listeners["native"].rpartition(":")[2])
        handler = Handler(url_of(broker))
        logger.addHandler(handler)
        logger.info("before")
        handler.flush()
    logger.info("meanwhile")
    config = replace(CONFIG, listen={"native": Listen(port)})
    with embedded.start(config) as broker, broker.client() as client:
        client.declare_queue("q")
        client.bind("queue", "q", pattern="logs.#")
        logger.info("after")
        handler.flush()
        assert handler.error is not None
        messages = [json.loads(payload)["message"] for _, payload in drain(client)]
    # What came before the binding was there reached nobody.
    assert messages[-1] == "after"
    assert handler.dropped == 0


def test_what_the_broker_itself_says_is_left_out(broker: EmbeddedBroker) -> None:
    """A record about a record would be followed by another one."""
    root = logging.getLogger()
    level = root.level
    handler = Handler(broker, topic="all")
    try:
        root.setLevel(logging.DEBUG)
        root.addHandler(handler)
        with broker.client() as client:
            client.declare_queue("q")
            client.bind("queue", "q", pattern="all")
            logging.getLogger("trivium.runtime.driver").warning("of the broker")
            logging.getLogger("trivium_native.server").warning("of a protocol")
            logging.getLogger("triviality").warning("of others")
            handler.flush()
            found = [json.loads(payload)["logger"] for _, payload in drain(client)]
        assert "triviality" in found
        assert not [name for name in found if name.startswith(("trivium.", "trivium_"))]
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()


async def test_on_the_loop_of_its_broker(logger: logging.Logger) -> None:
    async with (
        Broker(Config(listen={}, storage=MEMORY)) as broker,
        broker.client() as client,
        client.subscribe("logs.#") as messages,
    ):
        handler = Handler(broker)
        logger.addHandler(handler)
        logger.warning("one")
        # It would wait for itself.
        handler.flush()
        assert json.loads((await anext(messages)).payload)["message"] == "one"
        logger.warning("two")
        handler.close()
        assert json.loads((await anext(messages)).payload)["message"] == "two"


def test_threads_log_at_a_time(broker: EmbeddedBroker, logger: logging.Logger) -> None:
    with broker.client() as client:
        client.declare_queue("q")
        client.bind("queue", "q", pattern="logs.#")
        handler = Handler(broker)
        logger.addHandler(handler)

        def log() -> None:
            for _ in range(200):
                logger.info("x")

        threads = [threading.Thread(target=log) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        handler.close()
        assert client.declare_queue("q").messages == 800


def test_nothing_is_left_of_it(broker: EmbeddedBroker) -> None:
    before = set(threading.enumerate())
    handler = Handler(url_of(broker))
    assert set(threading.enumerate()) != before
    handler.close()
    handler.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("url", ["http://localhost", "localhost", ""])
def test_a_url_that_nothing_connects_to(url: str) -> None:
    with pytest.raises(ValueError, match="nothing that is installed"):
        Handler(url)


def test_a_broken_record_is_said_on_standard_error(
    broker: EmbeddedBroker, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.addHandler(Handler(broker))
    logger.info("%d", "no number")
    assert "--- Logging error ---" in capsys.readouterr().err


def test_what_is_no_place_and_no_capacity_is_refused(broker: EmbeddedBroker) -> None:
    for where in (5, None):
        with pytest.raises(ValueError, match="neither a URL nor a broker"):
            Handler(where)  # type: ignore[arg-type]
    for settings in ({"capacity": 0}, {"capacity_bytes": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            Handler(broker, **settings)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="has not started"):
        Handler(Broker(CONFIG))


def test_records_for_a_stream_that_is_not_declared_are_dropped_and_counted(
    broker: EmbeddedBroker, logger: logging.Logger
) -> None:
    handler = Handler(broker, stream="later")
    logger.addHandler(handler)
    logger.error("one")
    handler.flush()
    assert handler.dropped == 1
    assert handler.error is not None
    with broker.client() as client:
        client.declare_stream("later")
    logger.error("two")
    handler.flush()
    assert handler.dropped == 1
