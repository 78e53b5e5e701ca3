"""Run a load: one epoll loop over every publisher and receiver of a run.

Two kinds. A *closed* run sends as fast as acknowledgements and deliveries allow and yields a rate.
A *paced* run sends at a fixed rate whatever the server does and yields the delay of each message,
counted from when it was due, so a server that stalls is charged for every message that had to wait.
"""

from __future__ import annotations

import gc
import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from bench.endpoints import Endpoint, Publisher, Receiver
from bench.verify import Tally

DRAIN_SECONDS: Final = 2.0
"""A run is over when everything arrived, or when nothing has for this long."""
_POLL_SECONDS: Final = 0.05

Hold = Callable[[], AbstractContextManager[None]]
"""Makes a context in which the server does nothing, once it has done what it had to do."""


@dataclass(frozen=True)
class Limits:
    """What a closed run may have under way on each lane, in messages."""

    window: int
    """Sent and not yet acknowledged to the publisher."""
    backlog: int = sys.maxsize
    """Sent and not yet delivered to the slowest receiver: keeps the run in a steady state."""
    total: int = sys.maxsize
    """Sent at all."""


class Lane:
    """One publisher and the receivers of everything it sends.

    Without receivers a message counts as delivered once the publisher knows that the server has it.
    """

    def __init__(self, publisher: Publisher, receivers: Sequence[Receiver]) -> None:
        self.publisher = publisher
        self.receivers = list(receivers)

    @property
    def delivered(self) -> int:
        """Messages received, over all receivers."""
        if not self.receivers:
            return self.publisher.settled
        return sum(receiver.check.received for receiver in self.receivers)

    @property
    def endpoints(self) -> list[Endpoint]:
        """Every connection of the lane."""
        return [self.publisher, *self.receivers]

    def refill(self, limits: Limits) -> None:
        """Publish what the limits allow."""
        publisher = self.publisher
        received = (receiver.check.received for receiver in self.receivers)
        slowest = min(received, default=publisher.settled)
        while not publisher.has_unsent:
            allowed = min(
                limits.window - publisher.unsettled,
                slowest + limits.backlog - publisher.sent,
                limits.total - publisher.sent,
            )
            if allowed <= 0:
                return
            publisher.publish(allowed)

    def is_complete(self) -> bool:
        """Everything sent was acknowledged and delivered."""
        sent = self.publisher.sent
        return (
            not self.publisher.has_unsent
            and self.publisher.unsettled <= 0
            and all(receiver.check.received >= sent for receiver in self.receivers)
        )

    def tally(self) -> Tally:
        """Return what became of every message, over all receivers."""
        total = Tally(0, 0, 0)
        for receiver in self.receivers:
            total += receiver.check.tally(self.publisher.sent)
        return total


@dataclass(frozen=True)
class RunResult:
    """What one run measured; rates in messages per second, delays in seconds."""

    seconds: float
    sent: int
    delivered: int
    """Messages received within ``seconds``, over all receivers."""
    rate: float
    """``delivered / seconds``."""
    generator_cpu: float
    """Cores that the load generator used."""
    server_cpu: float
    """Cores that the server used."""
    total_sent: int
    """Messages sent from start to end, warm-up included: what ``tally`` is about."""
    total_delivered: int
    refused: int
    unconfirmed: int
    tally: Tally
    delays: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Mark:
    """The counters at one moment of a run; times in seconds."""

    time: float
    generator_cpu: float
    server_cpu: float
    sent: int
    delivered: int


class Loop:
    """Waits for the sockets of some lanes and lets them react."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        server_cpu: Callable[[], float],
        patience: float | None = None,
    ) -> None:
        self.lanes = list(lanes)
        self._patience = DRAIN_SECONDS if patience is None else patience
        self._server_cpu = server_cpu
        self._epoll = select.epoll()
        self._by_descriptor: dict[int, tuple[Endpoint, Lane]] = {}
        self._waiting_to_send: set[int] = set()
        for lane in self.lanes:
            for endpoint in lane.endpoints:
                self._by_descriptor[endpoint.socket.fileno()] = endpoint, lane
                self._epoll.register(endpoint.socket.fileno(), select.EPOLLIN)

    def turn(self, timeout: float) -> set[Lane]:
        """Wait up to ``timeout`` seconds, handle what is ready, return the lanes it belongs to."""
        touched = set()
        for descriptor, event in self._epoll.poll(timeout):
            endpoint, lane = self._by_descriptor[descriptor]
            if event & select.EPOLLOUT:
                endpoint.writable()
            if event & ~select.EPOLLOUT:
                endpoint.readable()
            self.watch(endpoint)
            touched.add(lane)
        return touched

    def watch(self, endpoint: Endpoint) -> None:
        """Ask for writability exactly while the endpoint has something left to send."""
        descriptor = endpoint.socket.fileno()
        if endpoint.has_unsent == (descriptor in self._waiting_to_send):
            return
        if endpoint.has_unsent:
            self._waiting_to_send.add(descriptor)
            self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLOUT)
        else:
            self._waiting_to_send.remove(descriptor)
            self._epoll.modify(descriptor, select.EPOLLIN)

    def mark(self) -> Mark:
        """Read the counters."""
        sent = sum(lane.publisher.sent for lane in self.lanes)
        delivered = sum(lane.delivered for lane in self.lanes)
        server_cpu = self._server_cpu()
        return Mark(time.monotonic(), time.process_time(), server_cpu, sent, delivered)

    def settle(self, hold: Hold | None = None) -> bool:
        """Receive until every lane is complete; False once nothing has moved for too long.

        With ``hold`` all that has come is handled at once, while the server does nothing.
        """
        progress = -1
        deadline = 0.0
        while not all(lane.is_complete() for lane in self.lanes):
            moved = sum(lane.delivered - lane.publisher.unsettled for lane in self.lanes)
            now = time.monotonic()
            if moved != progress:
                progress, deadline = moved, now + self._patience
            elif now > deadline:
                return False
            if hold is None:
                self.turn(_POLL_SECONDS)
                continue
            with hold():
                while self.turn(0):
                    pass
        return True

    def drain(self, hold: Hold | None = None) -> None:
        """Receive what is still to come, as far as it comes."""
        self.settle(hold)
        for lane in self.lanes:
            for receiver in lane.receivers:
                receiver.finish()

    def close(self) -> None:
        """Close every connection."""
        self._epoll.close()
        for endpoint, _ in self._by_descriptor.values():
            endpoint.close()


def _run(loop: Loop, body: Callable[[], tuple[Mark, Mark]], hold: Hold | None = None) -> RunResult:
    """Run ``body``, which returns the measured part's ends; wait for the rest; sum up."""
    lanes = loop.lanes
    gc.disable()
    try:
        start, end = body()
        loop.drain(hold)
    finally:
        gc.enable()
        loop.close()
    seconds = end.time - start.time
    delivered = end.delivered - start.delivered
    tally = Tally(0, 0, 0)
    for lane in lanes:
        tally += lane.tally()
    delays = [
        chunk for lane in lanes for receiver in lane.receivers for chunk in receiver.delays or ()
    ]
    return RunResult(
        seconds=seconds,
        sent=end.sent - start.sent,
        delivered=delivered,
        rate=delivered / seconds,
        generator_cpu=(end.generator_cpu - start.generator_cpu) / seconds,
        server_cpu=(end.server_cpu - start.server_cpu) / seconds,
        total_sent=sum(lane.publisher.sent for lane in lanes),
        total_delivered=sum(lane.delivered for lane in lanes),
        refused=sum(lane.publisher.refused for lane in lanes),
        unconfirmed=sum(lane.publisher.unsettled for lane in lanes),
        tally=tally,
        delays=np.concatenate(delays) / 1e9 if delays else np.empty(0),
    )


def run_closed(
    lanes: Sequence[Lane],
    limits: Limits,
    warm_up: float,
    measure: float,
    server_cpu: Callable[[], float],
) -> RunResult:
    """Load the server for ``warm_up + measure`` seconds and measure the second part.

    ``server_cpu`` returns the processor time that the server has used so far, in seconds.

    Raises:
        PeerError: the server closed a connection or broke its protocol.
    """

    loop = Loop(lanes, server_cpu)

    def body() -> tuple[Mark, Mark]:
        start = None
        measuring_from = time.monotonic() + warm_up
        touched = set(lanes)
        while True:
            for lane in touched:
                lane.refill(limits)
                loop.watch(lane.publisher)
            touched = loop.turn(_POLL_SECONDS)
            now = time.monotonic()
            if start is None:
                if now >= measuring_from:
                    start = loop.mark()
            elif now >= start.time + measure:
                return start, loop.mark()

    return _run(loop, body)


def run_count(
    lanes: Sequence[Lane],
    limits: Limits,
    count: int,
    server_cpu: Callable[[], float],
    patience: float | None = None,
    hold: Hold | None = None,
) -> RunResult:
    """Send ``count`` messages on each lane, as fast as in a closed run; measure it all.

    ``patience`` is for how many seconds a slow server may not move at the end. With ``hold``, in
    whose context the server does nothing, messages come in waves: every lane sends what its limits
    allow once all lanes are done with what they sent before. So what comes at once does not depend
    on who is faster.

    Raises:
        PeerError: the server closed a connection or broke its protocol.
    """
    loop = Loop(lanes, server_cpu, patience)
    bounded = replace(limits, total=count)

    def body() -> tuple[Mark, Mark]:
        start = loop.mark()
        touched = set(lanes)
        while any(lane.publisher.sent < count for lane in lanes):
            with hold() if hold else nullcontext():
                for lane in touched:
                    lane.refill(bounded)
                    loop.watch(lane.publisher)
            if hold is None:
                touched = loop.turn(_POLL_SECONDS)
            elif not loop.settle(hold):
                break
        return start, loop.mark()

    return _run(loop, body, hold)


def run_paced(
    lanes: Sequence[Lane],
    rate: float,
    warm_up: float,
    measure: float,
    server_cpu: Callable[[], float],
) -> RunResult:
    """Send ``rate`` messages a second over all lanes; collect the delays after the warm-up.

    Raises:
        PeerError: the server closed a connection or broke its protocol.
    """
    interval = round(1e9 * len(lanes) / rate)

    loop = Loop(lanes, server_cpu)

    def body() -> tuple[Mark, Mark]:
        start = None
        # Lanes take turns within an interval, so that they do not all send at once.
        offsets = [index * interval // len(lanes) for index in range(len(lanes))]
        begin = time.monotonic_ns()
        while True:
            now = time.monotonic_ns()
            if start is None and now >= begin + warm_up * 1e9:
                start = loop.mark()
                for lane in lanes:
                    for receiver in lane.receivers:
                        receiver.delays = []
            if start is not None and now >= begin + (warm_up + measure) * 1e9:
                return start, loop.mark()
            for lane, offset in zip(lanes, offsets, strict=True):
                sent = lane.publisher.sent
                due = (now - begin - offset) // interval + 1 - sent
                if due > 0:
                    numbers = np.arange(sent, sent + due, dtype=np.uint64)
                    lane.publisher.publish_due(
                        numbers * np.uint64(interval) + np.uint64(begin + offset)
                    )
                    loop.watch(lane.publisher)
            loop.turn(0)

    return _run(loop, body)
