"""`trivium bench`: a load on a broker, or on one of its own, and what it measured."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from trivium.cli.clients import ClientError, Server, UsageError, open_url
from trivium.cli.loads import HEAD, Load, Pace
from trivium.cli.own_broker import OwnBroker
from trivium.cli.progress import progress
from trivium.cli.roads import OpenRoad, Plan
from trivium.common.installed import installed
from trivium.runtime.server import loop_factory

GROUP: Final = "trivium.loads"
#: Bytes of a payload at most: less than what brokers take by default.
MAX_SIZE: Final = 8 << 20
#: Bytes of what is unacknowledged, over all publishers.
MAX_UNDER_WAY: Final = 256 << 20
MAX_CONNECTIONS: Final = 1000
PROGRESS_SECONDS: Final = 1.0
LOOPBACK: Final = "127.0.0.1"


def run(options: argparse.Namespace) -> int:
    """Put the load on the broker; the exit code is 1 where something was lost or came twice."""
    # A connection's end is an error of the load, not of its loop.
    logging.disable()
    try:
        check(options)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_run(options))
    except UsageError as error:
        print(f"trivium {options.command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except ClientError as error:
        print(f"trivium {options.command}: {error}", file=sys.stderr)
        return EXIT_FAILED


def check(options: argparse.Namespace) -> None:
    """What the options must keep to so that memory is bounded. Raises UsageError."""
    if not HEAD.size <= options.size <= MAX_SIZE:
        raise UsageError(f"--size is from {HEAD.size} to {MAX_SIZE} bytes")
    if not options.publishers + options.consumers <= MAX_CONNECTIONS:
        raise UsageError(f"there are at most {MAX_CONNECTIONS} publishers and consumers")
    if not 0 < options.window <= 65_535:
        raise UsageError("--window is from 1 to 65535 messages")
    if options.transaction and options.qos != 1:
        raise UsageError("--transaction is of --qos 1")
    if options.window * options.publishers * options.size > MAX_UNDER_WAY:
        raise UsageError(f"publishers x window x size is at most {MAX_UNDER_WAY} bytes")


async def _run(options: argparse.Namespace) -> int:
    stop, give_up = on_signals()
    is_all_good = True
    for scheme, server, open_road, broker in _targets(options):
        if broker is not None:
            await broker.start()
            server = Server(LOOPBACK, broker.ports[server.path], None, None, "")
        try:
            result = await _measure(options, scheme, server, open_road, stop, give_up)
        finally:
            if broker is not None:
                await broker.close()
        show(json.dumps(result) if options.json else as_text(result))
        is_all_good = is_all_good and result["is_good"]
        if stop.is_set():
            break
    return EXIT_OK if is_all_good else EXIT_FAILED


def show(text: str) -> None:
    """Print a report; whoever reads it may have gone."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Keep the interpreter from flushing what is left when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Events that are set by the first and by the second SIGINT or SIGTERM."""
    stop, give_up = asyncio.Event(), asyncio.Event()

    def interrupt() -> None:
        if stop.is_set():
            give_up.set()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    return stop, give_up


Target = tuple[str, Server, OpenRoad, OwnBroker | None]


def _targets(options: argparse.Namespace) -> list[Target]:
    """What is loaded, one after the other. Raises UsageError.

    The path of a server that is not there yet is the listener that it will have.
    """
    schemes = roads()
    if options.url is not None and options.url not in schemes:
        server, open_road = open_url(options, GROUP)
        return [(options.url.partition(":")[0], server, open_road, None)]
    wanted = sorted(schemes) if options.url is None else [options.url]
    found: list[Target] = []
    for scheme in wanted:
        listener = listener_of(schemes[scheme])
        server = Server(LOOPBACK, 0, None, None, listener)
        found.append((scheme, server, schemes[scheme], OwnBroker([listener])))
    return found


def roads() -> dict[str, OpenRoad]:
    """How the road of each scheme is opened."""
    return {entry.name: entry.load() for entry in installed(GROUP)}


def listener_of(open_road: OpenRoad) -> str:
    """The listener of a broker that speaks a road's protocol."""
    plan = Plan(name="", qos=1, consumers=0)
    return open_road(Server(LOOPBACK, 0, None, None, ""), plan).listener


async def _measure(
    options: argparse.Namespace,
    scheme: str,
    server: Server,
    open_road: OpenRoad,
    stop: asyncio.Event,
    give_up: asyncio.Event,
) -> dict[str, Any]:
    plan = Plan(
        name=options.name or f"trivium-bench-{secrets.token_hex(4)}",
        qos=options.qos,
        consumers=options.consumers,
        is_transient=options.transient,
        is_stream=options.stream,
        transaction=options.transaction or 0,
    )
    pace = Pace(
        publishers=options.publishers,
        size=options.size,
        window=options.window,
        rate=options.rate or 0.0,
        seconds=options.seconds if options.count is None else None,
        count=None if options.count is None else share(options.count, options.publishers),
        warm_up=options.warm_up or 0.0,
    )
    load = Load(open_road(server, plan), plan, pace)
    begin = time.monotonic()
    shown = asyncio.create_task(show_progress(scheme, lambda: progress_of(load, pace, begin)))
    stopping = asyncio.create_task(_stop(load, stop))
    try:
        await load.start()
        await load.finish_publishing()
        await load.drain(give_up)
    finally:
        for task in (shown, stopping):
            task.cancel()
        await asyncio.gather(shown, stopping, return_exceptions=True)
        await load.close()
    result = {
        "protocol": scheme,
        "qos": plan.qos,
        "is_stream": plan.is_stream,
        "transaction": plan.transaction or None,
        "publishers": pace.publishers,
        "consumers": plan.consumers,
        "size": pace.size,
        "rate": pace.rate or None,
        **load.report(),
        "failure": load.failure,
        "is_interrupted": stop.is_set(),
    }
    return result | {"is_good": is_good(plan, result)}


def share(count: int, publishers: int) -> int:
    """What each publisher publishes, so that all together publish `count` or a few more."""
    return -(-count // publishers)


def is_good(plan: Plan, result: dict[str, Any]) -> bool:
    """Whether the QoS was kept. What was given up by a second signal has not been waited for."""
    wrong = ["duplicates", "unknown"]
    if plan.qos and not result["is_interrupted"]:
        wrong += ["lost", "unanswered"]
    return not result["failure"] and not any(result[name] for name in wrong)


async def _stop(load: Load, stop: asyncio.Event) -> None:
    await stop.wait()
    load.is_stopping.set()


#: How far a load is, of how much, and in words.
Look = tuple[float, float | None, str]


async def show_progress(title: str, look: Callable[[], Look]) -> None:
    """Tell a terminal how it goes, until cancelled."""
    with progress(title, is_still=True) as report:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            report(*look())


def progress_of(load: Load, pace: Pace, begin: float) -> Look:
    """How far a load is that began at a time."""
    text = (
        f"published {load.sent:,}, acknowledged {load.acknowledged:,}, delivered {load.delivered:,}"
    )
    if pace.count is not None:
        return load.sent, pace.count * pace.publishers, text
    total = pace.warm_up + (pace.seconds or 0.0)
    return min(time.monotonic() - begin, total), total, text


def as_text(result: dict[str, Any]) -> str:
    """The figures of a load for people."""
    how = "as fast as possible" if result["rate"] is None else f"{result['rate']:,.0f} a second"
    ways = [", stream"] if result["is_stream"] else []
    ways += [f", transactions of {result['transaction']}"] if result["transaction"] else []
    lines = [
        f"{result['protocol']}, QoS {result['qos']}{''.join(ways)}:"
        f" {result['publishers']} publishers, {result['consumers']} consumers,"
        f" {result['size']} bytes, {how}, {result['seconds']:g} s"
    ]
    for what in ("published", "acknowledged", "delivered"):
        lines.append(f"  {what:24} {result[what]:>14,}  {result[f'{what}_per_second']:>12,.0f} /s")
    for what in ("publish_to_acknowledge", "publish_to_deliver"):
        delays = " ".join(f"{name} {value:.3f}" for name, value in result[f"{what}_ms"].items())
        lines.append(f"  {what.replace('_', ' '):24} {delays} ms")
    names = (
        *("lost", "duplicates", "flagged_duplicates", "out_of_order", "refused"),
        *("unanswered", "unknown"),
    )
    lines.append("  " + ", ".join(f"{name.replace('_', ' ')} {result[name]:,}" for name in names))
    for publisher, gaps in result["gaps"].items():
        lines.append(f"  {publisher} lost {', '.join(gaps)} ...")
    if result["failure"]:
        lines.append(f"  connection lost: {result['failure']}")
    if result["is_interrupted"]:
        lines.append("  interrupted")
    return "\n".join(lines)
