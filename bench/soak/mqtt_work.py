"""MQTT 5 by paho: kept sessions, shared subscriptions, retained messages, wills; WebSockets."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, Literal, cast

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bench.soak.accounts import Account
from bench.soak.judges import Verdict, judge_promises
from bench.soak.site import LOOK_SECONDS, PATIENCE, Site, until
from bench.soak.works import Work, pause
from trivium.cli.network import LOOPBACK, Network

#: Seconds for which a session is kept: beyond the longest soak, and a moment.
KEPT: Final = 7 * 86_400
MOMENT: Final = 2
STATES: Final = 200
_STATE: Final = "soak/state/"
_ABRUPT: Final = 0.5


def _properties(packet: int, **values: Any) -> Properties:
    made: Properties = cast("Any", Properties)(packet)
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Paho:
    """A paho client in its own thread, which connects again; what happens waits to be taken."""

    def __init__(
        self,
        port: int,
        client_id: str,
        *,
        ca: str = "",
        transport: Literal["tcp", "websockets"] = "tcp",
        subscription: tuple[str, int] | None = None,
        will: tuple[str, bytes] | None = None,
        expiry: int = KEPT,
        reconnects: bool = True,
    ) -> None:
        self._port = port
        self._expiry = expiry
        self._subscription = subscription
        self.is_connected = False
        self.acknowledged: deque[int] = deque()
        self.received: deque[tuple[str, bytes, bool]] = deque()
        self.client = client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            transport=transport,
            reconnect_on_failure=reconnects,
        )
        if transport == "websockets":
            client.ws_set_options(path="/mqtt")
        if ca:
            client.tls_set_context(ssl.create_default_context(cafile=ca))
        if will is not None:
            client.will_set(*will, qos=1)
        client.reconnect_delay_set(1, 2)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = lambda _client, _data, mid, *_: self.acknowledged.append(mid)
        client.on_message = self._on_message

    def _on_connect(self, *_: object) -> None:
        self.is_connected = True
        if self._subscription is not None:
            self.client.subscribe(*self._subscription)

    def _on_disconnect(self, *_: object) -> None:
        self.is_connected = False

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        self.received.append((message.topic, bytes(message.payload), message.dup))

    async def open(self) -> None:
        """Connect, and wait for CONNACK. Raises OSError."""
        properties = _properties(PacketTypes.CONNECT, SessionExpiryInterval=self._expiry)
        await asyncio.to_thread(
            self.client.connect, LOOPBACK, self._port, 60, properties=properties
        )
        self.client.loop_start()
        if not await until(lambda: self.is_connected, PATIENCE):
            await self.close()
            raise TimeoutError("no CONNACK")

    async def close(self) -> None:
        """Say goodbye, if it is connected, and end."""
        self.client.disconnect()
        await asyncio.to_thread(self.client.loop_stop)


class Sensors(Work):
    """Readings at QoS 1 and 2 that two members of a shared subscription take, and states."""

    def __init__(self, site: Site, draw: random.Random, rate: float) -> None:
        super().__init__(site, draw, rate)
        self.accounts = [Account("mqtt5-1"), Account("mqtt5-2", is_exact=True)]
        ca = "" if site.broker.client_tls is None else site.broker.client_tls.ca
        share = ("$share/soak/soak/v5/#", 2)
        self._publisher = Paho(site.ports["mqtt"], "soak-v5-publisher")
        self._members = [
            Paho(site.ports["ws"], "soak-v5-a", transport="websockets", subscription=share),
            Paho(site.ports["wss"], "soak-v5-b", transport="websockets", subscription=share, ca=ca),
        ]
        self._under_way: dict[int, tuple[Account, int]] = {}
        self._states = Account("state")
        #: the topics of states under way; by topic, the last that was acknowledged, and found
        self._topics: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        self._found: dict[int, int] = {}

    async def prepare(self) -> None:
        for client in (self._publisher, *self._members):
            await client.open()
        self.keep(self._take)

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if len(self._under_way) < 1000:
                self._publish()
            await pause(stop, 1 / self.rate)

    def _publish(self) -> None:
        kind = self.draw.randrange(3)
        if kind == 2:
            account, qos = self._states, 1
            topic_number = self.draw.randrange(STATES)
            topic = f"{_STATE}{topic_number}"
            self._topics[account.sent] = topic_number
        else:
            account, qos = self.accounts[kind], kind + 1
            topic = f"soak/v5/{self.draw.randrange(100)}"
        number = account.begin()
        properties = _properties(
            PacketTypes.PUBLISH,
            UserProperty=("soak", str(number)),
            ContentType="text/plain",
        )
        sent = self._publisher.client.publish(
            topic, account.payload(number), qos, retain=kind == 2, properties=properties
        )
        self._under_way[sent.mid] = (account, number)

    async def _take(self) -> None:
        await asyncio.sleep(LOOK_SECONDS)
        acknowledged = self._publisher.acknowledged
        while acknowledged:
            account, number = self._under_way.pop(acknowledged.popleft())
            account.acknowledged.add(number)
            if account is self._states:
                topic = self._topics.pop(number)
                self._acknowledged[topic] = max(number, self._acknowledged.get(topic, -1))
        for member in self._members:
            while member.received:
                _, payload, _ = member.received.popleft()
                exact = self.accounts[1]
                if exact.number_of(payload) is not None:
                    exact.take(payload)
                else:
                    # A publisher sends again at QoS 1 what was under way: copies are its own.
                    self.accounts[0].take(payload, is_redelivered=True)

    async def settle(self) -> None:
        await until(lambda: not self._under_way, PATIENCE)
        await super().settle()
        await self._look_at_states()

    async def _look_at_states(self) -> None:
        """Subscribe, and take the states until all are there that must be."""
        reader = Paho(
            self.site.broker.ports["mqtt"],
            "soak-v5-reader",
            subscription=(f"{_STATE}#", 1),
            expiry=0,
        )
        await reader.open()
        await until(lambda: self._has_states(reader), PATIENCE)
        await reader.close()

    def _has_states(self, reader: Paho) -> bool:
        """Take what the reader got; whether there is a state for each topic that must have one."""
        while reader.received:
            topic, payload, _ = reader.received.popleft()
            number = self._states.number_of(payload)
            if number is None:
                self._states.unknown += 1
            else:
                self._found[int(topic.removeprefix(_STATE))] = number
        return self._found.keys() >= self._acknowledged.keys()

    def verdicts(self) -> Iterator[Verdict]:
        yield from super().verdicts()
        # Whoever subscribes gets the last state of a topic, or one that was sent later.
        lost = [
            f"{_STATE}{topic}"
            for topic, number in self._acknowledged.items()
            if self._found.get(topic, -1) < number
        ]
        report = {
            "acknowledged": len(self._acknowledged),
            "delivered": len(self._found),
            "lost": len(lost),
            "unknown": self._states.unknown,
            "gaps": {"states": lost[:5]} if lost else {},
        }
        yield judge_promises("mqtt5-retained", report)

    async def close(self) -> None:
        await super().close()
        for client in (self._publisher, *self._members):
            await client.close()


class Wills(Work):
    """Clients that die, whose wills must come, and clients that leave, whose wills must not."""

    def __init__(self, site: Site, draw: random.Random, rate: float) -> None:
        super().__init__(site, draw, rate)
        self._wills = Account("wills")
        self.accounts = [self._wills]
        self._witness = Paho(site.ports["mqtt"], "soak-witness", subscription=("soak/wills", 1))

    async def prepare(self) -> None:
        await self._witness.open()
        self.keep(self._take)

    async def run(self, stop: asyncio.Event) -> None:
        await self.repeat(stop, lambda: self._live(stop))

    async def _live(self, stop: asyncio.Event) -> None:
        network = Network()
        network.broker_port = self.site.broker.ports["mqtt"]
        is_abrupt = self.draw.random() < _ABRUPT
        number = self._wills.begin()
        if not is_abrupt:
            self._wills.withdrawn.add(number)
        client = Paho(
            await network.start() if is_abrupt else network.broker_port,
            f"soak-mortal-{number}",
            subscription=("soak/mortals", 1),
            will=("soak/wills", self._wills.payload(number)),
            expiry=MOMENT if number % 2 else 0,
            reconnects=False,
        )
        try:
            await client.open()
            await pause(stop, self.draw.uniform(0.05, 1))
            if is_abrupt:
                if client.is_connected:
                    self._wills.acknowledged.add(number)
                network.cut()
            await client.close()
        finally:
            await network.close()

    async def _take(self) -> None:
        await asyncio.sleep(LOOK_SECONDS)
        while self._witness.received:
            _, payload, is_copy = self._witness.received.popleft()
            self._wills.take(payload, is_redelivered=is_copy)

    async def close(self) -> None:
        await super().close()
        await self._witness.close()
