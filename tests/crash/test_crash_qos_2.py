"""`kill -9` of a real broker amid QoS 2 traffic: nothing lost, nothing twice, in order."""

from __future__ import annotations

import select
import socket
import struct
from typing import Self

from interop.brokers import TriviumProcess
from tests.support.mqtt import connect, pubcomp, publish, pubrec, pubrel, split_first, subscribe

PUBLISHED = 0
RECEIVED = 1


class Peer:
    """A client with a kept session and a memory of its own, as MQTT asks of clients."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.socket = socket.socket()
        self.buffer = b""
        self.present = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def connect(self, port: int) -> None:
        self.socket.close()
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.buffer = b""
        self.send(connect(self.name, 4, clean=False))
        first, body = self.wait_packet()
        assert (first, body[1]) == (0x20, 0)
        self.present = body[0]

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def wait_packet(self) -> tuple[int, bytes]:
        while True:
            try:
                found, self.buffer = split_first(self.buffer)
            except (AssertionError, IndexError):
                data = self.socket.recv(65_536)
                if not data:
                    raise ConnectionError("the broker is gone") from None
                self.buffer += data
            else:
                return found

    def has_packet(self) -> bool:
        try:
            split_first(self.buffer)
        except (AssertionError, IndexError):
            return bool(select.select([self.socket], [], [], 0)[0])
        return True


class Publisher(Peer):
    def __init__(self, total: int) -> None:
        super().__init__("publisher")
        self.total = total
        self.next = 0
        #: packet identifier to payload and state
        self.under_way: dict[int, tuple[bytes, int]] = {}

    def resume(self) -> None:
        for number, (payload, state) in self.under_way.items():
            self.send(publish("t", payload, 2, number, dup=True) if not state else pubrel(number))

    def fill(self) -> None:
        while len(self.under_way) < 20 and self.next < self.total:
            number = self.next % 65_535 + 1
            payload = b"%d" % self.next
            self.next += 1
            self.under_way[number] = (payload, PUBLISHED)
            self.send(publish("t", payload, 2, number))

    def handle(self) -> None:
        first, body = self.wait_packet()
        (number,) = struct.unpack(">H", body)
        if first == 0x50:
            self.under_way[number] = (self.under_way[number][0], RECEIVED)
            self.send(pubrel(number))
        else:
            assert first == 0x70
            del self.under_way[number]


class Subscriber(Peer):
    def __init__(self) -> None:
        super().__init__("subscriber")
        self.payloads: list[bytes] = []
        self.received: set[int] = set()

    def handle(self) -> None:
        first, body = self.wait_packet()
        if first == 0x62:
            (number,) = struct.unpack(">H", body)
            self.received.discard(number)
            self.send(pubcomp(number))
            return
        assert first & 0xF6 == 0x34
        (number,) = struct.unpack(">H", body[3:5])
        if number not in self.received:
            self.received.add(number)
            self.payloads.append(body[5:])
        self.send(pubrec(number))


def exchange(publisher: Publisher, subscriber: Subscriber, enough: int) -> None:
    """Let both work until the subscriber has got ``enough`` messages."""
    while len(subscriber.payloads) < enough:
        publisher.fill()
        ready = [peer for peer in (publisher, subscriber) if peer.has_packet()]
        if not ready:
            select.select([publisher.socket, subscriber.socket], [], [], 10)
        for peer in ready:
            peer.handle()


def test_qos_2_is_exactly_once_over_kills(broker: TriviumProcess) -> None:
    total = 1200
    port = broker.ports["mqtt"]
    publisher = Publisher(total)
    subscriber = Subscriber()
    with publisher, subscriber:
        subscriber.connect(port)
        subscriber.send(subscribe("t", 2))
        assert subscriber.wait_packet() == (0x90, b"\x00\x01\x02")
        publisher.connect(port)
        for enough in (1, 137, 333, 790, total):
            exchange(publisher, subscriber, enough)
            broker.restart()
            publisher.connect(port)
            subscriber.connect(port)
            assert publisher.present == subscriber.present == 1
            publisher.resume()
        while publisher.under_way:
            publisher.handle()
        while subscriber.received:
            subscriber.handle()
        assert subscriber.payloads == [b"%d" % number for number in range(total)]
