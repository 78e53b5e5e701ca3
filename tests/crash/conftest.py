"""Crash tests: real broker processes, killed in the middle of load and started again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.brokers import TriviumProcess, compiled_build


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.crash)
            # The clients are not ours: paho, for one, leaves its wake-up sockets open.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture
def seed() -> int:
    """What the moments of the kills are drawn from; TRIVIUM_CRASH_SEED repeats or varies a run."""
    return int(os.environ.get("TRIVIUM_CRASH_SEED", "1"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TriviumProcess]:
    """A running broker that can be killed and started again on its ports and directory.

    It makes a checkpoint every few hundred messages; the compiled one as shipped.
    """
    is_compiled = os.environ.get("TRIVIUM_CRASH_BUILD") == "compiled"
    if is_compiled and (reason := compiled_build()) is not None:
        pytest.skip(reason)
    process = TriviumProcess(
        tmp_path,
        restartable=True,
        is_compiled=is_compiled,
        module="trivium" if is_compiled else "tests.crash.small_storage",
    )
    process.start()
    yield process
    if process.is_running:
        assert process.stop() == 0, process.log_tail()
    process.check_log()
