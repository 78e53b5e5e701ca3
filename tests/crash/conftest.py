"""Crash tests: real broker processes, killed in the middle of load and started again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.brokers import TriviumProcess, compiled_build

#: Kills that a run of all these tests makes at least.
LEAST_KILLS = 50
KILLS = pytest.StashKey[int]()
IS_WHOLE = pytest.StashKey[bool]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    config.stash[KILLS] = 0
    is_selected = any("::" in argument for argument in config.args) or config.option.keyword
    config.stash[IS_WHOLE] = not is_selected and (
        set(here.glob("test_*.py")) <= {item.path for item in items}
    )
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


def is_too_few(config: pytest.Config) -> bool:
    """Whether all these tests ran, with too few kills. None at all: they were deselected."""
    return config.stash.get(IS_WHOLE, False) and 0 < config.stash[KILLS] < LEAST_KILLS


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if kills := config.stash.get(KILLS, 0):
        terminalreporter.write_line(f"brokers were killed {kills} times")
    if is_too_few(config):
        terminalreporter.write_line(f"at least {LEAST_KILLS} kills are promised", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if is_too_few(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TriviumProcess]:
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
    request.config.stash[KILLS] += process.kills
    if process.is_running:
        assert process.stop() == 0, process.log_tail()
    process.check_log()
