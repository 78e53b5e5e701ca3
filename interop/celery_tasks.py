"""The application that the Celery test's worker runs; the broker's address comes by environment."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

app = Celery("interop", broker=os.environ["INTEROP_CELERY_BROKER"], backend="rpc://")
app.conf.update(
    task_default_queue=os.environ["INTEROP_CELERY_QUEUE"],
    task_acks_late=True,
    worker_prefetch_multiplier=int(os.environ.get("INTEROP_CELERY_PREFETCH", "2")),
    broker_connection_retry_on_startup=False,
)


@app.task(bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def flaky(self: Any, number: int) -> tuple[int, int]:
    """Fail twice, then return twice the number and how often it was tried again."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return number * 2, self.request.retries


@app.task  # type: ignore[untyped-decorator]
def broken() -> None:
    raise ValueError("as it should")


@app.task  # type: ignore[untyped-decorator]
def echo(text: str) -> str:
    return text
