"""The command line: ``python -m bench [run | list | idle | backlog | ...] ...``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

from bench import environment, report, runner, scenarios
from bench.backlog import KINDS, measure_backlog
from bench.doors import PLAIN, TLS, WEBSOCKET
from bench.endpoints import PeerError
from bench.handshakes import compared, measure_handshakes
from bench.idle import measure_idle
from bench.instructions import ROWS, Instructions, count_instructions
from bench.latency import KINDS as KINDS_OF_LATENCY
from bench.latency import latency_table, measure_latency
from bench.memory import KINDS as KINDS_OF_MEMORY
from bench.memory import measure_memory
from bench.record import (
    Comparison,
    Record,
    compare,
    measured_commit,
    read_record,
    this_platform,
    write_record,
)
from bench.restart import measure_restart
from bench.runner import RESULTS, SERVERS, Settings, server_kind
from bench.scale import measure_scale
from bench.scrape import measure_scrape
from bench.servers import ServerError, Trivium
from bench.storage import measure_storage, storage_table

T = TypeVar("T")

COUNTS: Final = 3
"""Times that a row above its record is counted before it is said to be."""
QUICK: Final = Settings(servers=(), repetitions=1, warm_up=0.3, measure=1.0, latency=0.4)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="Compare Trivium with its peers.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure rates and latencies (the default)")
    run.add_argument("--quick", action="store_true", help="few scenarios, one short run of each")
    run.add_argument("--scenario", action="append", choices=scenarios.SCENARIOS, metavar="NAME")
    run.add_argument("--server", action="append", type=_server, metavar="NAME")
    run.add_argument("--repetitions", type=int, metavar="N")
    run.add_argument("--seconds", type=float, help="length of each measurement")
    run.add_argument("--latency-seconds", type=float, help="length of the paced run, 0 for none")
    run.add_argument("--rate", type=int, help="messages a second in the paced run")
    run.add_argument("--pin", action="store_true", help="servers on one core, load on another")
    run.add_argument("--json", type=Path, metavar="FILE", help="instead of one in bench/results/")
    commands.add_parser("list", help="list scenarios and servers")
    idle = commands.add_parser("idle", help="measure the memory of idle MQTT connections")
    idle.add_argument("--connections", type=int, default=5000)
    idle.add_argument("--door", choices=(PLAIN, TLS, WEBSOCKET), default=PLAIN)
    idle.add_argument("--server", action="append", type=_broker, metavar="NAME")
    handshakes = commands.add_parser("handshakes", help="let clients in by TLS 1.3")
    handshakes.add_argument("--count", type=int, default=500)
    handshakes.add_argument("--at-once", type=int, default=50, metavar="N")
    handshakes.add_argument("--repetitions", type=int, default=5)
    handshakes.add_argument("--server", action="append", type=_broker, metavar="NAME")
    memory = commands.add_parser("memory", help="measure the memory of each queue, session, ...")
    memory.add_argument("--kind", action="append", choices=KINDS_OF_MEMORY)
    memory.add_argument("--count", type=int, help="how many, instead of the kind's own number")
    memory.add_argument("--server", action="append", type=_broker, metavar="NAME")
    backlog = commands.add_parser("backlog", help="publish while nobody consumes, then drain")
    backlog.add_argument("--kind", action="append", choices=KINDS)
    backlog.add_argument("--messages", type=int, default=10_000_000)
    backlog.add_argument("--payload", type=int, default=256, metavar="BYTES")
    backlog.add_argument("--server", action="append", type=_broker, metavar="NAME")
    restart = commands.add_parser("restart", help="start with many queues and retained messages")
    restart.add_argument("--count", type=int, default=10_000, help="queues")
    restart.add_argument("--retained", type=int, default=10_000, help="retained messages")
    scale = commands.add_parser("scale", help="confirms while many table rows are checkpointed")
    scale.add_argument("--retained", type=int, default=1_000_000, help="retained messages")
    scale.add_argument("--messages", type=int, default=200_000, help="of a round")
    scrape = commands.add_parser("scrape", help="ask the HTTP API about many queues under load")
    scrape.add_argument("--queues", type=int, default=10_000)
    spark = commands.add_parser("spark", help="read, stream and write by Spark")
    spark.add_argument("--kind", action="append", choices=("read", "stream", "sink"))
    spark.add_argument("--rows", type=int, default=2_000_000)
    spark.add_argument("--singles", type=int, default=400_000, help="records of single publishes")
    spark.add_argument("--size", type=int, action="append", help="records of a micro-batch")
    spark.add_argument("--repetitions", type=int, default=3)
    spark.add_argument("--server", type=_broker, default=Trivium.name, metavar="NAME")
    instructions = commands.add_parser("instructions", help="count instructions per message")
    counted = {**ROWS, **scenarios.SCENARIOS}
    instructions.add_argument("--scenario", action="append", choices=counted, metavar="NAME")
    instructions.add_argument("--server", action="append", type=_server, metavar="NAME")
    instructions.add_argument("--messages", type=int, help="over all lanes")
    instructions.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    instructions.add_argument("--record", action="store_true", help="keep the counts as the record")
    instructions.add_argument("--keep", type=Path, metavar="FILE", help="for callgrind_annotate")
    latency = commands.add_parser("latency", help="confirms of one message at a time")
    latency.add_argument("--server", action="append", type=_broker, metavar="NAME")
    latency.add_argument("--kind", action="append", choices=KINDS_OF_LATENCY)
    latency.add_argument("--messages", type=int, default=4000)
    latency.add_argument("--payload", type=int, default=64, metavar="BYTES")
    storage = commands.add_parser("storage", help="measure durable writes and recovery")
    storage.add_argument("--payload", type=int, action="append", metavar="BYTES")
    storage.add_argument("--repetitions", type=int, default=5)
    storage.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    storage.add_argument("--server", action="append", type=_server, metavar="NAME")
    return parser


def _server(name: str) -> str:
    """A server's name. Raises ArgumentTypeError when there is none."""
    try:
        server_kind(name)
    except ServerError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


def _broker(name: str) -> str:
    """A server's name, of one that is a broker. Raises ArgumentTypeError when there is none."""
    if not server_kind(_server(name)).is_broker:
        raise argparse.ArgumentTypeError(f"{name} is no broker")
    return name


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
    print("servers:", ", ".join(SERVERS), "and trivium@PATH, another checkout's build/compiled")
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
    results, status = _each(
        partial(measure_idle, name, arguments.connections, arguments.door) for name in servers
    )
    _write("idle", results)
    return status


def _handshakes(arguments: argparse.Namespace) -> int:
    results = measure_handshakes(
        arguments.server or ("mosquitto", "trivium", "trivium-interpreted"),
        arguments.count,
        arguments.at_once,
        arguments.repetitions,
    )
    print(compared(results))
    _write("handshakes", results)
    return 0


def _memory(arguments: argparse.Namespace) -> int:
    results, status = _each(
        partial(measure_memory, name, kind, arguments.count)
        for kind in arguments.kind or KINDS_OF_MEMORY
        for name in arguments.server or ["trivium"]
    )
    _write("memory", results)
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
    measure = partial(measure_restart, "trivium", arguments.count, arguments.retained)
    results, status = _each([measure])
    _write("restart", results)
    return status


def _scale(arguments: argparse.Namespace) -> int:
    measure = partial(measure_scale, "trivium", arguments.retained, arguments.messages)
    results, status = _each([measure])
    _write("scale", results)
    return status


def _scrape(arguments: argparse.Namespace) -> int:
    results, status = _each([partial(measure_scrape, "trivium", arguments.queues)])
    _write("scrape", results)
    return status


def _spark(arguments: argparse.Namespace) -> int:
    # It needs packages that only this needs.
    from bench.spark import KINDS as KINDS_OF_SPARK
    from bench.spark import SIZES, measure_spark, spark_table

    rows = measure_spark(
        arguments.server,
        arguments.kind or KINDS_OF_SPARK,
        rows=arguments.rows,
        singles=arguments.singles,
        sizes=arguments.size or SIZES,
        repetitions=arguments.repetitions,
    )
    print(spark_table(rows))
    _write("spark", rows)
    return 0


def _instructions(arguments: argparse.Namespace) -> int:
    rows = arguments.scenario or tuple(ROWS)
    servers = arguments.server or (Trivium.name,)
    if arguments.keep and len(rows) * len(servers) > 1:
        raise ServerError("a file can keep the profile of one row only: --scenario, --server")
    commit = measured_commit() if arguments.record else ""
    record = read_record()
    if record.platform != this_platform():
        print(f"not compared: the record is of {record.platform}, this is {this_platform()}")
    pool = ThreadPoolExecutor(arguments.jobs)
    count = partial(count_instructions, most=arguments.messages, keep=arguments.keep)
    counts = [
        pool.submit(_least, partial(count, row, server), record)
        for row in rows
        for server in servers
    ]
    try:
        compared, status = _each(one.result for one in counts)
    finally:
        # However it ends, what has begun ends its server.
        pool.shutdown(cancel_futures=True)
    if arguments.record:
        write_record(
            [one.counted for one in compared if one.counted.server == Trivium.name], commit
        )
    elif any(one.is_above for one in compared):
        return 1
    return status


def _least(count: Callable[[], Instructions], record: Record) -> Comparison:
    """Count a row, again while it is above its record; the least of :data:`COUNTS` is compared.

    What the machine does besides only ever adds to a count, what the code does is in each.
    """
    found = compare(count(), record)
    for _ in range(COUNTS - 1):
        if not found.is_above:
            break
        again = compare(count(), record)
        if again.counted.per_message < found.counted.per_message:
            found = again
    return found


def _latency(arguments: argparse.Namespace) -> int:
    rows = measure_latency(
        arguments.server or (Trivium.name,),
        arguments.kind or KINDS_OF_LATENCY,
        arguments.messages,
        arguments.payload,
    )
    print(latency_table(rows))
    _write("latency", rows)
    return 0


def _storage(arguments: argparse.Namespace) -> int:
    rows = measure_storage(
        arguments.payload or (64, 4096),
        arguments.repetitions,
        arguments.seconds,
        arguments.server or (Trivium.name,),
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
    "handshakes": _handshakes,
    "memory": _memory,
    "backlog": _backlog,
    "restart": _restart,
    "scale": _scale,
    "scrape": _scrape,
    "spark": _spark,
    "instructions": _instructions,
    "latency": _latency,
    "storage": _storage,
}


def main(arguments: list[str]) -> int:
    """Run a command; ``run`` where none is named. Returns the exit status."""
    if arguments[:1] == ["--instructions"]:
        arguments = ["instructions", *arguments[1:]]
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
