"""What tests of the core share. Async ones run on both event loops that the broker may find."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from tests.support.verbs import Commands, Running, running


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    del config, item
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A process for the commands of a module, which may replace it."""
    with running(tmp_path_factory.mktemp("b") / "d") as broker:
        yield broker


@pytest.fixture
def commands(broker: Running, capsys: pytest.CaptureFixture[str]) -> Commands:
    """What is called for that broker."""
    return Commands(broker, capsys)
