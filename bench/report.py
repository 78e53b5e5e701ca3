"""Sum up the runs of each scenario and server, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from bench.environment import Environment
from bench.load import RunResult
from bench.scenarios import Scenario

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
PEERS: Final = ("mosquitto", "rabbitmq")


@dataclass
class Row:
    """One server under one scenario's load, over all repetitions."""

    scenario: str
    server: str
    version: str
    rates: list[float] = field(default_factory=list)
    """Messages delivered per second, one entry per repetition, in the order they were run."""
    server_cpu: list[float] = field(default_factory=list)
    """Cores used by the server while it was measured, one entry per repetition."""
    generator_cpu: list[float] = field(default_factory=list)
    resident_bytes: int = 0
    """The server's resident memory after the last run."""
    sent: int = 0
    """Messages sent over all runs, the paced one and all warm-ups included."""
    delivered: int = 0
    lost: int = 0
    duplicated: int = 0
    unexpected: int = 0
    refused: int = 0
    unconfirmed: int = 0
    latency_rate: int = 0
    """Messages published per second in the paced run; 0 if there was none."""
    latency_seconds: dict[str, float] = field(default_factory=dict)
    """Delay from due to received by percentile, and ``max``."""
    error: str = ""

    @property
    def median_rate(self) -> float:
        """The median repetition's rate, 0 without any."""
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def is_clean(self) -> bool:
        """Nothing failed, and every message arrived once and was confirmed."""
        wrong = self.lost + self.duplicated + self.unexpected + self.refused + self.unconfirmed
        return not self.error and not wrong

    def add_rate(self, result: RunResult) -> None:
        """Add a closed run."""
        self.rates.append(result.rate)
        self.server_cpu.append(result.server_cpu)
        self.generator_cpu.append(result.generator_cpu)
        self._count(result)

    def add_latency(self, result: RunResult, rate: int) -> None:
        """Add the paced run."""
        self.latency_rate = rate
        self._count(result)
        if len(result.delays):
            values = np.percentile(result.delays, PERCENTILES)
            self.latency_seconds = {
                f"p{percentile:g}": float(value)
                for percentile, value in zip(PERCENTILES, values, strict=True)
            } | {"max": float(result.delays.max())}

    def _count(self, result: RunResult) -> None:
        self.sent += result.total_sent
        self.delivered += result.total_delivered
        self.lost += result.tally.lost
        self.duplicated += result.tally.duplicated
        self.unexpected += result.tally.unexpected
        self.refused += result.refused
        self.unconfirmed += result.unconfirmed


def _peer_rate(row: Row, rows: Sequence[Row]) -> float:
    """Return the best peer's median rate in the row's scenario, 0 without one.

    Where there is no peer, another build of Trivium is one to this checkout's.
    """
    others = [other for other in rows if other.scenario == row.scenario]
    peers = [other for other in others if other.server in PEERS]
    if not peers and not _is_other_build(row):
        peers = [other for other in others if _is_other_build(other)]
    return max((peer.median_rate for peer in peers), default=0.0)


def _is_other_build(row: Row) -> bool:
    return "@" in row.server


def ratio(row: Row, rows: Sequence[Row]) -> float | None:
    """Return Trivium's median rate over the peer's in the same scenario; None for other servers."""
    rate = _peer_rate(row, rows)
    if not row.server.startswith("trivium") or not row.rates or not rate:
        return None
    return row.median_rate / rate


def goal(row: Row, scenario: Scenario) -> float | None:
    """Return the ratio that the row's server must reach in the scenario, if one is set."""
    if scenario.goals is None:
        return None
    return {"trivium": scenario.goals[0], "trivium-interpreted": scenario.goals[1]}.get(row.server)


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.2f}"


_HEADINGS: Final = (
    "server",
    "version",
    "msgs/s",
    "min",
    "max",
    "x peer",
    "goal",
    "p50 ms",
    "p99 ms",
    "p99.9",
    "lost",
    "dup",
    "cpu",
    "gen cpu",
    "MiB",
)
_WIDTHS: Final = (20, 18, 11, 11, 11, 7, 9, 7, 7, 7, 6, 6, 5, 7, 5)


def _cells(row: Row, rows: Sequence[Row], scenario: Scenario) -> list[str]:
    times, wanted = ratio(row, rows), goal(row, scenario)
    if not any(other.server in PEERS for other in rows):
        wanted = None
    met = "" if wanted is None else f"{wanted:g} {'met' if (times or 0) >= wanted else 'MISSED'}"
    latency = row.latency_seconds
    return [
        row.server,
        row.version,
        f"{row.median_rate:,.0f}",
        f"{min(row.rates):,.0f}",
        f"{max(row.rates):,.0f}",
        "" if times is None else f"{times:.2f}",
        met if times is not None else "",
        *(_milliseconds(latency.get(name)) for name in ("p50", "p99", "p99.9")),
        f"{row.lost:,}",
        f"{row.duplicated:,}",
        f"{statistics.median(row.server_cpu):.2f}",
        f"{statistics.median(row.generator_cpu):.2f}",
        f"{row.resident_bytes / 2**20:.0f}",
    ]


def _line(cells: Sequence[str]) -> str:
    texts = [
        cell.ljust(width) if index < 2 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ]
    return " ".join(texts).rstrip()


def table(rows: Sequence[Row], scenarios: Sequence[Scenario]) -> str:
    """Return all results as text, one block per scenario."""
    lines = []
    for scenario in scenarios:
        mine = [row for row in rows if row.scenario == scenario.name]
        if not mine:
            continue
        storage = "on disk" if scenario.on_disk else "in memory"
        lines += [
            "",
            f"{scenario.name}: {scenario.title}; {scenario.payload} bytes, {storage}",
            _line(_HEADINGS),
        ]
        for row in mine:
            if row.rates:
                lines.append(_line(_cells(row, rows, scenario)))
            if row.error:
                lines.append(f"{row.server:20} failed: {row.error}")
            elif not row.is_clean:
                lines.append(
                    f"{row.server:20} of {row.sent:,} sent: {row.lost:,} lost,"
                    f" {row.duplicated:,} duplicated, {row.unexpected:,} never sent,"
                    f" {row.refused:,} refused, {row.unconfirmed:,} not confirmed"
                )
    return "\n".join(lines[1:])


def write_json(
    path: Path,
    rows: Sequence[Row],
    scenarios: Sequence[Scenario],
    environment: Environment,
    settings: dict[str, object],
) -> None:
    """Write everything that was measured to ``path``."""
    document = {
        "environment": asdict(environment),
        "settings": settings,
        "scenarios": {scenario.name: asdict(scenario) for scenario in scenarios},
        "results": [
            asdict(row) | {"median_rate": row.median_rate, "ratio": ratio(row, rows)}
            for row in rows
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
