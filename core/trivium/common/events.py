"""What happens in a broker that others may want to know: who came in, what was made or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

#: Told the name of an event, such as "queue.created", and what it is about.
EventListener = Callable[[str, dict[str, object]], None]


class Events:
    """The events of one broker. The names are those of RabbitMQ's event exchange where it has one.

    They are told when they happen, within the write batch that makes them durable.
    """

    def __init__(self) -> None:
        #: the connection whose input, or end, is dealt with; None: the broker acts by itself
        self.serving: object = None
        #: events of which no message was made, since there were too many at once
        self.dropped = 0
        self._listeners: list[EventListener] = []

    def listen(self, listener: EventListener) -> None:
        """Tell ``listener`` of each event from now on. It must not raise."""
        self._listeners.append(listener)

    def for_served(self, work: Callable[P, None]) -> Callable[P, None]:
        """``work``, to be done later in the name of whoever is served now."""
        serving = self.serving

        def resumed(*args: P.args, **kwargs: P.kwargs) -> None:
            self.serving = serving
            work(*args, **kwargs)

        return resumed

    def tell(self, event: str, **about: object) -> None:
        """Something has happened."""
        for listener in self._listeners:
            listener(event, about)
