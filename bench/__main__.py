"""The command line: ``python -m bench [run | list | idle | backlog | ...] ...``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

from bench import environment, report, runner, scenarios
from bench.backlog import KINDS, measure_backlog
from bench.endpoints import PeerError
from bench.idle import measure_idle
from bench.instructions import count_instructions
from bench.restart import measure_restart
from bench.runner import RESULTS, SERVERS, Settings
from bench.scale import measure_scale
from bench.servers import ServerError
from bench.storage import measure_storage, storage_table

T = TypeVar("T")

QUICK: Final = Settings(servers=(), repetitions=1, warm_up=0.3, measure=1.0, latency=0.4)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="Compare Trivium with its peers.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure rates and latencies (the default)")
    run.add_argument("--quick", action="store_true", help="few scenarios, one short run of each")
    run.add_argument("--scenario", action="append", choices=scenarios.SCENARIOS, metavar="NAME")
    run.add_argument("--server", action="append", choices=SERVERS, metavar="NAME")
    run.add_argument("--repetitions", type=int, metavar="N")
    run.add_argument("--seconds", type=float, help="length of each measurement")
    run.add_argument("--latency-seconds", type=float, help="length of the paced run, 0 for none")
    run.add_argument("--rate", type=int, help="messages a second in the paced run")
    run.add_argument("--pin", action="store_true", help="servers on one core, load on another")
    run.add_argument("--json", type=Path, metavar="FILE", help="instead of one in bench/results/")
    commands.add_parser("list", help="list scenarios and servers")
    idle = commands.add_parser("idle", help="measure the memory of idle MQTT connections")
    idle.add_argument("--connections", type=int, default=5000)
    brokers = [name for name, kind in SERVERS.items() if kind.is_broker]
    idle.add_argument("--server", action="append", choices=brokers, metavar="NAME")
    backlog = commands.add_parser("backlog", help="publish while nobody consumes, then drain")
    backlog.add_argument("--kind", action="append", choices=KINDS)
    backlog.add_argument("--messages", type=int, default=10_000_000)
    backlog.add_argument("--payload", type=int, default=256, metavar="BYTES")
    backlog.add_argument("--server", action="append", choices=brokers, metavar="NAME")
    restart = commands.add_parser("restart", help="start with many queues and retained messages")
    restart.add_argument("--count", type=int, default=10_000)
    scale = commands.add_parser("scale", help="confirms while many table rows are checkpointed")
    scale.add_argument("--retained", type=int, default=1_000_000, help="retained messages")
    scale.add_argument("--messages", type=int, default=200_000, help="of a round")
    instructions = commands.add_parser("instructions", help="count instructions per message")
    instructions.add_argument(
        "--scenario", action="append", choices=scenarios.SCENARIOS, metavar="NAME"
    )
    instructions.add_argument("--server", action="append", choices=SERVERS, metavar="NAME")
    instructions.add_argument("--messages", type=int, default=20_000, help="on each lane")
    instructions.add_argument("--keep", type=Path, metavar="FILE", help="for callgrind_annotate")
    storage = commands.add_parser("storage", help="measure durable writes and recovery")
    storage.add_argument("--payload", type=int, action="append", metavar="BYTES")
    storage.add_argument("--repetitions", type=int, default=5)
    storage.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    storage.add_argument("--interpreted", action="store_true", help="not the compiled build")
    return parser


def _settings(arguments: argparse.Namespace) -> Settings:
    base = QUICK if arguments.quick else Settings(servers=())
    chosen = {
        "servers": tuple(arguments.server) if arguments.server else None,
        "repetitions": arguments.repetitions,
        "measure": arguments.seconds,
        "latency": arguments.latency_seconds,
        "latency_rate": arguments.rate,
        "pin": arguments.pin,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    return Settings(**(asdict(base) | given))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.scenario:
        names = arguments.scenario
    elif arguments.quick:
        names = [name for name, scenario in scenarios.SCENARIOS.items() if scenario.quick]
    else:
        names = scenarios.DEFAULT
    chosen = [scenarios.SCENARIOS[name] for name in names]
    settings = _settings(arguments)
    with runner.working_directory() as directory:
        machine = environment.observe(directory)
    if machine.file_system in environment.MEMORY_FILE_SYSTEMS:
        raise ServerError(f"{RESULTS} is on {machine.file_system}: nothing there is ever synced")
    rows = runner.measure(chosen, settings)
    print("\n".join(machine.lines()))
    print(
        f"median of {settings.repetitions}, {settings.measure:g} s each;"
        f" {'server and load on a core each' if settings.pin else 'not pinned'}"
    )
    print(report.table(rows, chosen))
    path = arguments.json or RESULTS / time.strftime("%Y%m%d-%H%M%S.json")
    report.write_json(path, rows, chosen, machine, asdict(settings))
    print(f"\nwritten to {path}")
    return 0 if all(row.is_clean for row in rows) else 1


def _list(_arguments: argparse.Namespace) -> int:
    for scenario in scenarios.SCENARIOS.values():
        print(f"{scenario.name:26} {scenario.title}")
    print("servers:", ", ".join(SERVERS))
    return 0


def _each(measurements: Iterable[Callable[[], T]]) -> tuple[list[T], int]:
    """Print each measurement; return them and the exit status, 1 if a server failed."""
    results, status = [], 0
    for measure in measurements:
        try:
            results.append(measure())
            print(results[-1], flush=True)
        except (ServerError, PeerError, OSError) as error:
            print(f"bench: {error}", file=sys.stderr)
            status = 1
    return results, status


def _idle(arguments: argparse.Namespace) -> int:
    servers = arguments.server or ["mosquitto", "trivium", "trivium-interpreted"]
    results, status = _each(partial(measure_idle, name, arguments.connections) for name in servers)
    _write("idle", results)
    return status


def _backlog(arguments: argparse.Namespace) -> int:
    results, status = _each(
        partial(measure_backlog, name, kind, arguments.messages, arguments.payload)
        for kind in arguments.kind or KINDS
        for name in arguments.server or ["trivium"]
    )
    _write("backlog", results)
    return status


def _restart(arguments: argparse.Namespace) -> int:
    results, status = _each([partial(measure_restart, "trivium", arguments.count)])
    _write("restart", results)
    return status


def _scale(arguments: argparse.Namespace) -> int:
    measure = partial(measure_scale, "trivium", arguments.retained, arguments.messages)
    results, status = _each([measure])
    _write("scale", results)
    return status


def _instructions(arguments: argparse.Namespace) -> int:
    names = arguments.scenario or ("mqtt-qos0-1to1", "mqtt-qos1-1to1", "amqp-confirmed-1q")
    servers = arguments.server or ("trivium", "trivium-interpreted")
    _, status = _each(
        partial(
            count_instructions,
            scenarios.SCENARIOS[name],
            server,
            arguments.messages,
            arguments.keep,
        )
        for name in names
        for server in servers
    )
    return status


def _storage(arguments: argparse.Namespace) -> int:
    rows = measure_storage(
        arguments.payload or (64, 4096),
        arguments.repetitions,
        arguments.seconds,
        not arguments.interpreted,
    )
    print(storage_table(rows))
    _write("storage", rows)
    return 1 if any(row.error for row in rows) else 0


def _write(name: str, results: Sequence[Any]) -> None:
    """Write results, of a data class, to a file named for the measurement and the time."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / time.strftime(f"{name}-%Y%m%d-%H%M%S.json")
    path.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(143)


_COMMANDS: Final = {
    "run": _run,
    "list": _list,
    "idle": _idle,
    "backlog": _backlog,
    "restart": _restart,
    "scale": _scale,
    "instructions": _instructions,
    "storage": _storage,
}


def main(arguments: list[str]) -> int:
    """Run a command; ``run`` where none is named. Returns the exit status."""
    if not arguments or arguments[0] not in (*_COMMANDS, "-h", "--help"):
        arguments = ["run", *arguments]
    parsed = _parser().parse_args(arguments)
    try:
        return _COMMANDS[parsed.command](parsed)
    except ServerError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    # So that the servers are ended however this process is asked to end.
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(main(sys.argv[1:]))
