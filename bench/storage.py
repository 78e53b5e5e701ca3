"""Durable writes through the storage alone, beside the raw disk, SQLite and RocksDB.

The engines run in turn, each in a process and a directory of its own, as often as asked for.
Trivium comes first: the others sync as many messages at once as it did on average in the same
repetition, so that none is ahead by waiting for the disk less often, and the ratio to ``raw`` says
how much of what the disk allows is used. Beside ``pauses`` a bare process takes short turns, which
show for how long the machine itself stands still.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bench import runner
from bench.runner import build_of, server_kind
from bench.servers import REPOSITORY, ServerError, Trivium
from bench.storage_worker import ENGINES, PEERS

#: Rates that the compiled storage must reach where the disk allows it.
GOALS: Final = {64: 300_000, 4096: 300_000_000 // 4096}
RECOVERY_GOALS: Final = {64: 500_000}
#: Seconds that no turn may take while 1 GiB of journal is checkpointed; a run says nothing in which
#: a bare process stood still for longer.
MAX_PAUSE: Final = 0.020


@dataclass
class StorageRow:
    """One engine and payload size, over all repetitions."""

    engine: str
    """One of ENGINES, for another build than this checkout's with ``@`` and where that is."""
    payload: int
    rates: list[float] = field(default_factory=list)
    """Messages made durable (``recovery``: replayed) per second."""
    batches: list[float] = field(default_factory=list)
    """Messages that were synced at once, on average; of a ``recovery`` all that were replayed."""
    pauses: list[float] = field(default_factory=list)
    """The longest turn, in seconds."""
    bare_pauses: list[float] = field(default_factory=list)
    """Of a bare process at the same time."""
    error: str = ""

    @property
    def rate(self) -> float:
        """The median repetition's rate, 0 without any."""
        return statistics.median(self.rates) if self.rates else 0.0


def measure_storage(
    payloads: Sequence[int],
    repetitions: int,
    seconds: float,
    servers: Sequence[str] = (Trivium.name,),
) -> list[StorageRow]:
    """Run every engine ``repetitions`` times with each payload size.

    Ours run with each of the ``servers``' builds in turn, the others once.

    Raises:
        ServerError: one of the servers is not Trivium.
    """
    kinds = [server_kind(name) for name in servers]
    paths = [
        kind.python_path(build_of(name))
        for kind, name in zip(kinds, servers, strict=True)
        if issubclass(kind, Trivium)
    ]
    if len(paths) < len(servers):
        raise ServerError("only Trivium's storage can be measured alone")
    ours = [
        (engine + name.removeprefix(Trivium.name), engine, path)
        for engine in ENGINES
        if engine not in PEERS
        for name, path in zip(servers, paths, strict=True)
    ]
    engines = [*ours, *((peer, peer, "") for peer in PEERS)]
    rows = {(label, size): StorageRow(label, size) for size in payloads for label, _, _ in engines}
    for _ in range(repetitions):
        for size in payloads:
            batch = 0
            for label, engine, path in engines:
                row = rows[label, size]
                if engine in PEERS and not batch:
                    row.error = "how many messages trivium syncs at once is not known"
                    continue
                try:
                    found = _run(engine, size, seconds, batch, path)
                except ServerError as error:
                    row.error = str(error)
                    continue
                row.rates.append(found["messages"] / found["seconds"])
                row.batches.append(found["messages"] / max(found["batches"], 1))
                row.pauses.append(found["longest"])
                row.bare_pauses.append(found["bare"])
                if engine == "trivium" and not batch:
                    batch = max(round(row.batches[-1]), 1)
    return list(rows.values())


def _run(
    engine: str, payload: int, seconds: float, batch: int, python_path: str
) -> dict[str, float]:
    environment = {"PYTHONPATH": f"{python_path}:{REPOSITORY}".removeprefix(":")}
    with runner.working_directory() as directory:
        worker = (sys.executable, "-m", "bench.storage_worker", "--directory", str(directory))
        arguments = ("--payload", str(payload), "--seconds", str(seconds), "--batch", str(batch))
        bare = None
        if engine == "pauses":
            bare = subprocess.Popen(
                [*worker, "bare"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        try:
            done = subprocess.run(
                [*worker, engine, *arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=seconds * 20 + 120,
                check=False,
            )
        finally:
            output = bare.communicate()[0] if bare is not None else b""
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ServerError(f"{engine} failed: {last}")
    found: dict[str, float] = json.loads(done.stdout)
    found["bare"] = json.loads(output)["longest"] if output else 0.0
    return found


def storage_table(rows: Sequence[StorageRow]) -> str:
    """The rows for people."""
    width = max(10, *(len(row.engine) + 1 for row in rows))
    lines = [
        f"{'engine':{width}}{'bytes':>7}{'msgs/s':>12}{'MB/s':>8}{'a sync':>9}{'x raw':>8}"
        f"{'turn ms':>9}{'bare ms':>9}  goal"
    ]
    raw = {row.payload: row.rate for row in rows if row.engine == "raw"}
    for row in rows:
        if row.error:
            lines.append(f"{row.engine:{width}}{row.payload:>7}  failed: {row.error}")
            continue
        of_raw = row.rate / raw[row.payload] if raw.get(row.payload) else 0.0
        is_written = not row.engine.startswith("recovery")
        synced = f"{statistics.mean(row.batches):,.0f}" if is_written else ""
        shown = f"{of_raw:.2f}" if is_written else ""
        pause = max(row.pauses, default=0.0)
        bare = max(row.bare_pauses, default=0.0)
        lines.append(
            f"{row.engine:{width}}{row.payload:>7}{row.rate:>12,.0f}"
            f"{row.rate * row.payload / 1e6:>8.0f}"
            f"{synced:>9}{shown:>8}"
            f"{f'{pause * 1000:.1f}' if pause else '':>9}"
            f"{f'{bare * 1000:.1f}' if bare else '':>9}  {_verdict(row)}".rstrip()
        )
    return "\n".join(lines)


def _verdict(row: StorageRow) -> str:
    if row.engine == "pauses":
        runs = zip(row.pauses, row.bare_pauses, strict=True)
        valid = [pause for pause, bare in runs if bare <= MAX_PAUSE]
        limit = f"{MAX_PAUSE * 1000:.0f} ms"
        if not valid:
            return f"{limit} not shown: the machine stood still"
        left_out = len(row.pauses) - len(valid)
        shown = f"{limit} {'met' if max(valid) <= MAX_PAUSE else 'missed'}"
        return shown + (f", {left_out} of {len(row.pauses)} left out" if left_out else "")
    goals = {"trivium": GOALS, "recovery": RECOVERY_GOALS}.get(row.engine, {})
    goal = goals.get(row.payload, 0)
    return f"{goal:,} {'met' if row.rate >= goal else 'missed'}" if goal else ""
