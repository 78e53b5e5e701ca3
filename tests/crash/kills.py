"""Killing a broker at moments that are counted in acknowledgements, and a little later."""

from __future__ import annotations

import queue
import random
import threading
import time

from interop.brokers import TriviumProcess
from interop.mqtt import PATIENCE, take

#: fewest acknowledgements between the moments of two kills
SPACING = 50
#: Seconds and acknowledgements that a kill may be late: as soon as an acknowledgement is there most
#: clients have nothing on the way, so a kill would never meet a request at work. What is left of
#: SPACING is more than a publisher has on the way, so that it has got the acknowledgements of what
#: it sends again before the next kill.
LATEST = 0.003
LATE = 10


class Kills:
    """Kills a broker after random numbers of acknowledgements out of ``total``.

    Clients call ``acknowledged`` from their own threads, once per acknowledgement. Another thread
    calls ``restart``, once per kill.
    """

    def __init__(self, broker: TriviumProcess, seed: int, total: int, kills: int = 3) -> None:
        self._broker = broker
        self._draw = random.Random(seed)
        places = sorted(self._draw.sample(range(total // SPACING - kills), kills))
        # One place further each, so that no two are next to each other.
        self._moments = [
            (place + i) * SPACING + self._draw.randint(1, SPACING) for i, place in enumerate(places)
        ]
        self._due: queue.Queue[int] = queue.Queue()
        self._is_killed = threading.Event()
        self._limit = total + 1
        self._lock = threading.Lock()
        # Clients are served before the broker says that it is ready; it is not killed that early.
        self.is_up = threading.Event()
        self.is_up.set()
        #: cleared by a kill; for publishers that must not run ahead of what they send again
        self.may_publish = threading.Event()
        self.may_publish.set()
        self.count = 0
        self.kills = kills

    def acknowledged(self) -> None:
        """One more acknowledgement has come; waits for a kill that would be later than LATE."""
        with self._lock:
            self.count += 1
            if self.is_up.is_set() and self._moments and self.count >= self._moments[0]:
                self._moments.pop(0)
                self._limit = self.count + LATE
                self.is_up.clear()
                self._is_killed.clear()
                self._due.put(self.count)
            is_late = self.count >= self._limit
        if is_late:
            assert self._is_killed.wait(PATIENCE), "no kill"

    def restart(self) -> None:
        """Wait for the next kill and do it, then start the broker again."""
        take(self._due, "the next kill")
        # Nothing is waited for: this is the moment of the kill.
        time.sleep(self._draw.uniform(0, LATEST))
        self.may_publish.clear()
        self._broker.kill()
        self._is_killed.set()
        self._broker.start()
        self.is_up.set()

    def restart_each(self) -> None:
        """Start the broker again after each of the kills."""
        for _ in range(self.kills):
            self.restart()
