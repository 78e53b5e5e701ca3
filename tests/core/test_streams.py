"""Streams: offsets, partitions, visibility, readers, restart."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest

from tests.support.core import broker_of, message, open_broker, open_vhost
from tests.support.metrics import metrics_text
from tests.support.steps import Compared, comparisons
from tests.support.storages import HeldStorage
from trivium.errors import AccessRefused, NotFound, PreconditionFailed
from trivium.messages.message import (
    PROTOCOL_NONE,
    Address,
    Message,
    Properties,
    PropertyCodec,
    register_codec,
)
from trivium.routing.exchanges import ACCEPTED, Binding
from trivium.runtime.broker import Broker
from trivium.storage.base import Log
from trivium.storage.memory import MemoryStorage
from trivium.streams.compression import CODECS
from trivium.streams.record_encoder import PLAIN_MESSAGE
from trivium.streams.record_layout import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD
from trivium.streams.records import KEY, PAYLOAD, RecordBatch
from trivium.streams.stream import (
    BATCH_RECORDS,
    MEMO_HEADER_BYTES,
    MEMO_SIZE,
    Partition,
    Stream,
    StreamReader,
    partition_of,
)
from trivium.vhost.extending import add_partitions
from trivium.vhost.policies import Policy
from trivium.vhost.virtual_host import VirtualHost

PROTOCOL = 200


class KeyCodec(PropertyCodec):
    """The header is the key."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, header: bytes) -> Properties:
        self.decoded += 1
        return Properties(key=header)


@pytest.fixture
def codec() -> KeyCodec:
    made = KeyCodec()
    register_codec(PROTOCOL, made)
    return made


class Reader(StreamReader):
    def __init__(self) -> None:
        self.moved = 0
        self.gone = 0

    def watermark_moved(self, partition: Partition) -> None:
        self.moved += 1

    def stream_deleted(self, partition: Partition) -> None:
        self.gone += 1


@pytest.fixture
def storage() -> HeldStorage:
    return HeldStorage()


@pytest.fixture
def broker(storage: HeldStorage) -> Broker:
    return open_broker(storage)


@pytest.fixture
def stream(broker: Broker) -> Stream:
    return broker.vhosts["/"].declare_stream("s", 1)


def payloads(partition: Partition, offset: int = 0, max_bytes: int = 1 << 30) -> list[bytes]:
    found: list[bytes] = []
    for _, batch in partition.read(offset, max_bytes):
        view = RecordBatch(batch)
        found += [view.binary(PAYLOAD, row) or b"" for row in range(view.count)]
    return found


def test_a_turn_makes_one_batch_per_partition(broker: Broker, stream: Stream) -> None:
    for n in range(3):
        stream.accept(message(b"%d" % n))
    assert stream.partitions[0].next_offset == 0
    broker.end_turn()
    assert stream.partitions[0].next_offset == 3
    assert len(stream.partitions[0].log) == 1


def test_accept_returns_the_write_batch_that_makes_it_durable(
    broker: Broker, storage: HeldStorage, stream: Stream
) -> None:
    assert stream.accept(message(b"1")) == storage.write_batch
    before = storage.write_batch
    broker.end_turn()
    assert storage.write_batch == before + 1


def test_transient_messages_are_kept_too(broker: Broker, stream: Stream) -> None:
    assert stream.accept(message(b"1", persistent=False, mode=0)) > ACCEPTED


def test_in_memory_nothing_is_waited_for() -> None:
    broker = open_broker()
    stream = broker.vhosts["/"].declare_stream("s", 1)
    assert stream.accept(message(b"1")) == ACCEPTED
    broker.end_turn()
    assert payloads(stream.partitions[0]) == [b"1"]


def test_readers_see_only_durable_records(
    broker: Broker, storage: HeldStorage, stream: Stream
) -> None:
    partition = stream.partitions[0]
    stream.accept(message(b"1"))
    broker.end_turn()
    assert (partition.high_watermark, partition.next_offset) == (0, 1)
    assert payloads(partition) == []
    storage.complete()
    assert partition.high_watermark == 1
    assert payloads(partition) == [b"1"]


def test_the_watermark_stops_at_the_durable_write_batch(
    broker: Broker, storage: HeldStorage, stream: Stream
) -> None:
    partition = stream.partitions[0]
    for n in range(3):
        stream.accept(message(b"%d" % n))
        broker.end_turn()
    partition.write_batch_durable(storage.write_batch - 2)
    assert payloads(partition) == [b"0", b"1"]
    storage.complete()
    assert payloads(partition) == [b"0", b"1", b"2"]


def test_a_waiting_reader_is_told_once_when_the_watermark_moves(
    broker: Broker, storage: HeldStorage, stream: Stream
) -> None:
    reader, other = Reader(), Reader()
    partition = stream.partitions[0]
    partition.wait(reader)
    partition.wait(other)
    partition.cancel(other)
    stream.accept(message(b"1"))
    broker.end_turn()
    assert reader.moved == 0
    storage.complete()
    stream.accept(message(b"2"))
    broker.end_turn()
    storage.complete()
    assert (reader.moved, other.moved) == (1, 0)


def test_read_starts_with_the_batch_that_holds_the_offset(
    broker: Broker, storage: HeldStorage, stream: Stream
) -> None:
    for turn in (b"abc", b"de", b"f"):
        for letter in turn:
            stream.accept(message(bytes([letter])))
        broker.end_turn()
    storage.complete()
    partition = stream.partitions[0]
    assert [base for base, _ in partition.read(2, 1 << 20)] == [0, 3, 5]
    assert [base for base, _ in partition.read(3, 1 << 20)] == [3, 5]
    assert [base for base, _ in partition.read(0, 1)] == [0]
    assert partition.read(6, 1 << 20) == []


def test_a_large_turn_is_cut_into_batches(
    broker: Broker, storage: HeldStorage, stream: Stream
) -> None:
    for _ in range(BATCH_RECORDS + 1):
        stream.accept(message(b""))
    stream.accept(message(bytes(1 << 20)))
    stream.accept(message(b"end"))
    broker.end_turn()
    storage.complete()
    partition = stream.partitions[0]
    bases = [base for base, _ in partition.read(0, 1 << 30)]
    assert bases == [0, BATCH_RECORDS, BATCH_RECORDS + 2]
    assert partition.high_watermark == BATCH_RECORDS + 3


def test_messages_put_into_streams_are_counted(broker: Broker, stream: Stream) -> None:
    stream.accept(message(b"1"))
    broker.vhosts["/"].declare_stream("t", 1).accept(message(b"2"))
    lines = metrics_text(broker).splitlines()
    (line,) = [line for line in lines if line.startswith("trivium_stream_messages_total ")]
    assert float(line.split()[1]) == 2


# Partitions


def partition_index(stream: Stream, published: Message) -> int:
    before = [partition.next_offset for partition in stream.partitions]
    stream.accept(published)
    broker_of(stream.vhost).end_turn()
    after = [partition.next_offset for partition in stream.partitions]
    (moved,) = [index for index in range(len(before)) if before[index] != after[index]]
    return moved


def keyed(key: bytes, payload: bytes = b"") -> Message:
    return Message(PROTOCOL, Address("amq.topic", b"t"), key, payload, 1, True, 0)


@pytest.mark.parametrize("key", [b"", b"a", b"123456789", b"\xff" * 300])
def test_the_partition_of_a_key_is_crc_32_modulo(key: bytes, codec: KeyCodec) -> None:
    stream = open_vhost().declare_stream("s", 7)
    assert partition_of(key, 7) == crc32(key) % 7
    if key:
        assert partition_index(stream, keyed(key)) == crc32(key) % 7


class _Naming(KeyCodec):
    def decode(self, header: bytes) -> Properties:
        return Properties(key=b"k", partition=int(header))


@pytest.mark.parametrize(("named", "found"), [(0, 0), (2, 2), (3, 0), (65_535, 0), (7, 1)])
def test_a_partition_that_is_named_goes_before_the_key(named: int, found: int) -> None:
    register_codec(PROTOCOL, _Naming())
    stream = open_vhost().declare_stream("s", 3)
    assert partition_index(stream, keyed(b"%d" % named)) == found
    assert partition_index(open_vhost().declare_stream("s", 1), keyed(b"%d" % named)) == 0


def test_crc_32_has_the_documented_check_value() -> None:
    # "check" of CRC-32/ISO-HDLC: what any other implementation gives for these nine bytes.
    assert partition_of(b"123456789", 1 << 32) == 0xCBF43926


def test_keys_spread_over_partitions() -> None:
    counts = [0] * 12
    for n in range(12_000):
        counts[partition_of(b"device-%05d" % n, 12)] += 1
    assert min(counts) > 800
    assert max(counts) < 1200


def test_without_a_key_a_topic_stays_in_one_partition() -> None:
    stream = open_vhost().declare_stream("s", 5)
    for key in (b"a.b", b"a.c", b"x"):
        found = {partition_index(stream, message(key=key, exchange="amq.topic")) for _ in range(4)}
        assert found == {crc32(key) % 5}


@pytest.mark.parametrize(("exchange", "key"), [("", b"s"), ("amq.fanout", b"")])
def test_where_the_address_says_nothing_partitions_take_turns(exchange: str, key: bytes) -> None:
    stream = open_vhost().declare_stream("s", 3)
    found = [partition_index(stream, message(key=key, exchange=exchange)) for _ in range(6)]
    assert sorted(found[:3]) == [0, 1, 2]
    assert found[3:] == found[:3]


def test_the_key_is_stored_and_a_repeated_header_is_decoded_once(codec: KeyCodec) -> None:
    broker = open_broker()
    stream = broker.vhosts["/"].declare_stream("s")
    for _ in range(50):
        stream.accept(keyed(b"k1"))
        stream.accept(keyed(b"k2"))
        stream.accept(message(b""))
    broker.end_turn()
    assert codec.decoded == 2
    ((_, batch),) = stream.partitions[0].read(0, 1 << 20)
    view = RecordBatch(batch)
    assert [view.binary(KEY, row) for row in range(6)] == [b"k1", b"k2", None] * 2


def test_headers_that_the_broker_added_are_stored(codec: KeyCodec) -> None:
    broker = open_broker()
    stream = broker.vhosts["/"].declare_stream("s")
    for reason in ("expired", "rejected"):
        letter = message(b"")
        letter.annotations = {"x-first-death-reason": reason}
        stream.accept(letter)
    broker.end_turn()
    ((_, batch),) = stream.partitions[0].read(0, 1 << 20)
    headers = [RecordBatch(batch).headers(row) for row in range(2)]
    assert headers == [
        [(b"x-first-death-reason", b"expired")],
        [(b"x-first-death-reason", b"rejected")],
    ]


def test_the_memo_of_headers_is_bounded(codec: KeyCodec) -> None:
    broker = open_broker()
    stream = broker.vhosts["/"].declare_stream("s")
    for n in range(MEMO_SIZE + 1):
        stream.accept(keyed(b"%d" % n))
    decoded = codec.decoded
    stream.accept(keyed(b"%d" % MEMO_SIZE))
    assert codec.decoded == decoded
    stream.accept(keyed(b"0"))
    assert codec.decoded == decoded + 1
    for _ in range(2):
        stream.accept(keyed(bytes(MEMO_HEADER_BYTES + 1)))
    assert codec.decoded == decoded + 3


# Time


def publish_at(stream: Stream, *timestamps: int) -> None:
    for timestamp in timestamps:
        stream.accept(Message(PROTOCOL_NONE, Address("", b"s"), b"", b"", 1, True, timestamp))
    broker_of(stream.vhost).end_turn()


def offset_at(partition: Partition, timestamp: int) -> int:
    found: list[int] = []
    partition.offset_for_timestamp(timestamp, found.append)
    (offset,) = found
    return offset


def test_offset_for_timestamp_is_the_first_record_at_or_after_it() -> None:
    stream = open_vhost().declare_stream("s")
    partition = stream.partitions[0]
    assert offset_at(partition, 0) == 0
    times = [10, 10, 20, 30, 30, 30, 40, 55, 55, 60]
    publish_at(stream, *times[:3])
    publish_at(stream, *times[3:4])
    publish_at(stream, *times[4:8])
    publish_at(stream, *times[8:])
    for timestamp in range(70):
        expected = next((n for n, t in enumerate(times) if t >= timestamp), len(times))
        assert offset_at(partition, timestamp) == expected, timestamp


class ColdLog(Log):
    """Only what was just loaded is in memory."""

    def __init__(self) -> None:
        self._log = MemoryStorage().log("")
        self.first_offset = self.next_offset = 0
        self.loaded: int | None = None
        self.pending: list[Callable[[], None]] = []

    def append(self, record: bytes, count: int = 1, annotation: bytes = b"") -> int:
        offset = self._log.append(record, count, annotation)
        self.next_offset = self._log.next_offset
        return offset

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes, bytes]]:
        return self._log.read(offset, max_records, max_bytes)

    def is_loaded(self, offset: int) -> bool:
        return self.loaded == offset

    def load(self, offset: int, max_bytes: int, ready: Callable[[], None]) -> None:
        self.loaded = offset
        self.pending.append(ready)


def test_offset_for_timestamp_loads_cold_batches(stream: Stream, broker: Broker) -> None:
    cold = ColdLog()
    partition = stream.partitions[0]
    partition.log = cold
    for n in range(20):
        source = Message(PROTOCOL_NONE, Address("", b"s"), b"", b"", 1, True, n * 10)
        partition.add(source, PLAIN_MESSAGE)
        partition.flush()
    partition.high_watermark = cold.next_offset
    found: list[int] = []
    partition.offset_for_timestamp(125, found.append)
    loads = 0
    while not found:
        loads += 1
        cold.pending.pop()()
    assert found == [13]
    assert 0 < loads <= 6


# Compression


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_batches_are_stored_and_read_compressed(codec: str) -> None:
    vhost = open_vhost()
    stream = vhost.declare_stream("s", 1, {"x-compression": codec})
    for n in range(100):
        stream.accept(message(b"%d" % n + bytes(100)))
    broker_of(vhost).end_turn()
    ((_, batch),) = stream.partitions[0].read(0, 1 << 30)
    assert batch[5] == CODECS[codec]
    assert len(batch) < 5000
    assert payloads(stream.partitions[0]) == [b"%d" % n + bytes(100) for n in range(100)]
    assert offset_at(stream.partitions[0], 1_700_000_000_000) == 0


def test_compression_follows_the_policy() -> None:
    vhost = open_vhost()
    stream = vhost.declare_stream("s", 1)
    codecs = []
    for definition in (None, "lz4", "zstd", "none"):
        if definition is not None:
            vhost.set_policy(Policy("p", "s", {"compression": definition}))
        stream.accept(message(bytes(1000)))
        broker_of(vhost).end_turn()
        codecs.append(stream.partitions[0].read(stream.partitions[0].next_offset - 1, 1)[0][1][5])
    assert codecs == [CODEC_NONE, CODEC_LZ4, CODEC_ZSTD, CODEC_NONE]


# Declaration and restart


def test_unknown_arguments_are_refused(broker: Broker) -> None:
    vhost = broker.vhosts["/"]
    with pytest.raises(PreconditionFailed, match="x-message-ttl"):
        vhost.declare_stream("other", 1, {"x-message-ttl": 5})
    with pytest.raises(PreconditionFailed, match="x-queue-type"):
        vhost.declare_stream("other", 1, {"x-queue-type": "quorum"})
    assert "other" not in vhost.streams
    vhost.declare_stream("other", 1, {"x-queue-type": "stream"})


@pytest.mark.parametrize(("name", "partitions"), [("", 1), ("x" * 256, 1), ("t", 0), ("t", 1025)])
def test_names_and_partitions_are_bounded(broker: Broker, name: str, partitions: int) -> None:
    with pytest.raises(PreconditionFailed):
        broker.vhosts["/"].declare_stream(name, partitions)


def test_reserved_names_are_refused(broker: Broker) -> None:
    with pytest.raises(AccessRefused):
        broker.vhosts["/"].declare_stream("amq.s")


def test_the_same_declaration_gives_the_same_stream(broker: Broker, stream: Stream) -> None:
    vhost = broker.vhosts["/"]
    assert vhost.declare_stream("s", 1) is stream
    with pytest.raises(PreconditionFailed, match="partitions"):
        vhost.declare_stream("s", 2)
    # What is a stream is one by whatever protocol.
    assert vhost.declare_stream("s", 1, {"x-queue-type": "stream"}) is stream
    with pytest.raises(PreconditionFailed, match="x-max-age"):
        vhost.declare_stream("s", 1, {"x-max-age": "1D"})


def test_a_deleted_stream_drops_its_records_and_tells_its_readers(
    broker: Broker, storage: HeldStorage, stream: Stream
) -> None:
    vhost = broker.vhosts["/"]
    reader = Reader()
    partition = stream.partitions[0]
    partition.wait(reader)
    stream.accept(message(b"1"))
    vhost.delete_stream("s")
    assert reader.gone == 1
    broker.end_turn()
    storage.complete()
    assert storage.log_names() == []
    assert partition.high_watermark == 0
    with pytest.raises(NotFound):
        vhost.stream("s")


def test_a_new_stream_of_the_same_name_is_another_incarnation(
    broker: Broker, storage: HeldStorage, stream: Stream
) -> None:
    vhost = broker.vhosts["/"]
    stream.accept(message(b"1"))
    broker.end_turn()
    vhost.delete_stream("s")
    again = vhost.declare_stream("s", 1)
    assert again.incarnation != stream.incarnation
    assert again.partitions[0].next_offset == 0


def test_a_stream_comes_back_with_its_records_and_bindings(
    broker: Broker, storage: HeldStorage, stream: Stream
) -> None:
    vhost = broker.vhosts["/"]
    vhost.bind(vhost.exchange("amq.topic"), Binding(stream, b"#"))
    stream.accept(message(b"1"))
    broker.end_turn()
    again: VirtualHost = open_broker(storage).vhosts["/"]
    restored = again.stream("s")
    assert restored.incarnation == stream.incarnation
    assert payloads(restored.partitions[0]) == [b"1"]
    assert again.route(again.exchange("amq.topic"), b"t").destinations == [restored]


def test_more_partitions_begin_empty_keep_the_settings_and_come_back(
    broker: Broker, storage: HeldStorage
) -> None:
    vhost = broker.vhosts["/"]
    grown = vhost.declare_stream("grown", 2, {"x-max-length": 1})
    # In the middle of a turn that has messages for it.
    grown.accept(message(b"0", key=b"t", exchange="amq.topic"))
    before = vhost.topology_version
    add_partitions(vhost, "grown", 5)
    assert vhost.topology_version > before
    assert [each.index for each in grown.partitions] == list(range(5))
    broker.end_turn()
    for _ in range(3):
        for n in range(50):
            grown.accept(message(b"%d" % n, key=b"t%d" % n, exchange="amq.topic"))
        broker.end_turn()
    storage.complete()
    assert {crc32(b"t%d" % n) % 5 for n in range(50)} == set(range(5))
    last = grown.partitions[4]
    assert (last.index, last.next_offset > 3) == (4, True)
    broker.now_ms += 10_000
    broker.end_turn()
    assert last.first_offset > 0
    restored = open_broker(storage).vhosts["/"].stream("grown")
    assert restored.incarnation == grown.incarnation
    assert [each.next_offset for each in restored.partitions] == [
        each.next_offset for each in grown.partitions
    ]
    assert vhost.declare_stream("grown", 5, {"x-max-length": 1}) is grown


@pytest.mark.parametrize("count", [0, 1, 1025])
def test_partitions_become_neither_fewer_nor_too_many(broker: Broker, count: int) -> None:
    vhost = broker.vhosts["/"]
    grown = vhost.declare_stream("grown", 2)
    with pytest.raises(PreconditionFailed, match="has 2 partitions: it can have more"):
        add_partitions(vhost, "grown", count)
    before = vhost.topology_version
    add_partitions(vhost, "grown", 2)
    assert (len(grown.partitions), vhost.topology_version) == (2, before)
    with pytest.raises(NotFound):
        add_partitions(vhost, "none", 2)


class ComparedReader(Compared, Reader):
    """Counts how often it is compared with others."""

    def __init__(self, number: int) -> None:
        Reader.__init__(self)
        Compared.__init__(self, number)


def test_readers_of_one_partition_leave_with_few_comparisons() -> None:
    vhost = open_vhost()
    partition = vhost.declare_stream("s").partitions[0]
    readers = [ComparedReader(number) for number in range(200)]
    for reader in readers:
        partition.wait(reader)

    def leave() -> None:
        for reader in reversed(readers):
            partition.cancel(reader)

    assert comparisons(leave) <= len(readers)


def test_a_reader_that_waits_twice_is_told_once() -> None:
    vhost = open_vhost()
    stream = vhost.declare_stream("s")
    reader = Reader()
    for _ in range(2):
        stream.partitions[0].wait(reader)
    stream.accept(message(b"x"))
    broker_of(vhost).end_turn()
    assert reader.moved == 1
