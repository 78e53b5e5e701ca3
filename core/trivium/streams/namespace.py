"""What streams see of the virtual host that they are in."""

from __future__ import annotations

from trivium.errors import NotFound
from trivium.host import Host
from trivium.queues.dead_letters import DeadLetters
from trivium.queues.namespace import QueueNamespace
from trivium.streams.joining import RecoveredJoins
from trivium.streams.stream import Stream


class StreamNamespace(QueueNamespace):
    """A virtual host, as far as it has to do with streams."""

    def __init__(
        self, broker: Host, name: str, dead_letters: DeadLetters, recovered_joins: RecoveredJoins
    ) -> None:
        super().__init__(broker, name, dead_letters)
        #: joins the small batches that a crash left
        self.recovered_joins = recovered_joins
        self.streams: dict[str, Stream] = {}

    def stream(self, name: str) -> Stream:
        """The stream called ``name``. Raises NotFound."""
        found = self.streams.get(name)
        if found is None:
            raise NotFound(f"no stream '{name}' in vhost '{self.name}'")
        return found
