"""PUBLISH (3.3): what a packet says, and which packets say the same as the one before.

``PublishDecoder`` decodes one packet. A publisher mostly repeats itself, so ``RepeatedPublish``
recognises packets that begin with the same bytes: of each of them the decoder would say the same,
but for payload and packet identifier.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

from trivium.common.native import IS_INTERPRETED, lies_at
from trivium.common.pieces import Pieces
from trivium_mqtt.codec.properties import (
    IN_PUBLISH,
    PacketProperties,
    check_message_properties,
    read_properties,
)
from trivium_mqtt.codec.reasons import MalformedPacket, ProtocolError
from trivium_mqtt.codec.wire import read_fixed_header, read_varint, varint_size

#: First bytes of PUBLISH without DUP and RETAIN, by QoS (3.3.1).
QOS_0: Final = 0x30
QOS_1: Final = 0x32
QOS_2: Final = 0x34

#: QoS, DUP and RETAIN in the first byte (3.3.1.1 to 3.3.1.3).
_QOS: Final = 0x06
_DUP: Final = 0x08
_RETAIN: Final = 0x01

#: What tells where the payload begins lies in this many bytes: fixed header (5 at most), topic name
#: with its length, packet identifier, length of the properties (4 at most).
_MAX_START: Final = 5 + 2 + 65_535 + 2 + 4

#: Bytes of properties that a decoder remembers, for each of its clients, at most.
_REMEMBERED_PROPERTIES: Final = 1024


class Publish:
    """What one PUBLISH says. Its payload is ``data[payload_at:end]`` of what was decoded."""

    def __init__(self, qos: int, retain: bool, topic: bytes, packet_id: int) -> None:
        self.qos = qos
        self.retain = retain
        #: as it came, unchecked: empty where a topic alias stands for it
        self.topic = topic
        #: 0 at QoS 0
        self.packet_id = packet_id
        #: None where there is none
        self.properties: PacketProperties | None = None
        self.payload_at = 0


class PublishDecoder:
    """Decodes the PUBLISH packets of one client.

    It remembers the properties of the last one: the same bytes are not decoded again.
    """

    def __init__(self, is_v5: bool) -> None:
        self._is_v5 = is_v5
        self._raw_properties = b""
        self._properties: PacketProperties | None = None

    def payload_at(self, packet: Pieces) -> int:
        """Where the payload begins in the packet that ``packet`` holds, as far as its lengths tell.

        0 when it is no PUBLISH, or when ``decode`` will find fault with it.
        """
        data = packet.head(_MAX_START)
        size = len(data)
        if data[0] & 0xF0 != QOS_0:
            return 0
        body, _ = read_fixed_header(data, 0, size)
        if body + 2 > size:
            return 0
        at = body + 2 + (data[body] << 8 | data[body + 1])
        if data[0] & _QOS:
            at += 2
        if not self._is_v5:
            return at
        try:
            length = read_varint(data, at, size)
        except MalformedPacket:
            return 0
        return at + varint_size(length) + length

    def decode(self, first: int, data: bytes, at: int, end: int) -> Publish:
        """The packet that begins with ``first`` and has the body ``data[at:end]``.

        Raises RemoteError. What the topic name may be is not looked at.
        """
        qos = first >> 1 & 3
        if qos == 3:
            raise MalformedPacket("QoS 3 (MQTT-3.3.1-4)")
        if qos == 0 and first & _DUP:
            raise MalformedPacket("DUP with QoS 0 (MQTT-3.3.1-2)")
        if at + 2 > end:
            raise MalformedPacket("PUBLISH without a topic name")
        topic_end = at + 2 + (data[at] << 8 | data[at + 1])
        packet_id = 0
        after = topic_end
        if qos > 0:
            after += 2
            if after > end:
                raise MalformedPacket("PUBLISH ends within its variable header")
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            if packet_id == 0:
                raise ProtocolError("packet identifier 0 (MQTT-2.2.1-3)")
        elif after > end:
            raise MalformedPacket("PUBLISH ends within its topic name")
        publish = Publish(qos, first & _RETAIN != 0, data[at + 2 : topic_end], packet_id)
        if self._is_v5:
            if after < end and data[after] == 0:
                after += 1
            else:
                found = self._read_properties(data, after, end)
                publish.properties = found
                after = found.end
        publish.payload_at = after
        return publish

    def _read_properties(self, data: bytes, at: int, end: int) -> PacketProperties:
        raw = self._raw_properties
        found = self._properties
        if found is not None and data.startswith(raw, at) and at + len(raw) <= end:
            found.end = at + len(raw)
            return found
        found = read_properties(data, at, end, IN_PUBLISH)
        check_message_properties(found)
        if found.end - at <= _REMEMBERED_PROPERTIES:
            self._raw_properties = data[at : found.end]
            self._properties = found
        return found


class RepeatedPublish:
    """Recognises packets that repeat an earlier one: same topic and QoS, nothing special.

    Special are DUP, RETAIN and properties. At QoS 0 the payload may be of any size. At QoS 1 and 2
    it is as large as that of the earlier packet.
    """

    def __init__(self, is_v5: bool, maximum_packet: int) -> None:
        #: QoS of the packets that are recognised
        self.qos = 0
        #: bytes of each at QoS 1 and 2
        self.size = 0
        #: where the payload begins in each at QoS 1 and 2; at QoS 0, in its body
        self.payload_at = 0
        #: at QoS 0: bytes before the payloads, of all packets of the last run
        self.head_bytes: i64 = 0
        self._is_v5 = is_v5
        self._maximum_packet = maximum_packet
        # The earlier packet up to the end of its topic, at QoS 0 up to its payload. Empty: none.
        self._prefix = b""
        # The same without the fixed header.
        self._behind_header = b""

    def remember(self, data: bytes, start: int, body: int, end: int, publish: Publish) -> bool:
        """Recognise packets like ``data[start:end]``, whose body begins at ``body``.

        False, and nothing is changed, when there is something special about it.
        """
        first = data[start]
        if (first != QOS_0 and first != QOS_1 and first != QOS_2) or publish.properties is not None:
            return False
        self.qos = publish.qos
        self.size = end - start
        if publish.qos == 0:
            stop = publish.payload_at
            self.payload_at = stop - body
        else:
            stop = body + 2 + len(publish.topic)
            self.payload_at = publish.payload_at - start
        self._prefix = data[start:stop]
        self._behind_header = data[body:stop]
        return True

    def run(self, data: bytes, at: int, end: int, most: int) -> tuple[int, int]:
        """How far such packets follow one another from ``at`` on, and how many: whole ones.

        ``data[at:end]`` is what was read, ``most`` as many as are wanted. (``at``, 0) for none.
        """
        if not self._prefix:
            return at, 0
        if self.qos:
            return self._run_with_identifiers(data, at, end, most)
        return self._run_at_qos_0(data, at, end, most)

    def _run_at_qos_0(self, data: bytes, at: int, end: int, most: int) -> tuple[int, int]:
        prefix = self._prefix
        prefix_size = len(prefix)
        behind_header = self._behind_header
        behind_size = len(behind_header)
        size = self.size
        count = 0
        other_heads = 0
        while True:
            while (
                count < most
                and at + size <= end
                # Interpreted, the call would be a third of what a packet costs.
                and (
                    data[at : at + prefix_size] == prefix
                    if IS_INTERPRETED
                    else lies_at(data, at, prefix)
                )
            ):
                at += size
                count += 1
            # A packet of another size: its fixed header (2.1) decides where the topic must stand.
            if count >= most or at + 2 > end or data[at] != QOS_0:
                break
            remaining = data[at + 1]
            body = at + 2
            if remaining >= 0x80:
                # Those with 16 KiB or more are rare, and not worth it.
                if body >= end or data[body] == 0 or data[body] >= 0x80:
                    break
                remaining = remaining & 0x7F | data[body] << 7
                body += 1
            after = body + remaining
            if (
                remaining < behind_size
                or after > end
                or after - at > self._maximum_packet
                or not lies_at(data, body, behind_header)
            ):
                break
            other_heads += body - at + behind_size - prefix_size
            at = after
            count += 1
        self.head_bytes = count * prefix_size + other_heads
        return at, count

    def _run_with_identifiers(self, data: bytes, at: int, end: int, most: int) -> tuple[int, int]:
        prefix = self._prefix
        size: i64 = self.size
        packet_id_at: i64 = len(prefix)
        is_v5 = self._is_v5
        place: i64 = at
        stop: i64 = end
        limit: i64 = most
        count: i64 = 0
        while count < limit and place + size <= stop and lies_at(data, place, prefix):
            behind: i64 = place + packet_id_at
            if read_i16_be(data, behind) == 0 or (is_v5 and data[behind + 2] != 0):
                break
            place += size
            count += 1
        return place, count
