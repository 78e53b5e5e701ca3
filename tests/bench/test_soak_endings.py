"""A soak comes to its end, and so does its broker, whatever becomes of either."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from bench.servers import REPOSITORY
from bench.soak import endings
from bench.soak.endings import SoakError, guarded, within

LONG = 60.0


async def value(result: str) -> str:
    await asyncio.sleep(0)
    return result


async def never() -> str:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def deaf(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Event]:
    """An event to wait for, for works that heed no cancellation; nobody waits for them long."""
    monkeypatch.setattr(endings, "CANCEL_SECONDS", 0.01)
    released = asyncio.Event()
    yield released
    released.set()
    await asyncio.sleep(0)


async def heed_nothing(released: asyncio.Event) -> str:
    while not released.is_set():
        try:
            await released.wait()
        except asyncio.CancelledError:
            continue
    return "released"


async def test_what_is_done_in_time_has_its_result() -> None:
    assert await guarded(value("report"), [never(), never()], LONG) == "report"


async def test_what_ends_a_soak_says_why() -> None:
    with pytest.raises(SoakError, match="the broker has ended"):
        await guarded(never(), [never(), value("the broker has ended")], LONG)


async def test_the_end_of_the_broker_is_told_rather_than_what_clients_notice_of_it() -> None:
    failed = asyncio.Event()

    async def client() -> str:
        failed.set()
        raise ConnectionResetError("gone")

    async def broker() -> str:
        await failed.wait()
        await asyncio.sleep(0)
        return "the broker has ended"

    with pytest.raises(SoakError, match="the broker has ended"):
        await guarded(client(), [broker()], LONG)


async def test_what_fails_by_itself_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "REASON_SECONDS", 0.01)

    async def client() -> str:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await guarded(client(), [never()], LONG)


async def test_nothing_lasts_longer_than_it_may_also_where_it_heeds_no_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with deaf(monkeypatch) as released:
        with pytest.raises(SoakError, match="not over after 0 s"):
            await guarded(heed_nothing(released), [never()], 0.01)


async def test_works_that_are_not_over_in_time_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise ValueError("wrong")

    async with deaf(monkeypatch) as released:
        works = [
            ("good", value("")), ("late", never()), ("bad", fail()),
            ("deaf", heed_nothing(released)),
        ]  # fmt: skip
        assert await within(0.01, works) == [
            "late: not over after 0 s", "bad: ValueError('wrong')", "deaf: not over after 0 s",
        ]  # fmt: skip


async def test_works_that_are_over_in_time_have_no_failure() -> None:
    assert await within(LONG, [("good", value("")), ("better", value(""))]) == []


@contextmanager
def running_soak(home: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A soak whose clients are at work, and the process of its broker."""
    environment = {
        **os.environ,
        # No browser: it takes long to start.
        "PATH": str(home),
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(REPOSITORY)]),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.soak", "600", "--seed", "1"],
        env=environment, cwd=home, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        broker = 0
        for line in process.stderr:
            if line.startswith("soak: the broker is process "):
                broker = int(line.split()[-1])
            if line.startswith("soak: all clients are connected"):
                break
        yield process, broker
    finally:
        process.kill()
        process.communicate()


def is_running(process: int) -> bool:
    """Whether it is there, and no zombie."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.timeout(180)
def test_a_broker_that_dies_fails_the_soak_with_a_line(tmp_path: Path) -> None:
    with running_soak(tmp_path) as (process, broker):
        os.kill(broker, signal.SIGKILL)
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert out == ""
    assert "soak: the broker has ended by itself after" in errors
    assert "exit code -9" in errors
    assert "Traceback" not in errors
    assert not is_running(broker)


@pytest.mark.timeout(180)
def test_sigterm_ends_a_soak_and_its_broker(tmp_path: Path) -> None:
    with running_soak(tmp_path) as (process, broker):
        process.terminate()
        out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert errors.splitlines()[-1] == "soak: ended by a signal, nothing is judged"
    assert not is_running(broker)
    assert list(tmp_path.glob("trivium-*")) == [], "its data directory is gone"
