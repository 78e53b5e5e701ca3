"""The programs with a broker inside, as they are."""

from __future__ import annotations

import asyncio

import pytest

from examples.inside import celery_worker, event_bus, rpc, transform

PATIENCE = 60


async def test_an_event_bus(capsys: pytest.CaptureFixture[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        await event_bus.main()
    # Two queues, whose listeners take turns.
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("audit")] == [
        "again, since the printer is busy",
        "invoice for order 7",
    ]
    assert lines[:1] == ["audit: order.placed {'order': 7}"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_celery(capsys: pytest.CaptureFixture[str]) -> None:
    celery_worker.main()
    assert capsys.readouterr().out.splitlines()[-1] == "[0, 2, 4]"


async def test_a_call_from_mqtt_to_a_worker_on_amqp(capsys: pytest.CaptureFixture[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        await rpc.main()
    assert capsys.readouterr().out == "call-12: 144\n"


async def test_a_group_that_computes_in_transactions(capsys: pytest.CaptureFixture[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        await transform.main()
    assert capsys.readouterr().out.splitlines() == ["32.0", "70.7", "212.0", "read up to 3"]
