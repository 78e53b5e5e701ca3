"""Seeds of the simulation, for a while."""

from __future__ import annotations

import os
import random

import pytest

from tests.simulation.__main__ import OPERATIONS, run_seconds
from tests.simulation.simulation import Simulation

#: Where the broker is compiled, which is the second time within ``./dev test``, a part has to do.
IS_COMPILED = "TRIVIUM_EXPECT_COMPILED" in os.environ
SECONDS = float(os.environ.get("TRIVIUM_SIM_SECONDS", "60")) / (6 if IS_COMPILED else 1)
#: The short runs are the same everywhere; a longer one looks for what no run has seen.
FIRST = 1_000_000 if IS_COMPILED else 1
IS_SHORT = SECONDS <= 60


def test_a_seed_reproduces_a_run() -> None:
    traces = []
    for _ in range(2):
        simulation = Simulation(7)
        simulation.run(400)
        traces.append(simulation.trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 400


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 300)
def test_seeds_for_a_while() -> None:
    first = FIRST if IS_SHORT else random.SystemRandom().getrandbits(32)
    total = run_seconds(first, OPERATIONS, SECONDS)
    assert total["seeds"] > 0
