"""Kills the processes of a road, round by round, and counts what is there at the end."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from interop.brokers import TriviumProcess
from tests.kills.rounds import ROADS, Report, Wrong, run
from tests.support.reaper import start_reaper


def broker_in(folder: Path, *, is_compiled: bool = False) -> TriviumProcess:
    """A broker that makes checkpoints all the time; the compiled one as shipped."""
    return TriviumProcess(
        folder,
        restartable=True,
        protocols=("native",),
        is_compiled=is_compiled,
        module="trivium" if is_compiled else "tests.crash.small_storage",
        environment={"TRIVIUM_STORAGE__FSYNC": "always"},
    )


def run_road(road: str, rounds: int, seed: int, folder: Path, is_compiled: bool) -> Report:
    broker = broker_in(folder, is_compiled=is_compiled)
    broker.start()
    try:
        return run(road, folder, broker, rounds, seed)
    finally:
        broker.kill()
        broker.check_log()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--road", choices=ROADS, action="append", help="without it, all of them")
    parser.add_argument("--rounds", type=int, default=100, help="of each road (default 100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="the compiled broker")
    parser.add_argument("--keep", type=Path, help="leave data and logs in this folder")
    options = parser.parse_args()
    start_reaper()
    for road in options.road or ROADS:
        with tempfile.TemporaryDirectory(prefix=f"trivium-kills-{road}-") as temporary:
            folder = Path(temporary) if options.keep is None else options.keep / road
            folder.mkdir(parents=True, exist_ok=True)
            try:
                report = run_road(road, options.rounds, options.seed, folder, options.compiled)
            except Wrong as wrong:
                print(f"{road}: {wrong}", flush=True)
                return 1
        kills = ", ".join(f"{count} {what}" for what, count in sorted(report.kills.items()))
        print(
            f"{road}: {report.numbers} numbers, each once, after {report.kills.total()} kills"
            f" ({kills}; {report.failures} ended by themselves) in {report.seconds:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
