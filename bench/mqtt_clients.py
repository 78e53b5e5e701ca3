"""MQTT 3.1.1 publisher and subscriber of the load generator, QoS 0, 1 and 2."""

from __future__ import annotations

from typing import Final

import numpy as np

from bench import mqtt_frames
from bench.endpoints import (
    Address,
    Connection,
    PeerError,
    Publisher,
    Receiver,
    closed_on_error,
    connect,
    receive_exactly,
)
from bench.frames import FrameBlock, Rows, layout, rows_per_batch
from bench.mqtt_frames import ACKNOWLEDGEMENT_FIELDS, ACKNOWLEDGEMENT_SIZE, PACKET_ID

_DUP_AND_RETAIN: Final = 0x09
_RUN_LIMIT: Final = 256
"""Frames looked at in one step while QoS 2 packets of two kinds alternate on a connection."""


def open_session(
    address: Address,
    client_id: str,
    keep_alive: int = 0,
    *,
    is_kept: bool = False,
    is_resumed: bool = False,
) -> Connection:
    """Connect with a clean session, or a kept one: a new one, or one that the server has.

    Raises:
        PeerError: the server refused, or has a session when it should not, or the reverse.
    """
    connection = connect(address)
    with closed_on_error(connection):
        connection.sendall(mqtt_frames.connect(client_id, keep_alive, is_kept=is_kept))
        reply = receive_exactly(connection, 4)
        if reply != bytes((mqtt_frames.CONNACK, 2, is_resumed, 0)):
            raise PeerError(f"CONNECT was answered by {reply.hex(' ')}")
    return connection


class MqttPublisher(Publisher):
    """Publishes one topic, or several in turn.

    QoS 0 settles when it is written, QoS 1 by PUBACK, QoS 2 by PUBCOMP.
    """

    def __init__(
        self,
        address: Address,
        client_id: str,
        topic: str,
        qos: int,
        payload: bytes,
        batch: int,
        topics: int = 1,
        *,
        is_retained: bool = False,
    ) -> None:
        frame, fields = mqtt_frames.publish(topic, qos, payload, topics, is_retained=is_retained)
        block = FrameBlock(frame, fields, rows_per_batch(len(frame), batch))
        super().__init__(open_session(address, client_id), block)
        self._qos = qos
        width = mqtt_frames.topic_number_digits(topics)
        self._topics: Rows = np.array([f"{number:0{width}}".encode() for number in range(topics)])
        self._acknowledgements: Rows = np.frombuffer(self.buffer, dtype=np.uint8).reshape(
            -1, ACKNOWLEDGEMENT_SIZE
        )

    def number(self, block: FrameBlock, first: int, count: int) -> None:
        numbers = np.arange(first, first + count)
        if len(self._topics) > 1:
            turns = self._topics[numbers % len(self._topics)]
            block.column(mqtt_frames.TOPIC_NUMBER)[:count] = turns
        if self._qos:
            block.column(PACKET_ID)[:count] = numbers % mqtt_frames.PACKET_IDS + 1
        else:
            self.settled = first + count

    def consume(self, filled: int) -> int:
        rows = self._acknowledgements[: filled // ACKNOWLEDGEMENT_SIZE]
        types = rows[:, 0]
        last = mqtt_frames.PUBACK if self._qos == 1 else mqtt_frames.PUBCOMP
        completed = int(np.count_nonzero(types == last))
        self.settled += completed
        if completed < len(rows):
            received = rows[types == mqtt_frames.PUBREC] if self._qos == 2 else rows[:0]
            if completed + len(received) < len(rows):
                raise PeerError(f"not an acknowledgement: {bytes(self.buffer[:filled])[:32]!r}")
            received[:, 0] = mqtt_frames.PUBREL
            self.write(received.tobytes())
        return len(rows) * ACKNOWLEDGEMENT_SIZE


class MqttSubscriber(Receiver):
    """Receives what one publisher publishes and completes the acknowledgements of its QoS."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        topic: str,
        qos: int,
        payload: bytes,
        receive_bytes: int,
        topics: int = 1,
        *,
        is_kept: bool = False,
        is_resumed: bool = False,
    ) -> None:
        frame, fields = mqtt_frames.publish(topic, qos, payload, topics)
        connection = open_session(address, client_id, is_kept=is_kept, is_resumed=is_resumed)
        topic_filter = topic if topics == 1 else f"{topic}/+"
        if not is_resumed:
            with closed_on_error(connection):
                connection.sendall(mqtt_frames.subscribe(1, topic_filter, qos))
                reply = receive_exactly(connection, 5)
                if reply != bytes((mqtt_frames.SUBACK, 3, 0, 1, qos)):
                    raise PeerError(f"SUBSCRIBE was answered by {reply.hex(' ')}")
        super().__init__(connection, max(receive_bytes, 2 * len(frame)))
        self._qos = qos
        self._size = len(frame)
        self._layout = layout(len(frame), fields)
        self._head = frame[1 : min(offset for _, offset in fields.values())]
        answer = mqtt_frames.PUBACK if qos == 1 else mqtt_frames.PUBREC
        self._answers = self._acknowledgements(answer, len(self.buffer) // len(frame))
        self._completions = self._acknowledgements(mqtt_frames.PUBCOMP, _RUN_LIMIT)

    @staticmethod
    def _acknowledgements(first_byte: int, rows: int) -> FrameBlock:
        return FrameBlock(mqtt_frames.acknowledgement(first_byte), ACKNOWLEDGEMENT_FIELDS, rows)

    def consume(self, filled: int) -> int:
        if self._qos < 2:
            return self._take_publishes(0, filled // self._size)
        position = 0
        while position < filled:
            first = self.buffer[position]
            is_release = first == mqtt_frames.PUBREL
            size = ACKNOWLEDGEMENT_SIZE if is_release else self._size
            count = min((filled - position) // size, _RUN_LIMIT)
            if not count:
                break
            types = np.frombuffer(self.buffer, dtype=np.uint8)[position : position + count * size]
            same = types[::size] == first
            count = count if same.all() else int(same.argmin())
            if is_release:
                self._complete(position, count)
                position += count * size
            else:
                position += self._take_publishes(position, count)
        return position

    def _take_publishes(self, start: int, count: int) -> int:
        """Take ``count`` PUBLISH packets that begin at ``start``; return their size in bytes."""
        if not count:
            return 0
        end = start + count * self._size
        for position in (start, end - self._size):
            self._require_publish(position)
        rows = np.frombuffer(self.buffer, dtype=self._layout, count=count, offset=start)
        self.observe(rows)
        if self._qos:
            self._answers.column(PACKET_ID)[:count] = rows[PACKET_ID]
            self.write(self._answers.take(count))
        return end - start

    def _require_publish(self, position: int) -> None:
        kind = self.buffer[position] & ~_DUP_AND_RETAIN
        head = self.buffer[position + 1 : position + 1 + len(self._head)]
        if kind != mqtt_frames.PUBLISH | self._qos << 1 or head != self._head:
            found = bytes(self.buffer[position : position + 32])
            raise PeerError(f"not the expected PUBLISH: {found!r}")

    def _complete(self, start: int, count: int) -> None:
        """Answer ``count`` PUBREL packets that begin at ``start``."""
        released = np.frombuffer(
            self.buffer,
            dtype=layout(ACKNOWLEDGEMENT_SIZE, ACKNOWLEDGEMENT_FIELDS),
            count=count,
            offset=start,
        )
        self._completions.column(PACKET_ID)[:count] = released[PACKET_ID]
        self.write(self._completions.take(count))
