"""`trivium chaos`: a broker of its own is disturbed under load, and its promises are verified.

What was acknowledged must come, what comes again must say so, and where a protocol has exactly
once, nothing may come again. The broker is a child process on a temporary directory, behind a
network of this process; nothing else is touched.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from trivium.cli import EXIT_FAILED, EXIT_IO, EXIT_OK, EXIT_USAGE
from trivium.cli.bench import Look, listener_of, on_signals, roads, show, show_progress
from trivium.cli.clients import ClientError, Server, UsageError
from trivium.cli.loads import Load, Pace
from trivium.cli.network import LOOPBACK, Network
from trivium.cli.own_broker import OwnBroker
from trivium.cli.roads import OpenRoad, Plan
from trivium.runtime.server import loop_factory

#: Bytes of a payload.
SIZE: Final = 200
#: Messages of a publisher that wait for their acknowledgement.
WINDOW: Final = 200
LOOK_SECONDS: Final = 0.01
#: Seconds for which a disturbance lasts.
SHORTEST, LONGEST = 0.3, 1.5
#: Bytes that a file may have while the disk is full: what the broker appends to has more.
FULL_AT: Final = 64 * 1024


@dataclass
class Disturbance:
    """What was done, and seconds: from the begin of the load, and until all was well again."""

    what: str
    at: float
    recovery: float | None = None


@dataclass
class Scene:
    """A broker under load, for one experiment."""

    broker: OwnBroker
    networks: dict[str, Network]
    loads: dict[str, Load]
    draw: random.Random
    began: float
    #: seconds in which the broker must be there again for its clients, and everything come
    patience: float
    disturbances: list[Disturbance] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    async def restart(self) -> None:
        """Start the broker again on its data, where the clients find it."""
        await self.broker.start()
        for listener, network in self.networks.items():
            network.broker_port = self.broker.ports[listener]

    async def last(self) -> float:
        """Let a disturbance last; for how long."""
        seconds = self.draw.uniform(SHORTEST, LONGEST)
        await asyncio.sleep(seconds)
        return seconds

    async def recover(self, since: float) -> float | None:
        """Wait until each load has an acknowledgement of something that was published from now on.

        The seconds since ``since``; None where that does not come.
        """
        wanted = {name: load.sent for name, load in self.loads.items()}
        while time.monotonic() < since + self.patience:
            if all(
                any(number in lane.acknowledged_numbers for number in range(sent, lane.sent))
                for name, sent in wanted.items()
                for lane in self.loads[name].lanes
            ):
                return round(time.monotonic() - since, 3)
            await asyncio.sleep(LOOK_SECONDS)
        return None


async def kill(scene: Scene) -> tuple[str, float]:
    """SIGKILL, and a new start on the same data; it recovers from then on."""
    begin = time.monotonic()
    await scene.broker.kill()
    await scene.restart()
    return "killed", begin


async def pause(scene: Scene) -> tuple[str, float]:
    """SIGSTOP, and SIGCONT: no answer, and no connection lost."""
    scene.broker.signal(signal.SIGSTOP)
    try:
        seconds = await scene.last()
    finally:
        scene.broker.signal(signal.SIGCONT)
    return f"stood still for {seconds:.1f} s", time.monotonic()


async def full(scene: Scene) -> tuple[str, float]:
    """No file can become longer; the broker must stop by itself, and start once there is room."""
    scene.broker.limit_files(FULL_AT)
    try:
        async with asyncio.timeout(scene.patience):
            code = await scene.broker.ended()
    except TimeoutError:
        scene.broken.append("the broker does not notice that its files cannot become longer")
        await scene.broker.kill()
        code = EXIT_IO
    if code != EXIT_IO:
        scene.broken.append(f"on a full disk the broker ends with {code}, not {EXIT_IO}")
    begin = time.monotonic()
    await scene.restart()
    return "no room for files", begin


async def network(scene: Scene) -> tuple[str, float]:
    """One of: connections reset, nothing passed on, pieces late, few bytes a second."""
    kind = scene.draw.choice(("cut", "silent", "slow", "narrow"))
    what = ""
    for one in scene.networks.values():
        if kind == "cut":
            one.cut()
            what = "connections reset"
        elif kind == "silent":
            one.hold()
            what = "nothing passed on"
        elif kind == "slow":
            one.delay = 0.1
            what = "0.1 s for each piece"
        else:
            one.bandwidth = 20_000
            what = "20 kB a second"
    seconds = 0.0
    try:
        if kind != "cut":
            seconds = await scene.last()
    finally:
        for one in scene.networks.values():
            one.heal()
    return f"{what} for {seconds:.1f} s" if seconds else what, time.monotonic()


#: Each disturbs once; what it did, and since when all should be well.
EXPERIMENTS: Final[dict[str, Callable[[Scene], Awaitable[tuple[str, float]]]]] = {
    "kill": kill,
    "pause": pause,
    "full": full,
    "network": network,
}


def run(options: argparse.Namespace) -> int:
    """Do the experiments; the exit code is 1 where a promise was broken."""
    # Connections are lost on purpose.
    logging.disable()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_run(options))
    except UsageError as error:
        print(f"trivium chaos: {error}", file=sys.stderr)
        return EXIT_USAGE
    except ModuleNotFoundError as error:
        need = f"it needs the package {error.name}: pip install 'trivium[encryption]'"
        print(f"trivium chaos --tls: {need}", file=sys.stderr)
        return EXIT_FAILED
    except ClientError as error:
        print(f"trivium chaos: {error}", file=sys.stderr)
        return EXIT_FAILED


async def _run(options: argparse.Namespace) -> int:
    opened = roads()
    unknown = [name for name in options.protocols if name not in opened]
    unknown += [name for name in options.experiments if name not in EXPERIMENTS]
    if unknown:
        known = ", ".join([*EXPERIMENTS, *sorted(opened)])
        raise UsageError(f"{unknown[0]!r} is not one of {known}")
    wanted = {name: opened[name] for name in options.protocols or sorted(opened)}
    stop, give_up = on_signals()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    is_kept = True
    for name in options.experiments or list(EXPERIMENTS):
        result = await _experiment(name, options, wanted, seed, stop, give_up)
        show(json.dumps(result) if options.json else as_text(result))
        is_kept = is_kept and not result["broken"]
        if stop.is_set():
            break
    return EXIT_OK if is_kept else EXIT_FAILED


async def _experiment(
    name: str,
    options: argparse.Namespace,
    wanted: dict[str, OpenRoad],
    seed: int,
    stop: asyncio.Event,
    give_up: asyncio.Event,
) -> dict[str, Any]:
    listeners = {
        scheme: listener_of(open_road) + ("s" if options.tls else "")
        for scheme, open_road in wanted.items()
    }
    broker = OwnBroker(listeners.values(), command=tuple(shlex.split(options.broker or "")))
    networks = {listener: Network() for listener in listeners.values()}
    async with broker:
        draw = random.Random(f"{name} {seed}")
        scene = Scene(broker, networks, {}, draw, time.monotonic(), options.patience)
        try:
            for scheme, open_road in wanted.items():
                listener = listeners[scheme]
                networks[listener].broker_port = broker.ports[listener]
                port = await networks[listener].start()
                server = Server(LOOPBACK, port, None, None, "", broker.client_tls)
                scene.loads |= _loads(scheme, open_road, server, options)
            look = partial(_progress, scene, options.rounds)
            shown = asyncio.create_task(show_progress(name, look))
            try:
                await _disturb(scene, EXPERIMENTS[name], options, stop)
                await asyncio.gather(*[load.drain(give_up) for load in scene.loads.values()])
            finally:
                shown.cancel()
                await asyncio.gather(shown, return_exceptions=True)
        finally:
            for load in scene.loads.values():
                await load.close()
            for one in networks.values():
                await one.close()
    return _result(name, seed, scene, stop.is_set(), give_up.is_set())


def _loads(
    scheme: str, open_road: OpenRoad, server: Server, options: argparse.Namespace
) -> dict[str, Load]:
    """One for each promise of a protocol."""
    pace = Pace(
        publishers=1,
        size=SIZE,
        window=WINDOW,
        rate=float(options.rate),
        patience=options.patience,
    )
    return {
        title: Load(open_road(server, plan), plan, pace)
        for title, plan in lasting_plans("chaos", scheme, open_road, server)
    }


def lasting_plans(
    purpose: str, scheme: str, open_road: OpenRoad, server: Server
) -> Iterator[tuple[str, Plan]]:
    """What a load is called, and its plan, for each promise that outlives a connection."""
    road = open_road(server, Plan(name="", qos=1, consumers=1))
    for kind, promises in (("", road.lasting), (" stream", road.lasting_streams)):
        for qos in promises:
            name = f"{purpose}-{scheme}-{qos}{kind.replace(' ', '-')}"
            plan = Plan(name=name, qos=qos, consumers=1, resumes=True, is_stream=bool(kind))
            yield f"{scheme} QoS {qos}{kind}", plan


async def _disturb(
    scene: Scene,
    experiment: Callable[[Scene], Awaitable[tuple[str, float]]],
    options: argparse.Namespace,
    stop: asyncio.Event,
) -> None:
    """Put on the loads, and disturb them at moments that are drawn."""
    loads = scene.loads.values()
    for load in loads:
        await load.start()
    publishing = [asyncio.create_task(load.finish_publishing()) for load in loads]
    scene.began = time.monotonic()
    try:
        for _ in range(options.rounds):
            if await _is_stopped(stop, scene.draw.uniform(SHORTEST, LONGEST)):
                break
            disturbance = Disturbance("", round(time.monotonic() - scene.began, 3))
            disturbance.what, since = await experiment(scene)
            disturbance.recovery = await scene.recover(since)
            scene.disturbances.append(disturbance)
            if disturbance.recovery is None:
                scene.broken.append(
                    f"not served again {scene.patience:g} s after: {disturbance.what}"
                )
                break
    finally:
        for load in loads:
            load.is_stopping.set()
        await asyncio.gather(*publishing)


async def _is_stopped(stop: asyncio.Event, seconds: float) -> bool:
    """Wait so long, or until it is to stop."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True


def _progress(scene: Scene, rounds: int) -> Look:
    acknowledged = sum(load.acknowledged for load in scene.loads.values())
    delivered = sum(load.delivered for load in scene.loads.values())
    text = f"acknowledged {acknowledged:,}, delivered {delivered:,}"
    return len(scene.disturbances), rounds, text


def _result(
    name: str, seed: int, scene: Scene, is_interrupted: bool, is_given_up: bool
) -> dict[str, Any]:
    figures = (
        *("published", "acknowledged", "uncertain", "delivered", "redelivered", "lost"),
        *("duplicates", "flagged_duplicates", "unanswered", "refused", "unknown", "gaps"),
    )
    found: dict[str, Any] = {}
    broken = list(scene.broken)
    for road, load in scene.loads.items():
        report = load.report()
        found[road] = {figure: report[figure] for figure in figures}
        wrong = ["duplicates", "unknown"] + ([] if is_given_up else ["lost", "unanswered"])
        broken += [f"{road}: {report[what]} {what}" for what in wrong if report[what]]
        if not report["acknowledged"] and not is_interrupted:
            broken.append(f"{road}: nothing was acknowledged, so nothing is verified")
    return {
        "experiment": name,
        "seed": seed,
        "disturbances": [
            {"what": one.what, "at_seconds": one.at, "recovery_seconds": one.recovery}
            for one in scene.disturbances
        ],
        "roads": found,
        "is_interrupted": is_interrupted,
        "broken": broken,
    }


def as_text(result: dict[str, Any]) -> str:
    """The report of an experiment for people."""
    lines = [f"{result['experiment']} (seed {result['seed']})"]
    for one in result["disturbances"]:
        recovery = one["recovery_seconds"]
        after = "not served again" if recovery is None else f"served again after {recovery:.2f} s"
        lines.append(f"  {one['at_seconds']:6.2f} s  {one['what']}: {after}")
    for road, figures in result["roads"].items():
        shown = ", ".join(
            f"{name.replace('_', ' ')} {value:,}"
            for name, value in figures.items()
            if name != "gaps"
        )
        lines.append(f"  {road:20} {shown}")
        for publisher, gaps in figures["gaps"].items():
            lines.append(f"  {'':20} {publisher} lost {', '.join(gaps)} ...")
    if result["is_interrupted"]:
        lines.append("  interrupted")
    lines += [f"  BROKEN {text}" for text in result["broken"]] or ["  all promises kept"]
    return "\n".join(lines)
