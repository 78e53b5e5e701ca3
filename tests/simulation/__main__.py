"""Runs the simulation: one seed, or as many as fit into a time."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter

from tests.simulation.simulation import Failure, Simulation

OPERATIONS = 1000


def run_seconds(first: int, operations: int, seconds: float) -> Counter[str]:
    """Run seeds from ``first`` on until the time is over; what was done. Raises Failure."""
    total: Counter[str] = Counter()
    end = time.monotonic() + seconds
    seed = first
    while time.monotonic() < end:
        simulation = Simulation(seed)
        simulation.run(operations)
        total["seeds"] += 1
        total += simulation.counts
        seed += 1
    return total


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--operations", type=int, default=OPERATIONS, help="of each seed")
    parser.add_argument("--seconds", type=float, help="run seeds for so long; without it, one")
    options = parser.parse_args()
    # What the broker has to say about each crash would be most of the work.
    logging.disable()
    started = time.monotonic()
    try:
        if options.seconds is None:
            simulation = Simulation(options.seed)
            simulation.run(options.operations)
            total = simulation.counts
        else:
            total = run_seconds(options.seed, options.operations, options.seconds)
    except Failure as failure:
        if failure.__cause__ is not None:
            traceback.print_exception(failure.__cause__)
        print(failure)
        return 1
    for what, count in total.items():
        print(f"{count:>10} {what}")
    print(f"{total['operations'] / (time.monotonic() - started):10.0f} operations a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
