"""A real Celery worker process, with its results coming back over the broker (``rpc://``)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.amqp import url
from interop.brokers import ROOT
from interop.mqtt import eventually

pytestmark = pytest.mark.one_build

PATIENCE = 40


@pytest.fixture
def app(
    request: pytest.FixtureRequest,
    amqp_port: int,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    """The application, with a worker of its own, which has one slot. The parameter is how many
    tasks it takes at a time."""
    monkeypatch.setenv("INTEROP_CELERY_PREFETCH", str(getattr(request, "param", 2)))
    monkeypatch.setenv("INTEROP_CELERY_BROKER", url(amqp_port))
    monkeypatch.setenv("INTEROP_CELERY_QUEUE", name)
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "interop.celery_tasks", "worker"),
                *("--pool=solo", "--loglevel=info", f"--hostname={name}@localhost"),
            ],
            stdout=output,
            stderr=output,
            cwd=ROOT,
            env=dict(os.environ),
        )
    try:
        eventually(
            lambda: b" ready." in log.read_bytes() or worker.poll() is not None, "the worker", 40
        )
        assert worker.poll() is None, log.read_text()
        sys.modules.pop("interop.celery_tasks", None)
        from interop.celery_tasks import app as application

        yield application
        application.close()
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(20)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait(20)


def test_task_with_retries_and_result(app: Any) -> None:
    pending = [app.send_task("interop.celery_tasks.flaky", (i,)) for i in range(10)]
    assert [p.get(timeout=PATIENCE) for p in pending] == [[i * 2, 2] for i in range(10)]
    with pytest.raises(ValueError, match="as it should"):
        app.send_task("interop.celery_tasks.broken").get(timeout=PATIENCE)


def test_remote_control(app: Any, name: str) -> None:
    """Broadcasts to the workers, answered over queues that expire."""
    eventually(lambda: bool(app.control.ping(timeout=2)), "the worker's answer", 40)
    assert app.control.ping(timeout=2) == [{f"{name}@localhost": {"ok": "pong"}}]


@pytest.mark.parametrize("app", [1], indirect=True)
def test_tasks_for_later_do_not_keep_the_worker_from_those_for_now(app: Any) -> None:
    """It raises its prefetch count by one for each, which counts only where the client knows what
    ``global`` in basic.qos means to the server."""
    for _ in range(3):
        app.send_task("interop.celery_tasks.echo", ("tomorrow",), countdown=24 * 3600)
    assert app.send_task("interop.celery_tasks.echo", ("now",)).get(timeout=PATIENCE) == "now"
