"""The command line: ``python -m bench.soak [SECONDS]``, or ``./dev soak``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import json
import logging
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bench.record import measured_commit
from bench.servers import ServerError
from bench.soak import judges
from bench.soak.amqp_work import AmqpVisitors, Orders
from bench.soak.endings import SoakError, guarded, within
from bench.soak.gateway_work import Gateway
from bench.soak.judges import Verdict
from bench.soak.mqtt_work import Sensors, Wills
from bench.soak.native_work import Pipeline
from bench.soak.site import Site
from bench.soak.watchers import Browser, LiveFigures, Scrapes
from bench.soak.works import Work, pause, road_works
from trivium.cli.clients import ClientError
from trivium.runtime.server import loop_factory

SECONDS: Final = 1800.0
RATE: Final = 40.0
#: Seconds between two disturbances, on average.
DISTURBANCE_SECONDS: Final = 3.0
#: Seconds between two looks at memory and disk, and looks at memory without what is free.
SAMPLE_SECONDS: Final = 1.0
HEAP_LOOKS: Final = 100
#: Seconds in which everything must be gone again, and in which connections of before are.
BASE_SECONDS: Final = 90.0
QUIET_SECONDS: Final = 1.0
#: Seconds for each step of all works but their run: connecting, ending, settling, removing.
STEP_SECONDS: Final = 240.0
#: Seconds beyond the run in which everything is over, and after which the process ends anyhow.
LEEWAY_SECONDS: Final = 1200.0
LAST_RESORT_SECONDS: Final = LEEWAY_SECONDS + 180.0
_VHOST: Final = "/api/v1/vhosts/%2F"
#: What fills up does so in the warm-up: a stream gets some 5 kB a second, and is in memory.
POLICIES: Final = {
    "soak-streams": ("streams", {"max-length-bytes": 512 << 10}),
    "soak-depth": ("queues", {"max-length": 1000, "overflow": "drop-head"}),
}


@dataclass
class Measured:
    """What was measured of the broker, with the seconds since the begin."""

    resident: list[tuple[float, float]] = field(default_factory=list)
    trimmed: list[tuple[float, float]] = field(default_factory=list)
    blocks: list[tuple[float, float]] = field(default_factory=list)
    disk: list[tuple[float, float]] = field(default_factory=list)
    objects: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    disturbances: int = 0


async def soak(seconds: float, seed: int, rate: float, *, counts_objects: bool) -> dict[str, Any]:
    """Run it; the report. Raises SoakError where the broker ends meanwhile, or a signal asks."""
    stop, at_once = _on_signals()
    site = Site(counts_objects=counts_objects)
    measured = Measured()

    async def asked() -> str:
        await at_once.wait()
        return "ended by a signal, nothing is judged"

    async def broker_ended() -> str:
        code = await site.broker.ended()
        at = measured.resident[-1][0] if measured.resident else 0.0
        log = site.broker.log_tail() or "nothing in its log"
        return f"the broker has ended by itself after {at:.0f} s, exit code {code}: {log}"

    async with contextlib.AsyncExitStack() as stack:
        await guarded(stack.enter_async_context(site), [asked()], LEEWAY_SECONDS)
        print(f"soak: the broker is process {site.broker.pid}", file=sys.stderr, flush=True)
        verdicts = await guarded(
            _judged(site, seconds, seed, rate, measured, stop),
            [asked(), broker_ended()],
            seconds + LEEWAY_SECONDS,
        )
        code = await site.broker.stop()
        verdicts += [judges.judge_end(code), judges.judge_log(site.broker.log.read_text())]
    return {
        "commit": _commit(),
        "seconds": seconds,
        "seed": seed,
        "rate": rate,
        "is_compiled": site.is_compiled,
        "disturbances": measured.disturbances,
        "is_interrupted": stop.is_set(),
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "measured": asdict(measured),
    }


def _on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Events: the load is to stop and be judged (SIGINT); all ends at once (SIGTERM, a second)."""
    stop, at_once = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: (at_once if stop.is_set() else stop).set())
    loop.add_signal_handler(signal.SIGTERM, at_once.set)
    return stop, at_once


async def _judged(
    site: Site, seconds: float, seed: int, rate: float, measured: Measured, stop: asyncio.Event
) -> list[Verdict]:
    """Use a broker that is there; what came of it."""
    for name, (kind, definition) in POLICIES.items():
        policy = {"pattern": f"^{name.removesuffix('-streams')}", "apply_to": kind}
        await site.ask("PUT", f"{_VHOST}/policies/{name}", policy | {"definition": definition})
    await asyncio.sleep(QUIET_SECONDS)
    before = await site.counts()
    works = list(_works(site, seed, rate))
    failures = await _use(site, works, seconds, seed, measured, stop)
    verdicts = [verdict for work in works for verdict in work.verdicts()]
    verdicts += [Verdict("clients", not failures, "; ".join(failures[:3]) or "none failed")]
    verdicts += _grown(measured, seconds)
    await site.remove_leftovers()
    verdicts.append(judges.judge_base(before, await _after(site, before)))
    return verdicts


def _commit() -> str:
    """The commit that the broker is of, as far as it is of one."""
    try:
        return measured_commit()
    except ServerError:
        return "with uncommitted changes"


def _works(site: Site, seed: int, rate: float) -> Iterator[Work]:
    """All kinds of use; each draws from a sequence of its own."""
    yield from road_works(site, rate)
    kinds = (
        *(Orders, AmqpVisitors, Sensors, Wills, Gateway, Pipeline),
        *(Scrapes, LiveFigures, Browser),
    )
    for kind in kinds:
        yield kind(site, random.Random(f"{kind.__name__} {seed}"), rate)


def _grown(measured: Measured, seconds: float) -> Iterator[Verdict]:
    yield judges.judge_growth("resident memory", measured.resident, seconds)
    yield judges.judge_growth("the same, trimmed", measured.trimmed, seconds)
    yield judges.judge_growth("blocks of Python", measured.blocks, seconds)
    yield judges.judge_disk(measured.disk, seconds)


async def _use(
    site: Site,
    works: list[Work],
    seconds: float,
    seed: int,
    measured: Measured,
    stop: asyncio.Event,
) -> list[str]:
    """Let all works run for so long, and settle; what failed of the clients themselves."""
    is_over = asyncio.Event()
    failures: list[str] = []
    for work in works:
        failures += await _each([work], lambda one: one.prepare())
    if failures:
        raise SoakError(f"clients do not connect: {'; '.join(failures)}")
    print("soak: all clients are connected", file=sys.stderr, flush=True)

    async def end() -> None:
        await pause(stop, seconds)
        is_over.set()

    failures += await within(
        seconds + STEP_SECONDS,
        [
            ("end", end()),
            ("measuring", _measure(site, measured, seconds, is_over)),
            ("disturbing", _disturb(site, measured, random.Random(seed), is_over)),
            *((work.name, work.run(is_over)) for work in works),
        ],
    )
    failures += await _each(works, lambda one: one.settle())
    for work in works:
        failures += work.failures
    return failures + await _each(works, lambda one: one.close())


async def _each(works: list[Work], step: Callable[[Work], Coroutine[Any, Any, None]]) -> list[str]:
    """Let works take a step together; which of them failed, or have not done it in time."""
    return await within(STEP_SECONDS, [(work.name, step(work)) for work in works])


async def _measure(site: Site, measured: Measured, seconds: float, is_over: asyncio.Event) -> None:
    begin = time.monotonic()
    next_heap = 0.0
    while not is_over.is_set():
        at = time.monotonic() - begin
        measured.resident.append((at, site.resident_bytes()))
        measured.disk.append((at, await asyncio.to_thread(site.disk_bytes)))
        if at >= next_heap:
            heap = await site.heap()
            measured.trimmed.append((at, heap["resident"]))
            measured.blocks.append((at, heap["blocks"]))
            if "objects" in heap:
                measured.objects.append((at, heap["objects"]))
            next_heap = at + max(seconds / HEAP_LOOKS, SAMPLE_SECONDS)
        _show(f"{at:.0f} s of {seconds:.0f}, {measured.resident[-1][1] / 2**20:.1f} MiB resident")
        await pause(is_over, SAMPLE_SECONDS)


async def _disturb(
    site: Site, measured: Measured, draw: random.Random, is_over: asyncio.Event
) -> None:
    while not await pause(is_over, draw.expovariate(1 / DISTURBANCE_SECONDS)):
        site.disturb(draw)
        measured.disturbances += 1


async def _after(site: Site, before: dict[str, int]) -> dict[str, int]:
    """How much there is of everything once it is no more than before, or does not become so."""
    deadline = time.monotonic() + BASE_SECONDS
    while True:
        await asyncio.sleep(QUIET_SECONDS)
        after = await site.counts()
        if time.monotonic() > deadline or judges.judge_base(before, after).is_kept:
            return after


def _show(text: str) -> None:
    """Tell a terminal how it goes."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def as_text(report: dict[str, Any]) -> str:
    """The report for people."""
    build = "compiled" if report["is_compiled"] else "interpreted"
    return (
        f"{report['seconds']:.0f} s, seed {report['seed']}, {build}, {report['commit']},"
        f" {report['disturbances']} times all connections of a door reset\n"
        + judges.as_text(Verdict(**each) for each in report["verdicts"])
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def main(arguments: list[str]) -> int:
    """Run it as asked; the exit code is 1 where a judge says no."""
    parser = argparse.ArgumentParser(prog="soak", description="A broker under load for long.")
    parser.add_argument("seconds", nargs="?", type=_positive, default=SECONDS)
    parser.add_argument("--seed", type=int, metavar="N", help="repeats what was drawn by chance")
    parser.add_argument(
        "--rate", type=_positive, default=RATE, help="messages a second of each kind"
    )
    parser.add_argument("--json", action="store_true", help="all that was measured, as JSON")
    parser.add_argument("--objects", action="store_true", help="count the broker's objects by type")
    options = parser.parse_args(arguments)
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"soak: seed {seed}", file=sys.stderr)
    # Connections are lost on purpose.
    logging.disable()
    # Should anything block the loop, it ends here, and the broker with it.
    faulthandler.dump_traceback_later(options.seconds + LAST_RESORT_SECONDS, exit=True)
    # It is not closed: that would wait for clients that do not end.
    runner = asyncio.Runner(loop_factory=loop_factory())
    try:
        report = runner.run(
            soak(options.seconds, seed, options.rate, counts_objects=options.objects)
        )
    except (SoakError, ClientError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report) if options.json else as_text(report))
    return 0 if all(verdict["is_kept"] for verdict in report["verdicts"]) else 1


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    # Threads of clients that do not end are not waited for.
    os._exit(exit_code)
