"""Measure confirms while a checkpoint of many table rows runs.

A broker keeps a million retained messages, each a row of a table, and the checkpoint that moves
them out of the journal runs beside the load: rounds of persistent messages, each to a queue of its
own, with a window of unconfirmed ones. What the rounds before it show is compared with those while
it runs, and with those after it.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from bench.amqp_clients import AmqpPublisher, AmqpSetup
from bench.backlog import Watch, drive
from bench.endpoints import PeerError, Publisher, closed_on_error
from bench.frames import payload
from bench.mqtt_clients import MqttPublisher
from bench.mqtt_frames import topic_number_digits
from bench.probe import Probe
from bench.restart import check_retained
from bench.runner import make_server, working_directory
from bench.servers import ServerError, Trivium

_TOPIC: Final = "scale"
_BODY: Final = payload(20)
_WINDOW: Final = 1000
#: Rounds before the retained messages are published and after their checkpoint, and the fewest
#: while it runs: three of the least number are some checkpoints of messages alone.
_ROUNDS: Final = 3
#: A checkpoint that takes longer than so many rounds is not waited for.
_MOST_ROUNDS: Final = 40
#: Seconds without a confirm after which a run is given up.
_STALL_SECONDS: Final = 300.0

#: What the rounds during the checkpoint may be worse: p99 by this factor, the worst delay by these
#: seconds; and the seconds that a PINGRESP may take, without what the loop waits for a core.
MAX_P99_FACTOR: Final = 3.0
MAX_WORSE: Final = 0.1
MAX_TURN: Final = 0.020


@dataclass(frozen=True)
class Phase:
    """Some rounds; times in seconds, delays from a message's publish to its confirm."""

    name: str
    rounds: int
    rate: float
    """Messages confirmed per second, over all rounds."""
    slowest: float
    """The same of the slowest round."""
    p50: float
    p99: float
    worst: float
    answer: float
    """The longest wait for a PINGRESP."""
    turn: float
    """The same without waits for a core."""

    def __str__(self) -> str:
        return (
            f"  {self.name:8}{self.rounds:>3} rounds {self.rate:>9,.0f}/s"
            f" (slowest {self.slowest:>9,.0f}/s), confirms p50 {self.p50 * 1000:.1f}"
            f" p99 {self.p99 * 1000:.1f} worst {self.worst * 1000:.1f} ms,"
            f" PINGRESP worst {self.answer * 1000:.1f} ms (turn {self.turn * 1000:.1f})"
        )


@dataclass(frozen=True)
class ScaleResult:
    """Rounds of messages before, during and after a checkpoint of many rows."""

    server: str
    retained: int
    messages: int
    """Of one round."""
    retained_rate: float
    before: Phase
    during: Phase
    after: Phase
    is_finished: bool
    """Whether the checkpoint ended during the rounds that were to show it."""
    resident_bytes: int
    """The most that was seen."""
    killed_seconds: float
    """From the start of the process to its ready line, after a kill."""
    killed_cpu: float
    """What it had used of a core then."""
    stopped_seconds: float
    """After a clean stop."""
    stopped_cpu: float

    @property
    def is_met(self) -> bool:
        """Every goal is reached."""
        return (
            self.is_finished
            and self.during.p99 <= MAX_P99_FACTOR * self.before.p99
            and self.during.worst <= self.before.worst + MAX_WORSE
            and self.during.turn <= MAX_TURN
        )

    def __str__(self) -> str:
        lines = [
            f"{self.server}: {self.retained:,} retained messages at {self.retained_rate:,.0f}/s,"
            f" rounds of {self.messages:,} persistent messages, {_WINDOW:,} unconfirmed at most",
            *map(str, (self.before, self.during, self.after)),
            f"  {self.resident_bytes / 1e6:.0f} MB resident;"
            f" ready {self.killed_seconds:.2f} s after a kill ({self.killed_cpu:.2f} s of a core),"
            f" {self.stopped_seconds:.2f} s after a stop ({self.stopped_cpu:.2f} s);"
            f" p99 {self.during.p99 / self.before.p99:.1f} times, worst"
            f" {(self.during.worst - self.before.worst) * 1000:+.1f} ms:"
            f" {'met' if self.is_met else 'missed'}",
        ]
        if not self.is_finished:
            lines.append(f"  the checkpoint went on for more than {self.during.rounds} rounds")
        return "\n".join(lines)


def measure_scale(name: str, retained: int, messages: int) -> ScaleResult:
    """Publish ``retained`` retained messages between rounds of ``messages`` persistent ones.

    Raises:
        ServerError: the server cannot be started, or is not Trivium.
        PeerError: it refused something, has forgotten something, or nothing moved for
            :data:`_STALL_SECONDS`.
    """
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(working_directory())
        server = make_server(name, directory, None, on_disk=True)
        if not isinstance(server, Trivium):
            raise ServerError(f"{name} makes no checkpoints")
        server.start()
        stack.callback(server.stop)
        with Probe(server.addresses["mqtt"], server.process_id) as probe:
            run = _Run(server, probe, messages)
            before = run.phase("before", lambda rounds: rounds == _ROUNDS)
            retained_rate = run.fill(retained)
            files = _journal_files(server)

            def is_over(rounds: int) -> bool:
                is_long = rounds == _MOST_ROUNDS
                return rounds >= _ROUNDS and (is_long or not files & _journal_files(server))

            during = run.phase("during", is_over)
            is_finished = not files & _journal_files(server)
            after = run.phase("after", lambda rounds: rounds == _ROUNDS)
        seconds = []
        cpu = []
        for number in (signal.SIGKILL, signal.SIGTERM):
            seconds.append(server.restart(number))
            cpu.append(server.cpu_seconds())
            _check(server, run.last_queue, messages, retained)
        return ScaleResult(
            server=name,
            retained=retained,
            messages=messages,
            retained_rate=retained_rate,
            before=before,
            during=during,
            after=after,
            is_finished=is_finished,
            resident_bytes=run.watch.most,
            killed_seconds=seconds[0],
            killed_cpu=cpu[0],
            stopped_seconds=seconds[1],
            stopped_cpu=cpu[1],
        )


class _Run:
    """The load on one server."""

    def __init__(self, server: Trivium, probe: Probe, messages: int) -> None:
        self._server = server
        self._probe = probe
        self._messages = messages
        self._queues = 0
        self.watch = Watch(server)
        #: the queue that has the messages of the last round
        self.last_queue = ""

    def fill(self, count: int) -> float:
        """Publish retained messages, each of a topic of its own; how many a second."""
        publisher = MqttPublisher(
            self._server.addresses["mqtt"],
            "filler",
            _TOPIC,
            1,
            _BODY,
            _WINDOW,
            count,
            is_retained=True,
        )
        with contextlib.closing(publisher):
            start = time.monotonic()
            self._publish(publisher, count)
            return count / (time.monotonic() - start)

    def phase(self, name: str, is_over: Callable[[int], bool]) -> Phase:
        """Make rounds until ``is_over``, given their number, says so."""
        self._probe.take()
        delays: list[npt.NDArray[np.float64]] = []
        seconds: list[float] = []
        while not is_over(len(seconds)):
            seconds.append(self._round(delays))
        found = np.concatenate(delays)
        waits = self._probe.take()
        return Phase(
            name=name,
            rounds=len(seconds),
            rate=self._messages * len(seconds) / sum(seconds),
            slowest=self._messages / max(seconds),
            p50=float(np.percentile(found, 50)),
            p99=float(np.percentile(found, 99)),
            worst=float(found.max()),
            answer=waits.answer,
            turn=waits.turn,
        )

    def _round(self, delays: list[npt.NDArray[np.float64]]) -> float:
        """Publish a round; the seconds that it took."""
        setup = AmqpSetup(self._server.addresses["amqp"])
        with closed_on_error(setup.socket):
            if self.last_queue:
                setup.delete_queue(self.last_queue)
            self._queues += 1
            self.last_queue = f"{_TOPIC}-{self._queues}"
            setup.declare_queue(self.last_queue)
            setup.close()
        publisher = AmqpPublisher(
            self._server.addresses["amqp"], "", self.last_queue, _BODY, _WINDOW
        )
        with contextlib.closing(publisher):
            start = time.monotonic()
            delays += self._publish(publisher, self._messages)
            return time.monotonic() - start

    def _publish(self, publisher: Publisher, count: int) -> list[npt.NDArray[np.float64]]:
        """Publish ``count`` messages, and wait until all are acknowledged; the delays."""
        sent_at = np.zeros(count)
        delays: list[npt.NDArray[np.float64]] = []
        settled = 0

        def act() -> int:
            nonlocal settled
            now = time.monotonic()
            if publisher.refused:
                raise PeerError(f"{publisher.refused} messages were refused")
            if publisher.settled > settled:
                delays.append(now - sent_at[settled : publisher.settled])
                settled = publisher.settled
            while not publisher.has_unsent:
                allowed = min(_WINDOW - publisher.unsettled, count - publisher.sent)
                if allowed <= 0:
                    break
                first = publisher.sent
                publisher.publish(allowed)
                sent_at[first : publisher.sent] = now
            return settled

        drive(publisher, act, count, self.watch, _STALL_SECONDS)
        return delays


def _journal_files(server: Trivium) -> set[str]:
    """The journal files that there are: a checkpoint removes those before it."""
    path: Path = server.directory / "data" / "journal"
    return {each.name for each in path.glob("*.journal")}


def _check(server: Trivium, queue: str, messages: int, retained: int) -> None:
    """Whether the last round's messages, and the last retained one, are there."""
    setup = AmqpSetup(server.addresses["amqp"])
    with closed_on_error(setup.socket):
        found = setup.message_count(queue)
        setup.close()
    if found != messages:
        raise PeerError(f"{queue} has {found} messages")
    last = f"{retained - 1:0{topic_number_digits(retained)}}"
    check_retained(server, f"{_TOPIC}/{last}", _BODY)
