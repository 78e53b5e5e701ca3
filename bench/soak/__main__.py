"""The command line: ``python -m bench.soak [SECONDS]``, or ``./dev soak``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bench.record import measured_commit
from bench.servers import ServerError
from bench.soak import judges
from bench.soak.amqp_work import AmqpVisitors, Orders
from bench.soak.gateway_work import Gateway
from bench.soak.judges import Verdict
from bench.soak.mqtt_work import Sensors, Wills
from bench.soak.native_work import Pipeline
from bench.soak.site import Site
from bench.soak.watchers import Browser, LiveFigures, Scrapes
from bench.soak.works import Work, road_works
from trivium.cli.bench import on_signals
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
    """Run it; the report."""
    stop, _ = on_signals()
    async with Site(counts_objects=counts_objects) as site:
        for name, (kind, definition) in POLICIES.items():
            policy = {"pattern": f"^{name.removesuffix('-streams')}", "apply_to": kind}
            await site.ask("PUT", f"{_VHOST}/policies/{name}", policy | {"definition": definition})
        await asyncio.sleep(QUIET_SECONDS)
        before = await site.counts()
        works = list(_works(site, seed, rate))
        measured = Measured()
        failures = await _use(site, works, seconds, seed, measured, stop)
        verdicts = [verdict for work in works for verdict in work.verdicts()]
        verdicts += [Verdict("clients", not failures, "; ".join(failures[:3]) or "none failed")]
        verdicts += _grown(measured, seconds)
        await site.remove_leftovers()
        verdicts.append(judges.judge_base(before, await _after(site, before)))
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
        await work.prepare()
    looking = asyncio.create_task(_measure(site, measured, seconds))
    disturbing = asyncio.create_task(_disturb(site, measured, random.Random(seed)))
    running = {asyncio.create_task(work.run(is_over)): type(work).__name__ for work in works}
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
    finally:
        for task in (disturbing, looking):
            task.cancel()
        failures += [
            repr(error)
            for error in await asyncio.gather(disturbing, looking, return_exceptions=True)
            if error is not None and not isinstance(error, asyncio.CancelledError)
        ]
        is_over.set()
        ended = await asyncio.gather(*running, return_exceptions=True)
        failures += [
            f"{name}: {error!r}"
            for name, error in zip(running.values(), ended, strict=True)
            if error is not None
        ]
        await asyncio.gather(*(work.settle() for work in works))
        for work in works:
            failures += work.failures
            await work.close()
    return failures


async def _measure(site: Site, measured: Measured, seconds: float) -> None:
    begin = time.monotonic()
    next_heap = 0.0
    while True:
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
        await asyncio.sleep(SAMPLE_SECONDS)


async def _disturb(site: Site, measured: Measured, draw: random.Random) -> None:
    while True:
        await asyncio.sleep(draw.expovariate(1 / DISTURBANCE_SECONDS))
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
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        report = runner.run(
            soak(options.seconds, seed, options.rate, counts_objects=options.objects)
        )
    print(json.dumps(report) if options.json else as_text(report))
    return 0 if all(verdict["is_kept"] for verdict in report["verdicts"]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
