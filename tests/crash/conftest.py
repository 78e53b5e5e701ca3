"""Crash tests: real broker processes, killed in the middle of load and started again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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
def broker(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[TriviumProcess]:
    """A running broker that can be killed and started again on its ports and directory.

    It makes a checkpoint every few hundred messages; the compiled one as shipped. With the
    parameter ``encrypted`` its data directory is.
    """
    is_compiled = os.environ.get("TRIVIUM_CRASH_BUILD") == "compiled"
    if is_compiled and (reason := compiled_build()) is not None:
        pytest.skip(reason)
    is_encrypted = getattr(request, "param", "plain") == "encrypted"
    process = TriviumProcess(
        tmp_path,
        restartable=True,
        is_compiled=is_compiled,
        module="trivium" if is_compiled else "tests.crash.small_storage",
        environment={
            "TRIVIUM_STORAGE__FSYNC": "always",
            "TRIVIUM_STORAGE__KEY_ENV": "CRASH_KEYS" if is_encrypted else "",
            "CRASH_KEYS": "5a" * 32,
        },
    )
    process.start()
    yield process
    record_property("kills", process.kills)
    if process.is_running:
        assert process.stop() == 0, process.log_tail()
    process.check_log()
