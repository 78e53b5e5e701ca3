"""Async tests of the core run on both event loops that the broker may find."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    del config, item
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
