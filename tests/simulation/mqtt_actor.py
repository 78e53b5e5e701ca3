"""An MQTT client with a session that is kept, and a memory of its own that survives everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.simulation.actors import KEYS, Actor
from tests.simulation.reference import TOPICS, Will, backlog_of
from tests.simulation.wires import NEVER, MqttWire, number_in, payload_of
from tests.support import mqtt

if TYPE_CHECKING:
    from tests.simulation.inspection import Contents
    from tests.simulation.simulation import Simulation

#: filters, and the patterns that the model has for them
FILTERS: Final = {"a/+": "a.*", "+/b": "*.b", "#": "#", "b/a": "b.a"}


#: seconds that a session is kept which is not kept for ever
SHORT: Final = 3


class Sent:
    """A QoS 2 message under way to the broker."""

    def __init__(self, number: int, key: str, payload: bytes, retain: bool) -> None:
        self.number = number
        self.key = key
        self.payload = payload
        self.retain = retain
        self.is_released = False
        self.write_batch = -1


class MqttActor(Actor):
    #: how often it says that its session is to end soon after it has left
    ENDS = 0.1

    def __init__(self, simulation: Simulation, name: str, version: int) -> None:
        super().__init__(simulation, name)
        self.version = version
        self.packet_id = 0
        #: QoS 2 messages under way to the broker, by packet identifier
        self.outgoing: dict[int, Sent] = {}
        #: QoS 2 messages under way from the broker, by packet identifier
        self.incoming: dict[int, int] = {}
        #: write batches of PUBRECs whose PUBREL did not come
        self.received_in: dict[int, int] = {}
        #: QoS 2 messages that it got: each once
        self.completed: set[int] = set()
        #: whether it had a session when it connected
        self.is_present = False
        #: whether it gave up its session and does not know that the broker did
        self.is_clean = False
        self.forget()
        self.actions = [
            (self.publish_live, 5),
            (self.publish_acknowledged, 15),
            (self.publish_once, 15),
            (self.release_one, 12),
            (self.subscribe, 5),
            (self.unsubscribe, 1),
            (self.acknowledge, 20),
            (self.confirm, 12),
            (self.leave, 1),
        ]

    def forget(self) -> None:
        #: write batches of what waits for an answer, by first byte of the answer and packet
        #: identifier
        self.waiting: dict[tuple[int, int], int] = {}
        #: QoS 1 messages that it did not acknowledge, by packet identifier
        self.unacknowledged: dict[int, int] = {}
        #: packet identifiers of QoS 2 messages that it has not answered on this connection
        self.unconfirmed: list[int] = []
        #: will and expiry of a connection that waits for the end of its former session
        self.entering: tuple[Will | None, int] | None = None

    def restarted(self) -> None:
        super().restarted()
        self.received_in.clear()

    @property
    def mqtt(self) -> MqttWire:
        assert isinstance(self.wire, MqttWire)
        return self.wire

    @property
    def backlog(self) -> str:
        return backlog_of(self.name)

    def come(self) -> None:
        is_clean = self.version == 5 and self.random.random() < self.ENDS / 2
        is_short = self.version == 5 and self.random.random() < self.ENDS
        self.connect(is_clean=is_clean, expiry=SHORT if is_short else NEVER)

    def connect(
        self, will: Will | None = None, is_clean: bool = False, expiry: int = NEVER
    ) -> None:
        if will is None and self.random.random() < 0.4:
            will = self._some_will()
        self.is_clean |= is_clean
        fields: dict[str, Any] = {"is_clean": self.is_clean, "expiry": expiry}
        if will is not None:
            self.note(f"leaves {will}")
            topic = will.key.replace(".", "/")
            fields["will"] = (topic, payload_of(will.number, self.size()), will.qos, will.retain)
            if will.delay_ms:
                fields["will_properties"] = b"\x18" + (will.delay_ms // 1000).to_bytes(4)
        self.wire = MqttWire(self.simulation.world, self.name, self.version, **fields)
        if self.is_clean and self.name in self.reference.sessions:
            self.simulation.counts["sessions ended by clean starts"] += 1
            self.note("ends its session")
            self.simulation.published_later(self.reference.end(self.name, self.now))
            self.simulation.session_ended(self.name)
        self.entering = (will, expiry)
        self.simulation.see_handovers(self.write_batch)
        if self.entering is not None:
            self.simulation.counts["waits for a handover"] += 1
            self.note("waits until its former session is handed over")

    def enter(self, write_batch: int) -> None:
        """No former session is in the way: the broker goes on with a connection that waits."""
        if self.entering is None:
            return
        if self.mqtt.is_closed:
            self.note("has waited for too long")
            self.lose()
            return
        will, expiry = self.entering
        self.entering = None
        self.is_present = self.name in self.reference.sessions
        if not self.is_present:
            # Nor is there anything left of it here.
            self.completed -= set(self.incoming.values())
            self.incoming.clear()
            self.outgoing.clear()
            self.received_in.clear()
        self.waiting[0x20, 0] = write_batch
        expiry_ms = None if expiry == NEVER else 1000 * expiry
        self.reference.connect(self.name, will, self.now, expiry_ms)
        # What it does not know to be complete it sends again (MQTT-4.4.0-1).
        for packet_id, sent in self.outgoing.items():
            if sent.is_released:
                self._send_release(packet_id, sent)
            else:
                self._send_once(packet_id, sent, dup=True)

    def _some_will(self) -> Will:
        number, key = self.simulation.new_message(), self.random.choice(KEYS)
        delay = self.random.choice((0, 2000)) if self.version == 5 else 0
        retain = self.random.random() < 0.2
        return Will(number, key, self.random.randint(0, 2), retain, delay)

    def act(self) -> None:
        if self.entering is None:
            super().act()

    def lose(self) -> None:
        is_in = self.entering is None
        super().lose()
        if is_in:
            self.simulation.published_later(self.reference.disconnect(self.name, self.now))

    def unanswered(self) -> str:
        return "the end of its session" if self.entering else str(self.waiting or "")

    def _next_packet_id(self) -> int:
        # Few of them, so that they are used again and again.
        while True:
            self.packet_id = self.packet_id % 40 + 1
            taken = any(known == self.packet_id for _, known in self.waiting)
            if self.packet_id not in self.outgoing and not taken:
                return self.packet_id

    # To the broker

    def _model(self, number: int, key: str, mode: int, retain: bool) -> int:
        durable = self.reference.publish(number, TOPICS, key, mode, self.now, retain=retain)
        return self.simulation.published(number, durable)

    def publish_live(self) -> None:
        number, key = self.simulation.new_message(), self.random.choice(KEYS)
        self.note(f"publishes {number} to {key} at QoS 0")
        self._model(number, key, 0, False)
        self.mqtt.publish(key.replace(".", "/"), payload_of(number, self.size()), 0, 0)

    def publish_acknowledged(self, key: str = "", retain: bool = False) -> None:
        if not key:
            key, retain = self.random.choice(KEYS), self.random.random() < 0.2
        number = self.simulation.new_message()
        packet_id = self._next_packet_id()
        self.note(f"publishes {number} to {key} at QoS 1, retain {retain}")
        self.waiting[0x40, packet_id] = self._model(number, key, 1, retain)
        payload = payload_of(number, self.size())
        self.mqtt.publish(key.replace(".", "/"), payload, 1, packet_id, retain=retain)

    def publish_once(self, key: str = "") -> None:
        if len(self.outgoing) > 20:
            return
        retain = False
        if not key:
            key, retain = self.random.choice(KEYS), self.random.random() < 0.1
        number = self.simulation.new_message()
        sent = Sent(number, key, payload_of(number, self.size()), retain)
        packet_id = self._next_packet_id()
        self.outgoing[packet_id] = sent
        self._send_once(packet_id, sent, dup=False)

    def _send_once(self, packet_id: int, sent: Sent, dup: bool) -> None:
        self.note(f"publishes {sent.number} to {sent.key} at QoS 2 as {packet_id}, dup {dup}")
        known = self.reference.sessions[self.name].incoming
        if packet_id not in known:
            known[packet_id] = sent.number
            self._model(sent.number, sent.key, 2, sent.retain)
        elif known[packet_id] != sent.number:
            self.simulation.fail(f"{self.name} used {packet_id} again too early")
        # The identifier is durable with the message, so in any case PUBREC waits for the disk.
        self.waiting[0x50, packet_id] = self.simulation.write_batches[sent.number]
        topic = sent.key.replace(".", "/")
        self.mqtt.publish(topic, sent.payload, 2, packet_id, retain=sent.retain, dup=dup)

    def release_one(self) -> None:
        for packet_id, sent in self.outgoing.items():
            if not sent.is_released and (0x50, packet_id) not in self.waiting:
                self._send_release(packet_id, sent)
                return

    def _send_release(self, packet_id: int, sent: Sent) -> None:
        self.note(f"releases {packet_id}")
        sent.is_released = True
        if self.reference.sessions[self.name].incoming.pop(packet_id, None) is not None:
            sent.write_batch = self.write_batch
        self.waiting[0x70, packet_id] = sent.write_batch
        self.mqtt.feed(mqtt.pubrel(packet_id))

    def subscribe(self, topic_filter: str = "", qos: int = 2) -> None:
        if self.version == 4:
            # Retained messages come with it, which the model leaves out.
            return
        if not topic_filter:
            topic_filter, qos = self.random.choice(list(FILTERS)), self.random.randint(0, 2)
        packet_id = self._next_packet_id()
        self.note(f"subscribes to {topic_filter} at QoS {qos}")
        self.reference.sessions[self.name].subscriptions[FILTERS[topic_filter]] = qos
        self.waiting[0x90, packet_id] = self.write_batch
        self.mqtt.subscribe(topic_filter, qos, packet_id, retained=False)

    def unsubscribe(self, topic_filter: str = "") -> None:
        topic_filter = topic_filter or self.random.choice(list(FILTERS))
        packet_id = self._next_packet_id()
        self.note(f"unsubscribes from {topic_filter}")
        known = self.reference.sessions[self.name].subscriptions
        existed = known.pop(FILTERS[topic_filter], None) is not None
        self.waiting[0xB0, packet_id] = self.write_batch if existed else -1
        self.mqtt.feed(mqtt.unsubscribe(topic_filter, packet_id, self.version))

    def leave(self) -> None:
        self.note("disconnects")
        if self.version == 5 and self.random.random() < 0.3:
            # With its will (reason code 4).
            self.mqtt.feed(b"\xe0\x01\x04")
        else:
            self.reference.sessions[self.name].will = None
            self.mqtt.feed(b"\xe0\x00")
        self.lose()

    # From the broker

    def acknowledge(self) -> None:
        for packet_id in list(self.unacknowledged)[: self.random.randint(1, 3)]:
            number = self.unacknowledged.pop(packet_id)
            self.note(f"acknowledges {number}")
            self.reference.settle(self.backlog, number)
            self.simulation.holders.pop((self.backlog, number), None)
            self.mqtt.feed(mqtt.puback(packet_id))

    def confirm(self) -> None:
        if self.unconfirmed:
            packet_id = self.unconfirmed.pop(0)
            number = self.incoming[packet_id]
            self.note(f"has received {number} as {packet_id}")
            self.received_in.setdefault(packet_id, self.write_batch)
            self.reference.settle(self.backlog, number)
            self.simulation.holders.pop((self.backlog, number), None)
            self.mqtt.feed(mqtt.pubrec(packet_id))

    def receive(self) -> None:
        for first, data in self.mqtt.receive():
            kind = first & 0xF0
            if kind == 0x30:
                self._got(first, data)
            elif kind == 0x60:
                self._got_release(int.from_bytes(data[:2]))
            elif kind == 0x20:
                if data[:2] != bytes((self.is_present, 0)):
                    self.simulation.fail(f"{self.name}: CONNACK {data.hex()}")
                self.is_clean = False
                self._answered(kind, 0)
            else:
                self._answered(kind, int.from_bytes(data[:2]))

    def _answered(self, kind: int, packet_id: int) -> None:
        write_batch = self.waiting.pop((kind, packet_id), None)
        if write_batch is None:
            self.simulation.fail(f"{self.name} got {kind:#x} of {packet_id}")
            return
        self.simulation.acknowledged(write_batch)
        if kind == 0x70:
            del self.outgoing[packet_id]

    def _got(self, first: int, data: bytes) -> None:
        _, packet_id, payload = self.mqtt.read_publish(first, data)
        number = number_in(payload)
        qos = first >> 1 & 3
        if qos == 0:
            return
        self.note(f"got {number} at QoS {qos} as {packet_id}, dup {first & 8 != 0}")
        if qos == 2:
            known = self.incoming.get(packet_id)
            if known is not None:
                if known != number:
                    self.simulation.fail(f"{self.name} has {known} as {packet_id}, got {number}")
            elif number in self.completed:
                self.simulation.fail(f"{self.name} got {number} at QoS 2 twice")
            self.incoming[packet_id] = number
            self.completed.add(number)
            self.unconfirmed.append(packet_id)
            self.simulation.acknowledged(self.simulation.write_batches[number])
        else:
            self.unacknowledged[packet_id] = number
        self.simulation.received(self, self.backlog, number, first & 8 != 0)

    def _got_release(self, packet_id: int) -> None:
        self.simulation.acknowledged(self.received_in.pop(packet_id, -1))
        number = self.incoming.pop(packet_id, None)
        self.note(f"is done with {number} as {packet_id}")
        self.mqtt.feed(mqtt.pubcomp(packet_id))

    def check(self, contents: Contents) -> list[str]:
        found: list[str] = []
        for delivery in contents.queues.get(self.backlog, []):
            if delivery.qos == 2:
                known = self.incoming.get(delivery.packet_id)
                if known is None and delivery.number in self.completed:
                    found.append(f"{self.name} would get {delivery.number} at QoS 2 twice")
                elif known is not None and known != delivery.number:
                    found.append(f"{self.name} would take {delivery.number} for {known}")
        return found


#: as a filter, and as the pattern that the model has for it
SHARED = ("$share/some/a/+", "a.*")


class SharingActor(MqttActor):
    """A client whose only subscription is one that it shares with others."""

    ENDS = 0.4

    def subscribe(self, topic_filter: str = "", qos: int = 1) -> None:
        packet_id = self._next_packet_id()
        self.note(f"subscribes to {SHARED[0]}")
        self.reference.join_share(SHARED[1], self.name)
        self.waiting[0x90, packet_id] = self.write_batch
        self.mqtt.subscribe(SHARED[0], 1, packet_id, retained=False)

    def unsubscribe(self, topic_filter: str = "") -> None:
        packet_id = self._next_packet_id()
        self.note(f"unsubscribes from {SHARED[0]}")
        members = self.reference.shares.get(SHARED[1], set())
        self.waiting[0xB0, packet_id] = self.write_batch if self.name in members else -1
        self.reference.leave_shares(self.name)
        self.mqtt.feed(mqtt.unsubscribe(SHARED[0], packet_id, self.version))
