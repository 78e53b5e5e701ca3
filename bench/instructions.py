"""Count the instructions that a server executes per message, with valgrind.

Unlike a rate it hardly depends on what else the machine does, so it tells a change of a few per
cent on the hot path. The server serves a short and a long run; connecting is in both counts, so the
difference is the messages' own. Work of the kernel is not counted. Messages come in waves,
and the server is stopped while it is sent something, so what it gets at once is the same each time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.load import Limits, run_count
from bench.runner import build_of, make_server, server_kind, working_directory
from bench.scenarios import SCENARIOS, Scenario, open_lanes
from bench.servers import REPOSITORY, Server, ServerError, Trivium

STORAGE_APPEND: Final = "storage-append"
STORAGE_RECOVERY: Final = "storage-recovery"

ROWS: Final[dict[str, int]] = {
    "mqtt-qos0-1to1": 80_000,
    "mqtt-qos0-1to1-1000t": 16_000,
    "mqtt-qos0-50to50": 80_000,
    "mqtt-qos1-1to1": 16_000,
    "mqtt-qos1-1to1-1000t": 8_000,
    "mqtt-qos1-50to50": 24_000,
    "mqtt-qos1-200c": 4_000,
    "mqtt-qos2-1to1": 8_000,
    "mqtt-qos2-1to1-1000t": 8_000,
    "mqtt-qos2-50to50": 8_000,
    "amqp-confirmed-1q": 8_000,
    "amqp-confirmed-4q": 8_000,
    "amqp-confirmed-20q": 8_000,
    "amqp-confirmed-1q-ack1": 8_000,
    "native-publish": 8_000,
    "native-publish-100": 16_000,
    "native-publish-idempotent": 8_000,
    "native-queue": 8_000,
    "native-fetch-1to10": 16_000,
    STORAGE_APPEND: 12_000,
    STORAGE_RECOVERY: 20_000,
}
"""What is counted, and the messages that suffice, over all lanes, for the count to repeat.

They are so many that the short run's are whole waves too.
"""

_FEWER: Final = 0.25
"""The short run's share of the long one's messages."""
_WAVE: Final = 2000
"""Messages under way, over all lanes, at most."""
_PATIENCE: Final = 60.0
"""Seconds: the emulated server does its longest turns in a few, on a busy machine in more."""
_IDLE_SECONDS: Final = 0.001
"""Between two looks whether the server has something to do."""
_TURN_MILLISECONDS: Final = 500
"""Some hundred times what it is, as the emulated server is slower by some fifty times."""


@dataclass(frozen=True)
class Instructions:
    """What a server executed for one delivered message, all its threads together."""

    server: str
    row: str
    messages: int
    """The difference of the two runs that was measured."""
    per_message: float

    def __str__(self) -> str:
        return f"{self.row:26} {self.server:20} {self.per_message:10,.0f} instructions/message"


@dataclass(frozen=True)
class _Phase:
    messages: int
    instructions: int


class StorageProcess(Server):
    """A process that has nothing but the storage: :func:`bench.storage_worker.serve`."""

    name = "storage"

    def __init__(self, directory: Path, python_path: str) -> None:
        super().__init__(directory)
        self.environment["PYTHONPATH"] = f"{python_path}:{REPOSITORY}".removeprefix(":")

    def _launch(self) -> None:
        command = [sys.executable, "-m", "bench.storage_worker", "serve"]
        pipe = subprocess.PIPE
        self._spawn(command, stdout=pipe, stdin=pipe)
        self._answer()

    def journal(self, directory: Path, messages: int) -> None:
        """Have another process leave a journal in ``directory``."""
        command = [sys.executable, "-m", "bench.storage_worker", "journal"]
        arguments = ["--directory", str(directory), "--messages", str(messages)]
        environment = os.environ | self.environment
        done = subprocess.run([*command, *arguments], env=environment, check=False)
        if done.returncode != -signal.SIGKILL:
            raise self._fail(f"no journal, but exit status {done.returncode}")

    def ask(self, *words: object) -> int:
        """Have something done; return with how many messages.

        Raises:
            ServerError: it failed.
        """
        stdin = self._processes[-1].stdin
        assert stdin is not None
        stdin.write(" ".join(map(str, words)).encode() + b"\n")
        stdin.flush()
        messages: int = json.loads(self._answer())["messages"]
        return messages

    def _answer(self) -> bytes:
        stdout = self._processes[-1].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise self._fail("no answer")
        return line


def count_instructions(
    row: str, name: str, most: int | None = None, keep: Path | None = None
) -> Instructions:
    """Measure a server in a row of :data:`ROWS` or a scenario, with up to ``most`` messages.

    ``keep`` names a file for the long run's profile, which ``callgrind_annotate`` reads.

    Raises:
        ServerError: valgrind is not installed or the server did not start.
        PeerError: the server misbehaved.
    """
    if shutil.which("valgrind") is None:
        raise ServerError("valgrind is not installed; on Debian: apt-get install valgrind")
    longest = most or ROWS.get(row, max(ROWS.values()))
    counts = [int(longest * share) for share in (_FEWER, _FEWER, 1.0)]
    with working_directory() as directory:
        if row in SCENARIOS:
            scenario = SCENARIOS[row]
            server = make_server(name, directory, None, on_disk=scenario.on_disk)
            phases = [_serving(scenario, server, count) for count in counts]
        else:
            server, phases = _storage_phases(row, name, directory, counts)
        short, long = _emulate(server, directory / "callgrind", phases, keep)
    messages = long.messages - short.messages
    instructions = long.instructions - short.instructions
    if instructions <= 0:
        raise ServerError("callgrind did not count the instructions")
    return Instructions(name, row, messages, instructions / messages)


def _is_idle(process_id: int) -> bool:
    """Every thread of a process sleeps."""
    for path in Path(f"/proc/{process_id}/task").glob("*/stat"):
        with suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[0] != "S":
                return False
    return True


@contextmanager
def _stopped(server: Server) -> Iterator[None]:
    deadline = time.monotonic() + _PATIENCE
    while not _is_idle(server.process_id) and time.monotonic() < deadline:
        time.sleep(_IDLE_SECONDS)
    os.kill(server.process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process_id, signal.SIGCONT)


def _serving(scenario: Scenario, server: Server, count: int) -> Callable[[], int]:
    each = max(1, count // scenario.lanes)
    most = max(1, _WAVE // scenario.lanes)
    limits = Limits(min(scenario.limits.window, most), min(scenario.limits.backlog, most))

    def serve() -> int:
        with open_lanes(scenario, server.addresses) as lanes:
            result = run_count(
                lanes, limits, each, server.cpu_seconds, _PATIENCE, partial(_stopped, server)
            )
        if result.tally.lost or result.unconfirmed:
            raise ServerError(f"{server.name} lost or did not confirm messages")
        return result.total_delivered

    return serve


def _storage_phases(
    row: str, name: str, directory: Path, counts: Sequence[int]
) -> tuple[Server, list[Callable[[], int]]]:
    kind = server_kind(name)
    if not issubclass(kind, Trivium):
        raise ServerError(f"{name} has no storage that can be measured alone")
    process = StorageProcess(directory, kind.python_path(build_of(name)))
    places = [directory / f"data-{number}" for number, _ in enumerate(counts)]
    if row == STORAGE_APPEND:
        appended = zip(places, counts, strict=True)
        return process, [partial(process.ask, "append", *both) for both in appended]
    for place, count in zip(places, counts, strict=True):
        process.journal(place, count)
    return process, [partial(process.ask, "replay", place) for place in places]


def _emulate(
    server: Server, output: Path, phases: Sequence[Callable[[], int]], keep: Path | None
) -> list[_Phase]:
    """Run the server under valgrind through some phases; count in all but the first."""
    # Until it is ready nothing is counted, which is faster.
    options = ("--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={output}")
    server.wrapper = ("valgrind", *options)
    # Otherwise collisions in dictionaries differ from run to run.
    server.environment["PYTHONHASHSEED"] = "0"
    if isinstance(server, Trivium):
        # By the clock the emulated server would end its turn after each few messages.
        server.environment["TRIVIUM_LIMITS__TURN_MILLISECONDS"] = str(_TURN_MILLISECONDS)
        # What it says by the clock is more in the longer run, and more yet on a busy machine.
        server.environment["TRIVIUM_MQTT__SYS_INTERVAL_SECONDS"] = "0"
    counted = []
    with ExitStack() as stack:
        server.start()
        stack.callback(server.stop)
        _control("--instr=on", server.process_id)
        # It is for what happens once: caches, and whatever is imported on use.
        phases[0]()
        _control("--zero", server.process_id)
        for index, phase in enumerate(phases[1:], start=1):
            messages = phase()
            # A dump also sets the counters back to 0.
            _control("--dump", server.process_id)
            dump = output.with_name(f"{output.name}.{index}")
            counted.append(_Phase(messages, _total(dump)))
            if keep is not None:
                # A call that began before the part counts 0 times, which callgrind_annotate does
                # not take for a call.
                keep.write_text(dump.read_text().replace("\ncalls=0 ", "\ncalls=1 "))
        # So that it stops sooner.
        _control("--instr=off", server.process_id)
    return counted


def _control(command: str, process_id: int) -> None:
    arguments = ["callgrind_control", command, str(process_id)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ServerError(f"callgrind_control failed: {result.stderr.strip()}")


def _total(output: Path) -> int:
    """Return the sum that callgrind writes at the end of its file.

    Raises:
        ServerError: there is none.
    """
    if output.exists():
        with output.open() as lines:
            for line in lines:
                if line.startswith("totals: "):
                    return int(line.split()[1])
    raise ServerError(f"callgrind wrote no totals to {output.name}")
