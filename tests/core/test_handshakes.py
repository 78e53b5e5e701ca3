"""Handshakes of one client share one time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trivium.config import Config, LimitsConfig
from trivium.runtime.handshakes import Handshake, Handshakes
from trivium.runtime.sockets import CAME_AT


# The compiled one takes a real server only.
@pytest.mark.pure
@pytest.mark.parametrize(("spent_ms", "left"), [(0, 10.0), (4000, 6.0), (60_000, 0.0)])
def test_a_handshake_has_what_those_before_it_have_left(
    monkeypatch: pytest.MonkeyPatch, spent_ms: int, left: float
) -> None:
    now_ms = 1_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ms * 1_000_000)
    timers: list[float] = []

    def call_later(seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle | None:
        timers.append(seconds)
        return None

    limits = LimitsConfig(handshake_seconds=10)
    server: Any = SimpleNamespace(
        handshakes=Handshakes(1),
        broker=SimpleNamespace(config=Config(limits=limits)),
        driver=SimpleNamespace(call_later=call_later),
    )
    transport = asyncio.BaseTransport({CAME_AT: now_ms - spent_ms})
    found = Handshake(server, transport, lambda: None)
    assert (timers, found.came_at) == ([left], now_ms - spent_ms)
