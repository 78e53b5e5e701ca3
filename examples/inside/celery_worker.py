"""Celery on Trivium: tasks and their results go over AMQP."""

from __future__ import annotations

from celery import Celery
from celery.contrib.testing.worker import start_worker

from trivium import Config, Listen, embedded
from trivium.config import StorageConfig

app = Celery("example", backend="rpc://")
# A worker in a thread sees that it is to stop when it wakes, which is for heartbeats at the latest.
app.conf.broker_heartbeat = 0


@app.task  # type: ignore[untyped-decorator]
def add(x: int, y: int) -> int:
    return x + y


def main() -> None:
    config = Config(listen={"amqp": Listen(0)}, storage=StorageConfig(mode="memory"))
    with embedded.start(config) as broker:
        app.conf.broker_url = f"amqp://guest:guest@{broker.listeners['amqp']}//"
        # A worker in a thread; in earnest it is `celery -A MODULE worker`.
        with start_worker(app, perform_ping_check=False, shutdown_timeout=30):
            results = [add.delay(number, number) for number in range(3)]
            print([result.get(timeout=30) for result in results])
        app.close()


if __name__ == "__main__":
    main()
