"""What queues see of the virtual host that they are in."""

from __future__ import annotations

from trivium.host import Host
from trivium.idempotence.deduplication import Deduplication
from trivium.messages.message import Message
from trivium.queues.dead_letters import DeadLetters
from trivium.queues.queue import Queue
from trivium.queues.requeues import Requeues
from trivium.routing.exchanges import Exchange, Route


class QueueNamespace:
    """A virtual host, as far as it has to do with queues."""

    def __init__(self, broker: Host, name: str, dead_letters: DeadLetters) -> None:
        self.broker = broker
        self.name = name
        self.dead_letters = dead_letters
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        storage = broker.storage
        self.requeues = Requeues(storage.table(f"returns/{name}"))
        self.deduplication = Deduplication(broker, storage.table(f"deduplication/{name}"))

    def tell(self, event: str, **about: object) -> None:
        """Something has happened in this virtual host."""
        self.broker.events.tell(event, vhost=self.name, **about)

    def route_all(self, exchange: Exchange, keys: list[bytes], message: Message) -> Route:
        """The route of a message with several routing keys: each destination once.

        Every exchange on the way is asked for all of them, as RabbitMQ does it.
        """
        raise NotImplementedError

    def delete_queue(self, queue: Queue, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue, its messages and its bindings; how many messages were ready in it.

        Raises PreconditionFailed when it has consumers (``if_unused``) or messages that are ready
        or wait for their time (``if_empty``).
        """
        raise NotImplementedError
