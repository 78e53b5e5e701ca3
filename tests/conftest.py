"""Settings of all tests, and what is promised of a run as a whole: enough kills.

The kills are summed up here since a run in several processes reads no conftest.py further down in
the one that sums up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from tests.support.reaper import start_reaper

#: Kills that a run of all crash tests makes at least.
LEAST_KILLS: Final = 50
HERE: Final = Path(__file__).parent
CRASH_TESTS: Final = {
    f"{HERE.name}/crash/{path.name}" for path in (HERE / "crash").glob("test_*.py")
}

# A deadline is a timed assertion, which a busy machine misses.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    start_reaper()


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    """Commands that draw on the terminal silence the log for as long as the process lives, and
    workers of Celery tell errors alone."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)
    logging.disable(logging.NOTSET)


def count_kills(config: pytest.Config) -> tuple[int, bool]:
    """How often tests have killed a broker, and whether that is too few for all crash tests."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(reporter, pytest.TerminalReporter)
    ended = [report for report in reporter.stats.get("", []) if report.when == "teardown"]
    kills = sum(
        value for report in ended for name, value in report.user_properties if name == "kills"
    )
    is_selected = any("::" in argument for argument in config.args) or config.option.keyword
    is_whole = not is_selected and {report.fspath for report in ended} >= CRASH_TESTS
    # None at all: they were deselected.
    return kills, is_whole and 0 < kills < LEAST_KILLS


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    kills, is_too_few = count_kills(config)
    if kills:
        terminalreporter.write_line(f"brokers were killed {kills} times")
    if is_too_few:
        terminalreporter.write_line(f"at least {LEAST_KILLS} kills are promised", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    is_worker = hasattr(session.config, "workerinput")
    if is_worker or session.exitstatus != pytest.ExitCode.OK:
        return
    if count_kills(session.config)[1]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
