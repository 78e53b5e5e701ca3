"""What queues see of the virtual host that they are in."""

from __future__ import annotations

from trivium.common.quotas import QUEUED_BYTES, QUEUES, VHOST, Account
from trivium.errors import AccessRefused, QuotaExceeded
from trivium.host import Host
from trivium.idempotence.deduplication import Deduplication
from trivium.messages.message import UNSAMPLED, Message
from trivium.messages.tracing import Tracer
from trivium.queues.dead_letters import DeadLetters
from trivium.queues.head_walk import HeadWalk
from trivium.queues.queue import Queue
from trivium.queues.requeues import Requeues
from trivium.routing.exchanges import Exchange, Route
from trivium.routing.taps import Tap


class QueueNamespace:
    """A virtual host, as far as it has to do with queues."""

    def __init__(self, broker: Host, name: str, dead_letters: DeadLetters) -> None:
        self.broker = broker
        self.name = name
        self.dead_letters = dead_letters
        self.head_walk = HeadWalk(broker)
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        #: what there is in it, for quotas
        self.account = broker.quotas.account(VHOST, name)
        #: bytes of payload that are ready in its queues, and how many may be; -1 for any number
        self.queued_bytes = 0
        self.most_queued_bytes = -1
        #: who looks on, and who follows messages; None: nobody does
        self.tap: Tap | None = None
        self.tracer: Tracer | None = None
        #: whether there is any of them
        self.is_watched = False
        storage = broker.storage
        self.requeues = Requeues(storage.table(f"returns/{name}"))
        self.deduplication = Deduplication(broker, storage.table(f"deduplication/{name}"))

    def watch(self, tap: Tap | None, tracer: Tracer | None) -> None:
        """From now on these look on; the topology version must rise with it."""
        self.tap = tap
        self.tracer = tracer
        self.is_watched = tap is not None or tracer is not None

    def shows(self, message: Message) -> bool:
        """Whether somebody may look at this message, where somebody does at all."""
        return self.tap is not None or message.traced > UNSAMPLED

    def delivered(
        self,
        message: Message,
        queue: str,
        is_redelivered: bool,
        connection: object = None,
        channel: int = 0,
        entry: object = None,
    ) -> None:
        """Tell those who look on that a message leaves out of the queue of this name (see ``Tap``);
        ``entry`` is what the client is to settle, if it is."""
        tap = self.tap
        if tap is not None:
            tap.delivered(message, queue, is_redelivered, connection, channel)
        tracer = self.tracer
        if tracer is not None and tracer.has(message):
            tracer.delivered(message, queue, is_redelivered, connection, entry)

    def tell(self, event: str, **about: object) -> None:
        """Something has happened in this virtual host."""
        self.broker.events.tell(event, vhost=self.name, **about)

    def exchange_to(self, name: str) -> Exchange | None:
        """The exchange called ``name`` as one that others may lead to: one where the broker alone
        publishes is none."""
        found = self.exchanges.get(name)
        return None if found is None or found.is_brokers_own else found

    def refuse_brokers_own(self, name: object) -> None:
        """Raise AccessRefused where an exchange is called so in which the broker alone publishes:
        nothing may be declared that leads there."""
        if not isinstance(name, str):
            return
        found = self.exchanges.get(name)
        if found is not None and found.is_brokers_own:
            raise AccessRefused(
                f"exchange '{name}' in vhost '{self.name}' takes messages of the broker alone"
            )

    def route_all(self, exchange: Exchange, keys: list[bytes], message: Message) -> Route:
        """The route of a message with several routing keys: each destination once.

        Every exchange on the way is asked for all of them, as RabbitMQ does it.
        """
        raise NotImplementedError

    def lacks_room(self, size: int) -> bool:
        """Whether its queues may not take so many bytes more, which is then told as a refusal."""
        most = self.most_queued_bytes
        if most < 0 or self.queued_bytes + size <= most:
            return False
        self.broker.quotas.refused(self.account, QUEUED_BYTES)
        return True

    def require_room(self, name: str, adapter: str, user: Account | None) -> None:
        """Raise QuotaExceeded unless ``user`` may make another queue here, called ``name``; those
        that are private to an adapter are no queues of clients."""
        if adapter:
            return
        try:
            self.broker.quotas.require(
                [self.account] if user is None else [self.account, user], QUEUES
            )
        except QuotaExceeded as error:
            error.wanted = name
            raise

    def count_queue(self, queue: Queue, count: int) -> None:
        """A queue has come, or gone."""
        if not queue.adapter:
            self.account.add(QUEUES, count)
            if queue.user is not None:
                queue.user.add(QUEUES, count)

    def delete_queue(self, queue: Queue, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue, its messages and its bindings; how many messages were ready in it.

        Raises PreconditionFailed when it has consumers (``if_unused``) or messages that are ready
        or wait for their time (``if_empty``).
        """
        raise NotImplementedError
