"""An AMQP client: one channel confirms, one is transactional, one consumes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from pamqp import commands
from pamqp.base import Frame

from tests.simulation.actors import BINDABLE, DELETABLE, PATTERNS, Actor
from tests.simulation.reference import KINDS, LATE, ONCE, TOPICS
from tests.simulation.stream_model import STREAMS
from tests.simulation.wires import (
    CONFIRMING,
    CONSUMING,
    TRANSACTIONAL,
    AmqpWire,
    number_in,
    payload_of,
)

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

PREFETCH = 3


class AmqpActor(Actor):
    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        #: what it published with an id lately; it does not know whether the broker has it
        self.identified: deque[int] = deque(maxlen=8)
        self.forget()
        self.actions = [
            (self.publish, 30),
            (self.publish_many, 5),
            (self.publish_later, 3),
            (self.publish_once, 3),
            (self.publish_again, 3),
            (self.acknowledge, 20),
            (self.reject, 6),
            (self.consume, 6),
            (self.cancel, 1),
            (self.get, 5),
            (self.publish_in_transaction, 5),
            (self.acknowledge_in_transaction, 4),
            (self.commit, 4),
            (self.roll_back, 1),
            (self.declare_some, 4),
            (self.bind, 4),
            (self.delete, 1),
        ]

    def forget(self) -> None:
        self.tag = 0
        #: publishes without a confirm: write batch, queue that may refuse it, message
        self.unconfirmed: dict[int, tuple[int, str, int]] = {}
        #: replies to come, by channel: method and write batch
        self.replies: dict[int, deque[tuple[str, int]]] = {}
        #: deliveries that are not settled: queue and message
        self.unsettled: dict[tuple[int, int], tuple[str, int]] = {}
        self.consumes: set[str] = set()
        self.transaction: list[Any] = []
        self.gets: deque[str] = deque()

    def connect(self) -> None:
        self.wire = AmqpWire(self.simulation.world)
        self.replies = {CONFIRMING: deque(), TRANSACTIONAL: deque(), CONSUMING: deque()}

    @property
    def amqp(self) -> AmqpWire:
        assert isinstance(self.wire, AmqpWire)
        return self.wire

    def _ask(
        self, method: Frame, reply: str, channel: int = CONFIRMING, write_batch: int = -1
    ) -> None:
        self.replies[channel].append((reply, write_batch))
        self.amqp.send(method, channel)

    def unanswered(self) -> str:
        replies = [reply for queue in self.replies.values() for reply in queue]
        return str(self.unconfirmed or replies or "")

    # Publishing

    def _properties(self) -> tuple[int, dict[str, Any], dict[str, int]]:
        """Mode, AMQP properties, and those of them that the model knows."""
        mode = int(self.random.random() < 0.85)
        properties: dict[str, Any] = {"delivery_mode": mode + 1}
        modelled: dict[str, int] = {}
        if self.random.random() < 0.1:
            modelled["lifetime"] = self.random.choice((500, 8000))
            properties["expiration"] = str(modelled["lifetime"])
        if self.random.random() < 0.2:
            modelled["priority"] = properties["priority"] = self.random.randint(0, 2)
        return mode, properties, modelled

    def publish(self, target: tuple[str, str] | None = None) -> None:
        target = target or self.target()
        if target is None:
            return
        number = self.simulation.new_message()
        mode, properties, modelled = self._properties()
        self.note(f"publishes {number} to {target} {properties}")
        is_durable = self.reference.publish(
            number,
            *target,
            mode,
            self.now,
            modelled.get("priority", 0),
            modelled.get("lifetime", 0),
        )
        write_batch = self.simulation.published(number, is_durable)
        self.tag += 1
        self.unconfirmed[self.tag] = (write_batch, target[1], number)
        self.amqp.publish(CONFIRMING, *target, payload_of(number, self.size()), **properties)

    def publish_later(self) -> None:
        number = self.simulation.new_message()
        delay = self.random.choice((1, 1500, 9000))
        self.note(f"publishes {number} to {LATE} in {delay} ms")
        self.reference.delayed[number] = self.now + delay
        write_batch = self.simulation.published(number, True)
        self._publish_with(LATE, number, write_batch, {"x-delay": delay})

    def publish_once(self) -> None:
        self.identified.append(self.simulation.new_message())
        self._publish_identified(self.identified[-1])

    def publish_again(self) -> None:
        if self.identified:
            self._publish_identified(self.random.choice(self.identified))

    def _publish_identified(self, number: int) -> None:
        self.note(f"publishes {number} to {ONCE} with its id")
        if number not in self.reference.known:
            self.reference.known.add(number)
            self.reference.publish(number, "", ONCE, 1, self.now)
            self.simulation.published(number, True)
        write_batch = self.simulation.write_batches[number]
        self._publish_with(ONCE, number, write_batch, {"x-deduplication-header": str(number)})

    def _publish_with(
        self, queue: str, number: int, write_batch: int, headers: dict[str, Any]
    ) -> None:
        self.tag += 1
        self.unconfirmed[self.tag] = (write_batch, queue, number)
        payload = payload_of(number, 10)
        self.amqp.publish(CONFIRMING, "", queue, payload, delivery_mode=2, headers=headers)

    def publish_many(self) -> None:
        for _ in range(self.random.randint(2, 8)):
            self.publish()

    def _confirmed(self, tag: int, multiple: bool, is_taken: bool) -> None:
        tags = [each for each in self.unconfirmed if each <= tag] if multiple else [tag]
        for each in tags:
            if each not in self.unconfirmed:
                self.simulation.fail(f"{self.name} got a confirm of {each} twice")
            write_batch, queue, number = self.unconfirmed.pop(each)
            kind = KINDS.get(queue)
            if is_taken:
                self.simulation.acknowledged(write_batch)
            elif kind is None or not kind.rejects:
                self.simulation.fail(f"{self.name} got a refusal of {number} by {queue}")
            else:
                self.note(f"was refused {number}")
                self.reference.settle(queue, number)

    # Consuming

    def consume(self, queue: str | None = None) -> None:
        queue = queue or self.some(
            list(KINDS), lambda name: self.exists(name) and name not in self.consumes
        )
        if queue is None:
            return
        self.note(f"consumes {queue}")
        self.consumes.add(queue)
        self._ask(commands.Basic.Qos(prefetch_count=PREFETCH), "Basic.QosOk", CONSUMING)
        consume = commands.Basic.Consume(
            queue=queue, consumer_tag=queue, no_ack=KINDS[queue].is_lossy
        )
        self._ask(consume, "Basic.ConsumeOk", CONSUMING)

    def cancel(self) -> None:
        queue = self.some(list(KINDS), lambda name: name in self.consumes)
        if queue is not None:
            self.note(f"cancels {queue}")
            self.consumes.discard(queue)
            cancel = commands.Basic.Cancel(consumer_tag=queue)
            self._ask(cancel, "Basic.CancelOk", CONSUMING)

    def get(self, queue: str | None = None) -> None:
        queue = queue or self.some(list(KINDS), lambda name: self.exists(name) and name != "lossy")
        if queue is not None and not self.gets:
            self.note(f"gets from {queue}")
            self.gets.append(queue)
            self.amqp.send(commands.Basic.Get(queue=queue), TRANSACTIONAL)

    def _held(self, channel: int) -> list[int]:
        return [tag for at, tag in self.unsettled if at == channel]

    def _take(self, channel: int, tag: int) -> tuple[str, int]:
        place = self.unsettled.pop((channel, tag))
        self.simulation.holders.pop(place, None)
        return place

    def acknowledge(self) -> None:
        tags = self._held(CONSUMING)
        if not tags:
            return
        tag = self.random.choice(tags)
        multiple = self.random.random() < 0.3
        for each in [each for each in tags if each <= tag] if multiple else [tag]:
            queue, number = self._take(CONSUMING, each)
            self.note(f"acknowledges {number} of {queue}")
            self.reference.settle(queue, number)
        self.amqp.send(commands.Basic.Ack(tag, multiple), CONSUMING)

    def reject(self, requeue: bool | None = None) -> None:
        tags = self._held(CONSUMING)
        if not tags:
            return
        tag = self.random.choice(tags)
        requeue = self.random.random() < 0.5 if requeue is None else requeue
        queue, number = self._take(CONSUMING, tag)
        self.note(f"rejects {number} of {queue}, requeue {requeue}")
        if not requeue:
            self.reference.reject(queue, number)
        self.amqp.send(commands.Basic.Nack(tag, False, requeue), CONSUMING)

    # Transactions

    def publish_in_transaction(self, target: tuple[str, str] | None = None) -> None:
        target = target or self.target()
        if target is None or target[1] == "full":
            return
        number = self.simulation.new_message()
        self.note(f"publishes {number} to {target} in its transaction")
        self.transaction.append((number, target))
        payload = payload_of(number, self.size())
        self.amqp.publish(TRANSACTIONAL, *target, payload, delivery_mode=2)

    def acknowledge_in_transaction(self) -> None:
        tags = self._held(TRANSACTIONAL)
        if tags:
            tag = self.random.choice(tags)
            place = self.unsettled.pop((TRANSACTIONAL, tag))
            self.note(f"acknowledges {place} in its transaction")
            self.transaction.append((tag, place))
            self.amqp.send(commands.Basic.Ack(tag), TRANSACTIONAL)

    def commit(self) -> None:
        if self.replies[TRANSACTIONAL]:
            # A client waits for the answer to the method before.
            return
        self.note("commits")
        is_durable = False
        settled: list[tuple[str, int]] = []
        for number, where in self.transaction:
            if isinstance(where[1], int):
                settled.append(where)
            else:
                is_durable |= self.reference.publish(number, where[0], where[1], 1, self.now)
                self.simulation.published(number, True)
        for place in settled:
            entry = self.reference.queues.get(place[0], {}).get(place[1])
            is_durable |= entry is not None and entry.persistent and KINDS[place[0]].durable
            self.reference.settle(*place)
            self.simulation.holders.pop(place, None)
        self.transaction = []
        write_batch = self.write_batch if is_durable else -1
        self._ask(commands.Tx.Commit(), "Tx.CommitOk", TRANSACTIONAL, write_batch)

    def roll_back(self) -> None:
        if self.replies[TRANSACTIONAL]:
            return
        self.note("rolls back")
        for tag, where in self.transaction:
            if isinstance(where[1], int):
                self.unsettled[TRANSACTIONAL, tag] = where
        self.transaction = []
        self._ask(commands.Tx.Rollback(), "Tx.RollbackOk", TRANSACTIONAL)

    # Topology

    def declare(self, name: str) -> None:
        """Declare a queue or stream."""
        self.note(f"declares {name}")
        if name in STREAMS:
            self.reference.declare_stream(name, 1, self.now)
            arguments: dict[str, Any] = {"x-queue-type": "stream"}
            durable = True
        else:
            self.reference.declare_queue(name)
            arguments = dict(KINDS[name].arguments)
            durable = KINDS[name].durable
        declare = commands.Queue.Declare(queue=name, durable=durable, arguments=arguments)
        self._ask(declare, "Queue.DeclareOk", write_batch=self.write_batch if durable else -1)

    def declare_some(self) -> None:
        self.declare(self.random.choice([*KINDS, "s0"]))

    def bind(self, name: str | None = None, pattern: str = "", is_bind: bool = True) -> None:
        if name is None:
            name = self.some(BINDABLE, self.exists)
            pattern = self.random.choice(PATTERNS)
            is_bind = self.random.random() < 0.7
        if name is None:
            return
        if is_bind:
            self.note(f"binds {name} to {pattern}")
            self.reference.bindings.add((pattern, name))
            bind = commands.Queue.Bind(queue=name, exchange=TOPICS, routing_key=pattern)
            self._ask(bind, "Queue.BindOk", write_batch=self.write_batch)
        else:
            self.note(f"unbinds {name} from {pattern}")
            self.reference.bindings.discard((pattern, name))
            unbind = commands.Queue.Unbind(queue=name, exchange=TOPICS, routing_key=pattern)
            self._ask(unbind, "Queue.UnbindOk", write_batch=self.write_batch)

    def delete(self, name: str | None = None) -> None:
        name = name or self.some(DELETABLE, self.exists)
        if name is not None:
            self.note(f"deletes {name}")
            self.simulation.deleted(name)
            self.reference.delete_queue(name)
            write_batch = self.write_batch if KINDS[name].durable else -1
            self._ask(commands.Queue.Delete(queue=name), "Queue.DeleteOk", write_batch=write_batch)

    # What comes

    def receive(self) -> None:
        for channel, method, body in self.amqp.receive():
            name = method.name
            if isinstance(method, commands.Basic.Deliver):
                assert method.consumer_tag is not None
                assert method.delivery_tag is not None
                self._got(channel, method.delivery_tag, method.consumer_tag, method, body)
            elif isinstance(method, commands.Basic.GetOk):
                assert method.delivery_tag is not None
                self._got(channel, method.delivery_tag, self.gets.popleft(), method, body)
            elif isinstance(method, commands.Basic.GetEmpty):
                self.gets.popleft()
            elif isinstance(method, (commands.Basic.Ack, commands.Basic.Nack)):
                tag = method.delivery_tag or 0
                self._confirmed(tag, bool(method.multiple), isinstance(method, commands.Basic.Ack))
            elif isinstance(method, commands.Basic.Cancel):
                assert method.consumer_tag is not None
                self.consumes.discard(method.consumer_tag)
            elif name in ("Connection.Close", "Channel.Close"):
                self.simulation.fail(f"{self.name} got {name}: {method.reply_text}")
            elif name in HANDSHAKE:
                continue
            elif self.replies[channel] and self.replies[channel][0][0] == name:
                self.simulation.acknowledged(self.replies[channel].popleft()[1])
            else:
                self.simulation.fail(f"{self.name} got {name} on channel {channel}")

    def _got(self, channel: int, tag: int, queue: str, method: Any, body: bytes) -> None:
        number = number_in(body)
        self.note(f"got {number} of {queue}, redelivered {method.redelivered}")
        self.simulation.received(self, queue, number, bool(method.redelivered))
        if KINDS[queue].is_lossy:
            self.reference.settle(queue, number)
        else:
            self.unsettled[channel, tag] = (queue, number)


HANDSHAKE = (
    "Connection.Start",
    "Connection.Tune",
    "Connection.OpenOk",
    "Channel.OpenOk",
    "Confirm.SelectOk",
    "Tx.SelectOk",
)
