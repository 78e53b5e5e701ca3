"""Measure scenarios: start the servers they need, load one at a time in turns, collect the rows."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.doors import PLAIN
from bench.endpoints import PeerError
from bench.load import run_closed, run_paced
from bench.report import Row
from bench.scenarios import Scenario, open_lanes
from bench.servers import (
    REPOSITORY,
    Mosquitto,
    RabbitMq,
    Relay,
    Server,
    ServerError,
    Trivium,
    TriviumInterpreted,
)

RESULTS: Final = REPOSITORY / "bench" / "results"
SERVERS: Final[dict[str, type[Server]]] = {
    kind.name: kind for kind in (Mosquitto, RabbitMq, Trivium, TriviumInterpreted, Relay)
}


@dataclass(frozen=True)
class Settings:
    """How to measure; times in seconds."""

    servers: tuple[str, ...]
    """By name; empty for the scenario's own peer, both builds of Trivium and the relay."""
    repetitions: int = 5
    warm_up: float = 0.5
    measure: float = 3.0
    latency: float = 3.0
    """Length of the paced run; 0 for none."""
    latency_rate: int | None = None
    """Messages published per second in the paced run, instead of the scenario's."""
    pin: bool = False
    """Keep every server on one core and the load generator on another."""

    def servers_for(self, scenario: Scenario) -> list[str]:
        """Return the names of the servers to put under the scenario's load, in order."""
        peer = "mosquitto" if scenario.protocols == {"mqtt"} else "rabbitmq"
        names = self.servers or (peer, "trivium", "trivium-interpreted", "relay")
        return [
            name
            for name in names
            if scenario.protocols <= server_kind(name).protocols
            and scenario.door in server_kind(name).doors
            and (server_kind(name).is_broker or len(scenario.protocols) == 1)
        ]


@contextmanager
def server_cores(*, pin: bool) -> Iterator[frozenset[int] | None]:
    """Yield the servers' cores: with ``pin`` the last one, and this process keeps to the others."""
    if not pin:
        yield None
        return
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        raise ServerError("pinning needs two cores")
    last = max(cores)
    os.sched_setaffinity(0, cores - {last})
    try:
        yield frozenset({last})
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def working_directory() -> Iterator[Path]:
    """Yield a fresh directory on the repository's file system, removed afterwards."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as directory:
        yield Path(directory)


def server_kind(name: str) -> type[Server]:
    """Return the kind of a server: one of :data:`SERVERS`, or ``trivium@PATH``.

    The latter is the compiled build of another checkout, which is in PATH.

    Raises:
        ServerError: there is none of that name.
    """
    known, _, build = name.partition("@")
    if known not in SERVERS or (build and known != Trivium.name):
        raise ServerError(f"no server {name}; there are {', '.join(SERVERS)} and trivium@PATH")
    return SERVERS[known]


def build_of(name: str) -> Path | None:
    """Return the directory of a server's build, None where it is this checkout's."""
    build = name.partition("@")[2]
    return Path(build) if build else None


def make_server(
    name: str,
    directory: Path,
    cores: frozenset[int] | None,
    *,
    on_disk: bool,
    door: str = PLAIN,
) -> Server:
    """Return the named server, not yet started."""
    kind = server_kind(name)
    if issubclass(kind, Trivium):
        return kind(directory, cores, door, on_disk=on_disk, build=build_of(name))
    return kind(directory, cores, door)


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _start(
    names: Sequence[str], stack: ExitStack, settings: Settings, *, on_disk: bool, door: str
) -> dict[str, Server | str]:
    """Start servers; one that cannot be started is represented by the reason."""
    directory = stack.enter_context(working_directory())
    cores = stack.enter_context(server_cores(pin=settings.pin))
    started: dict[str, Server | str] = {}
    for number, name in enumerate(names):
        _progress(f"starting {name}")
        # Two builds of one server have the same name.
        server = make_server(name, directory / str(number), cores, on_disk=on_disk, door=door)
        try:
            server.start()
        except ServerError as error:
            started[name] = str(error)
        else:
            stack.callback(server.stop)
            started[name] = server
    return started


def measure(scenarios: Sequence[Scenario], settings: Settings) -> list[Row]:
    """Run every scenario and return a row per scenario and server.

    Scenarios that keep messages in memory share their servers, so do those on disk, and those
    behind each door. All of them are up at a time, but only one is under load: repetitions go round
    the servers, so that a slow spell of the machine hits them alike.
    """
    rows = []

    def kind(scenario: Scenario) -> tuple[bool, str]:
        return scenario.on_disk, scenario.door

    for (on_disk, door), group in itertools.groupby(sorted(scenarios, key=kind), kind):
        members = list(group)
        names = list(dict.fromkeys(n for member in members for n in settings.servers_for(member)))
        with ExitStack() as stack:
            servers = _start(names, stack, settings, on_disk=on_disk, door=door)
            for scenario in members:
                wanted = {name: servers[name] for name in settings.servers_for(scenario)}
                rows += _measure_scenario(scenario, wanted, settings)
    return rows


def _measure_scenario(
    scenario: Scenario, servers: dict[str, Server | str], settings: Settings
) -> list[Row]:
    rows = []
    live = []
    for name, server in servers.items():
        if isinstance(server, Server):
            row = Row(scenario.name, name, server.version())
            live.append((server, row))
        else:
            row = Row(scenario.name, name, "", error=server)
        rows.append(row)
    for repetition in range(settings.repetitions):
        for server, row in live:
            if not row.error:
                _progress(f"{scenario.name} {row.server} run {repetition + 1}")
                _run_closed(scenario, server, row, settings)
    if settings.latency:
        for server, row in live:
            if server.is_broker and not row.error:
                _progress(f"{scenario.name} {row.server} latency")
                _run_paced(scenario, server, row, settings)
    for server, row in live:
        row.resident_bytes = server.resident_bytes()
    return rows


def _run_closed(scenario: Scenario, server: Server, row: Row, settings: Settings) -> None:
    try:
        with open_lanes(scenario, server.addresses) as lanes:
            result = run_closed(
                lanes, scenario.limits, settings.warm_up, settings.measure, server.cpu_seconds
            )
    except (PeerError, OSError) as error:
        row.error = str(error)
    else:
        row.add_rate(result)


def _run_paced(scenario: Scenario, server: Server, row: Row, settings: Settings) -> None:
    rate = settings.latency_rate or scenario.latency_rate
    try:
        with open_lanes(scenario, server.addresses) as lanes:
            result = run_paced(lanes, rate, settings.warm_up, settings.latency, server.cpu_seconds)
    except (PeerError, OSError) as error:
        row.error = str(error)
    else:
        row.add_latency(result, rate)
