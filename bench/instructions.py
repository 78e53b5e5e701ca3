"""Count the instructions that a server executes per message, with valgrind.

Unlike a rate it hardly depends on what else the machine does, so it tells a change of a few per
cent on the hot path. The server serves a short and a long run; connecting is in both counts, so the
difference is the messages' own. Work of the kernel is not counted. The emulated server is some
fifty times slower than the load generator, so its batches are as full as the scenario's limits
allow.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.load import run_count
from bench.runner import make_server, working_directory
from bench.scenarios import Scenario, open_lanes
from bench.servers import ServerError, Trivium

_FEWER: Final = 0.25
"""The short run's share of the long one's messages."""
_TURN_MILLISECONDS: Final = 500
"""Some hundred times what it is, as the emulated server is slower by some fifty times."""


@dataclass(frozen=True)
class Instructions:
    """What a server executed for one delivered message, all its threads together."""

    server: str
    scenario: str
    messages: int
    """The difference of the two runs that was measured."""
    per_message: float

    def __str__(self) -> str:
        return f"{self.scenario:26} {self.server:20} {self.per_message:10,.0f} instructions/message"


def count_instructions(
    scenario: Scenario, name: str, messages: int, keep: Path | None = None
) -> Instructions:
    """Measure a server with up to ``messages`` messages per lane.

    ``keep`` names a file for the long run's profile, which ``callgrind_annotate`` reads.

    Raises:
        ServerError: valgrind is not installed or the server did not start.
        PeerError: the server misbehaved.
    """
    if shutil.which("valgrind") is None:
        raise ServerError("valgrind is not installed; on Debian: apt-get install valgrind")
    delivered, executed = [], []
    with working_directory() as directory:
        output = directory / "callgrind"
        server = make_server(name, directory, None, on_disk=scenario.on_disk)
        server.wrapper = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={output}")
        if isinstance(server, Trivium):
            # By the clock the emulated server would end its turn after each few messages.
            server.environment["TRIVIUM_LIMITS__TURN_MILLISECONDS"] = str(_TURN_MILLISECONDS)
        server.start()
        try:
            # The first run is for what happens once: caches, and whatever is imported on use.
            for index, share in enumerate((_FEWER, _FEWER, 1.0), start=1):
                count = int(messages * share)
                with open_lanes(scenario, server.addresses) as lanes:
                    result = run_count(lanes, scenario.limits, count, server.cpu_seconds)
                if result.tally.lost or result.unconfirmed:
                    raise ServerError(f"{name} lost or did not confirm messages")
                # A dump also sets the counters back to 0.
                _control("--dump", server.process_id)
                delivered.append(result.total_delivered)
                dump = output.with_name(f"callgrind.{index}")
                executed.append(_total(dump))
                if keep is not None:
                    # A call that began before the part counts 0 times, which callgrind_annotate
                    # does not take for a call.
                    keep.write_text(dump.read_text().replace("\ncalls=0 ", "\ncalls=1 "))
        finally:
            server.stop()
    difference = delivered[2] - delivered[1]
    per_message = (executed[2] - executed[1]) / difference
    return Instructions(name, scenario.name, difference, per_message)


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
