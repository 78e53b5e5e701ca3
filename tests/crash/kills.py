"""Killing a broker at moments that are counted in acknowledgements, not in seconds."""

from __future__ import annotations

import queue
import random
import threading

from interop.brokers import TriviumProcess
from interop.mqtt import take

#: fewest acknowledgements between two kills: more than a publisher has on the way, so that it has
#: got those of what it sends again before the next kill
SPACING = 50


class Kills:
    """Kills a broker after random numbers of acknowledgements out of ``total``.

    Clients call ``acknowledged`` from their own threads, once per acknowledgement; it kills at
    once. The test calls ``restart`` once per kill.
    """

    def __init__(self, broker: TriviumProcess, seed: int, total: int, kills: int = 3) -> None:
        self._broker = broker
        draw = random.Random(seed)
        places = sorted(draw.sample(range(total // SPACING - kills), kills))
        # One place further each, so that no two are next to each other.
        self._moments = [
            (place + i) * SPACING + draw.randint(1, SPACING) for i, place in enumerate(places)
        ]
        self._killed: queue.Queue[int] = queue.Queue()
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
        """One more acknowledgement has come."""
        with self._lock:
            self.count += 1
            is_time = self.is_up.is_set() and bool(self._moments) and self.count >= self._moments[0]
            if is_time:
                self._moments.pop(0)
                self.is_up.clear()
        if is_time:
            self.may_publish.clear()
            process = self._broker.process
            assert process is not None
            process.kill()
            self._killed.put(self.count)

    def restart(self) -> None:
        """Wait for the next kill, then start the broker again."""
        take(self._killed, "the next kill")
        self._broker.restart()
        self.is_up.set()

    def restart_each(self) -> None:
        """Start the broker again after each of the kills."""
        for _ in range(self.kills):
            self.restart()
