"""What clients of all protocols have in common: they act at random and remember what they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.reference import KINDS, TOPICS, Reference
from tests.simulation.stream_model import STREAMS
from tests.support.server import Client

if TYPE_CHECKING:
    from tests.simulation.inspection import Contents
    from tests.simulation.simulation import Simulation

#: Keys of the topic exchange, and patterns over them.
KEYS = ("a.a", "a.b", "b.a", "b.b")
PATTERNS = ("a.*", "*.a", "#", "b.b")

#: queues that come and go; the others have what other queues give up, or give up themselves
DELETABLE = ("q0", "newest", "full", "transient", "priority")
BINDABLE = ("q0", "q1", "priority", *STREAMS)

#: sizes of payloads, small ones more often
SIZES = (0, 1, 10, 30, 100, 100, 300, 1500)


class Actor:
    """One client. ``wire`` is None while it is not connected."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.name = name
        self.wire: Client | None = None
        #: rank of the last message that came fresh from each queue, by quality of service
        self.last_ranks: dict[tuple[str, int], int] = {}
        #: what it can do, with how often it does
        self.actions: list[tuple[Callable[[], None], int]] = []

    @property
    def reference(self) -> Reference:
        return self.simulation.reference

    @property
    def write_batch(self) -> int:
        """The write batch that takes what is done now."""
        return self.simulation.world.storage.write_batch

    @property
    def now(self) -> int:
        return self.simulation.world.broker.now_ms

    def act(self) -> None:
        """Do something."""
        actions = [action for action, _ in self.actions]
        weights = [weight for _, weight in self.actions]
        self.random.choices(actions, weights)[0]()

    def note(self, text: str) -> None:
        self.simulation.note(f"{self.write_batch}: {self.name} {text}")

    def connect(self) -> None:
        """Have a connection."""
        raise NotImplementedError

    def come(self) -> None:
        """Have a connection, however it likes."""
        self.connect()

    def receive(self) -> None:
        """Read what came."""
        raise NotImplementedError

    def forget(self) -> None:
        """The connection is gone, and what only it knew."""
        raise NotImplementedError

    def unanswered(self) -> str:
        """What the broker has not answered yet; empty for nothing."""
        raise NotImplementedError

    def check(self, contents: Contents) -> list[str]:
        """What this client alone can see to be wrong after a crash."""
        return []

    def restarted(self) -> None:
        """The broker died and is back."""
        self._release()

    def lose(self) -> None:
        """The network fails."""
        assert self.wire is not None
        self.wire.lose()
        self._release()

    def _release(self) -> None:
        self.wire = None
        self.last_ranks = {}
        holders = self.simulation.holders
        for place in [place for place, holder in holders.items() if holder is self]:
            del holders[place]
        self.forget()

    def target(self) -> tuple[str, str] | None:
        """Exchange and key of the next publish."""
        if self.random.random() < 0.5:
            return TOPICS, self.random.choice(KEYS)
        name = self.some([*KINDS, *STREAMS], self.exists)
        if name is None or (name in STREAMS and STREAMS[name] > 1):
            # By its own name a message goes round robin, which the model leaves out.
            return None
        return "", name

    def exists(self, name: str) -> bool:
        return name in self.reference.queues or name in self.reference.streams

    def some(self, names: list[str] | tuple[str, ...], where: Callable[[str], bool]) -> Any:
        """One of ``names``; None when there is none."""
        found = [name for name in names if where(name)]
        return self.random.choice(found) if found else None

    def size(self) -> int:
        return self.random.choice(SIZES)
