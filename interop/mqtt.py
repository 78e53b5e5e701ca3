"""paho-mqtt for tests: every callback ends in a queue that a test can wait on."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from interop.brokers import LOOPBACK

V31: Final = MQTTProtocolVersion.MQTTv31
V311: Final = MQTTProtocolVersion.MQTTv311
V5: Final = MQTTProtocolVersion.MQTTv5
#: How long anything may take before the test fails; only failures take as long.
PATIENCE: Final = 20.0
#: seconds
HOUR: Final = 3600

T = TypeVar("T")


@dataclass
class ConnAck:
    """What the server answered to CONNECT."""

    session_present: bool
    reason: ReasonCode
    properties: Properties | None


def properties(packet: int, **values: Any) -> Properties:
    """MQTT 5 properties of a packet type by paho's names, e.g. ``MessageExpiryInterval=5``."""
    made: Properties = cast("Any", Properties)(packet)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def given(found: Properties | None) -> Any:
    """Received properties, whose names paho makes at run time."""
    assert found is not None
    return found


def publish_properties(**values: Any) -> Properties:
    return properties(PacketTypes.PUBLISH, **values)


class Mqtt:
    """One paho client, connected until ``close``. Use as a context manager.

    ``session`` keeps the session for that many seconds (MQTT 5) or for good (3.1.1). Without
    ``acknowledges`` the test acknowledges each message with ``ack``.
    """

    def __init__(
        self,
        port: int,
        client_id: str = "",
        *,
        version: MQTTProtocolVersion = V5,
        session: int = 0,
        clean: bool | None = None,
        keepalive: int = 60,
        acknowledges: bool = True,
        will: tuple[str, bytes, int, bool] | None = None,
        will_properties: Properties | None = None,
        inflight: int = 1000,
        transport: Literal["tcp", "websockets"] = "tcp",
        connects: bool = True,
        **connect_properties: Any,
    ) -> None:
        self.version = version
        self.port = port
        self.keepalive = keepalive
        is_clean = session == 0 if clean is None else clean
        self.client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=is_clean if version != V5 else None,
            protocol=version,
            manual_ack=not acknowledges,
            reconnect_on_failure=False,
            transport=transport,
        )
        self.client.max_inflight_messages_set(inflight)
        self.client.max_queued_messages_set(0)
        if will is not None:
            topic, payload, qos, retain = will
            self.client.will_set(topic, payload, qos, retain, will_properties)
        self._clean_start = is_clean
        self._connect_properties = connect_properties
        if version == V5 and session:
            connect_properties["SessionExpiryInterval"] = session
        self._connacks: queue.Queue[ConnAck | None] = queue.Queue()
        self._is_answered = False
        self.received: queue.Queue[MQTTMessage] = queue.Queue()
        self.disconnects: queue.Queue[tuple[ReasonCode, DisconnectFlags]] = queue.Queue()
        self._answers: dict[int, queue.Queue[list[ReasonCode]]] = {}
        self._puback: dict[int, tuple[ReasonCode, Properties | None]] = {}
        self._lock = threading.Lock()
        client = self.client
        client.on_connect = self._on_connect
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_answer
        client.on_unsubscribe = self._on_answer
        client.on_publish = self._on_publish
        if connects:
            self.connack = self.connect()

    def connect(self) -> ConnAck:
        """Connect and wait for CONNACK. Raises OSError when the connection is lost before."""
        self._is_answered = False
        if self.version == V5:
            self.client.connect(
                LOOPBACK,
                self.port,
                self.keepalive,
                clean_start=self._clean_start,
                properties=properties(PacketTypes.CONNECT, **self._connect_properties),
            )
        else:
            self.client.connect(LOOPBACK, self.port, self.keepalive)
        self.client.loop_start()
        connack = take(self._connacks, "CONNACK")
        if connack is None:
            self.client.loop_stop()
            raise ConnectionResetError("the connection was lost before CONNACK")
        return connack

    def resume(self) -> ConnAck:
        """Connect again, now that the broker is back.

        paho must not try while it is away: from the second failed attempt on it takes QoS 2
        messages that it has released for unsent ones, and publishes them once more.
        """
        self.client.loop_stop()
        return self.connect()

    def __enter__(self) -> Mqtt:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, reason: ReasonCode | None = None, **values: Any) -> None:
        """DISCONNECT and end paho's thread."""
        given = properties(PacketTypes.DISCONNECT, **values) if values else None
        self.client.disconnect(reason, given)
        self.client.loop_stop()

    def drop(self) -> None:
        """Lose the connection without DISCONNECT."""
        connection = self.client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        self.client.loop_stop()

    # Callbacks

    def _on_connect(
        self,
        _client: Client,
        _data: Any,
        flags: ConnectFlags,
        reason: ReasonCode,
        given: Properties | None,
    ) -> None:
        self._is_answered = True
        self._connacks.put(ConnAck(flags.session_present, reason, given))

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        self.received.put(message)

    def _on_disconnect(
        self,
        _client: Client,
        _data: Any,
        flags: DisconnectFlags,
        reason: ReasonCode,
        _given: Properties | None,
    ) -> None:
        self.disconnects.put((reason, flags))
        if not self._is_answered:
            self._connacks.put(None)

    def _on_answer(
        self,
        _client: Client,
        _data: Any,
        packet_id: int,
        reasons: list[ReasonCode],
        _given: Properties | None,
    ) -> None:
        self._answer(packet_id).put(reasons)

    def _on_publish(
        self,
        _client: Client,
        _data: Any,
        packet_id: int,
        reason: ReasonCode,
        given: Properties | None,
    ) -> None:
        self._puback[packet_id] = (reason, given)

    def _answer(self, packet_id: int) -> queue.Queue[list[ReasonCode]]:
        with self._lock:
            return self._answers.setdefault(packet_id, queue.Queue())

    # Packets

    def subscribe(
        self, topic_filter: str, qos: int = 0, *, identifier: int | None = None, **options: Any
    ) -> int:
        """Subscribe and wait for SUBACK; its reason code. ``options`` are SubscribeOptions."""
        if self.version == V5:
            sent = None
            if identifier is not None:
                sent = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=identifier)
            _, packet_id = self.client.subscribe(
                topic_filter, options=SubscribeOptions(qos, **options), properties=sent
            )
        else:
            _, packet_id = self.client.subscribe(topic_filter, qos)
        assert packet_id is not None
        (reason,) = take(self._answer(packet_id), "SUBACK")
        return int(reason.value)

    def unsubscribe(self, topic_filter: str) -> list[int]:
        """Unsubscribe and wait for UNSUBACK; its reason codes (none in 3.1.1)."""
        _, packet_id = self.client.unsubscribe(topic_filter)
        assert packet_id is not None
        return [int(reason.value) for reason in take(self._answer(packet_id), "UNSUBACK")]

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 1,
        retain: bool = False,
        **values: Any,
    ) -> int:
        """Publish and wait for the acknowledgement; its reason code. ``values`` are properties."""
        info = self.publish_later(topic, payload, qos, retain, **values)
        info.wait_for_publish(PATIENCE)
        assert info.is_published(), f"no acknowledgement of {payload!r}"
        return int(self._puback[info.mid][0].value) if info.mid in self._puback else 0

    def publish_later(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 1,
        retain: bool = False,
        **values: Any,
    ) -> MQTTMessageInfo:
        """Publish without waiting."""
        given = publish_properties(**values) if values else None
        return self.client.publish(topic, payload, qos, retain, given)

    def receive(self) -> MQTTMessage:
        """Wait for the next message."""
        return take(self.received, "PUBLISH")

    def receive_payloads(self, count: int) -> list[bytes]:
        return [bytes(self.receive().payload) for _ in range(count)]

    def ack(self, message: MQTTMessage) -> None:
        """Acknowledge a message of a client that does not by itself."""
        self.client.ack(message.mid, message.qos)

    def disconnected(self) -> int:
        """Wait until the connection is gone; the reason code."""
        return int(take(self.disconnects, "the end of the connection")[0].value)


def take(source: queue.Queue[T], what: str) -> T:
    """The next item of a queue; fails the test when nothing comes."""
    try:
        return source.get(timeout=PATIENCE)
    except queue.Empty:
        raise AssertionError(f"{what} did not come in {PATIENCE:.0f} s") from None


def eventually(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something that has no event to wait on."""
    waiting = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        waiting.wait(0.02)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def expect_nothing_before(client: Mqtt, publisher: Mqtt, topic: str) -> None:
    """Check that the next message which ``client`` gets is one that is published now."""
    publisher.publish(topic, b"marker")
    message = client.receive()
    assert (message.topic, bytes(message.payload)) == (topic, b"marker")
