"""Compressed record batches: what is compressed, read back, and refused."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import lz4.block
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.messages.message import PROTOCOL_MQTT, Address, Message
from trivium.streams.compression import (
    CODECS,
    MAX_BODY,
    MIN_BODY,
    CompressionError,
    compress,
    decompress,
)
from trivium.streams.record_layout import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD, HEADER_SIZE
from trivium.streams.records import (
    PAYLOAD,
    BatchError,
    Described,
    RecordBatch,
    batch_count,
    batch_max_timestamp,
    encode_batch,
)

PACKED = [CODEC_LZ4, CODEC_ZSTD]
TEXT = b'{"device":"d17","temperature":21.5,"humidity":40}'


def messages(count: int, payload: bytes = TEXT) -> list[Message]:
    address = Address("amq.topic", b"a.b")
    return [
        Message(PROTOCOL_MQTT, address, b"", b"%d" % n + payload, 1, True, 1_700_000_000_000 + n)
        for n in range(count)
    ]


def sizes(batch: bytes) -> tuple[int, int, int]:
    """Codec, size of the body, stored size."""
    codec, _, _, size, stored = struct.unpack_from("<BHIII", batch, 5)
    return codec, size, stored


def seal(batch: bytearray) -> bytes:
    """The batch with the right stored size and checksum."""
    struct.pack_into("<I", batch, 16, len(batch) - HEADER_SIZE)
    struct.pack_into("<I", batch, 44, zlib.crc32(bytes(batch[:44] + batch[48:])))
    return bytes(batch)


@pytest.mark.parametrize("codec", PACKED)
def test_a_compressed_batch_reads_like_the_one_that_is_not(codec: int) -> None:
    made = messages(50)
    described = [Described(b"k%d" % n, b"t", [b"n"], [b"v%d" % n]) for n in range(50)]
    plain = encode_batch(made, described)
    packed = encode_batch(made, described, codec)
    assert sizes(packed) == (codec, len(plain) - HEADER_SIZE, len(packed) - HEADER_SIZE)
    assert len(packed) < len(plain) / 2
    assert batch_count(packed) == 50
    assert batch_max_timestamp(packed) == 1_700_000_000_049
    views = RecordBatch(plain), RecordBatch(packed)
    assert bytes(views[1].data[HEADER_SIZE:]) == plain[HEADER_SIZE:]
    for row in range(50):
        assert views[1].binary(PAYLOAD, row) == b"%d" % row + TEXT
        assert views[1].headers(row) == views[0].headers(row)
        assert views[1].message(row).timestamp == 1_700_000_000_000 + row


def test_the_codecs_are_those_of_other_implementations() -> None:
    made = messages(50)
    body = encode_batch(made)[HEADER_SIZE:]
    packed = encode_batch(made, None, CODEC_LZ4)[HEADER_SIZE:]
    assert pa.Codec("lz4_raw").decompress(packed, len(body)).to_pybytes() == body
    packed = encode_batch(made, None, CODEC_ZSTD)[HEADER_SIZE:]
    assert pa.Codec("zstd").decompress(packed, len(body)).to_pybytes() == body


@pytest.mark.parametrize("codec", PACKED)
def test_small_batches_stay_as_they_are(codec: int) -> None:
    made = messages(1)
    assert len(encode_batch(made)) < MIN_BODY
    assert encode_batch(made, None, codec) == encode_batch(made)


@pytest.mark.parametrize("codec", PACKED)
def test_what_would_not_become_smaller_stays_as_it_is(codec: int) -> None:
    noise = b"".join(zlib.crc32(b"%d" % n).to_bytes(4, "little") for n in range(3000))
    made = messages(1, noise)
    assert encode_batch(made, None, codec) == encode_batch(made)


@pytest.mark.parametrize("codec", PACKED)
def test_a_body_beyond_the_limit_stays_as_it_is(codec: int) -> None:
    made = messages(1, bytes(MAX_BODY))
    assert sizes(encode_batch(made, None, codec))[0] == CODEC_NONE
    made = messages(1, bytes(MAX_BODY - 1000))
    assert sizes(encode_batch(made, None, codec))[0] == codec


# Hostile


def bomb(codec: int, claimed: int, real: int) -> bytes:
    """A batch that says its body has ``claimed`` bytes; compressed it has ``real``."""
    batch = bytearray(encode_batch(messages(50), None, codec)[:HEADER_SIZE])
    struct.pack_into("<I", batch, 12, claimed)
    if codec == CODEC_LZ4:
        batch += lz4.block.compress(bytes(real), store_size=False)
    else:
        batch += zstandard.ZstdCompressor().compress(bytes(real))
    return seal(batch)


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize(
    ("claimed", "real"),
    [
        (MAX_BODY + 1, MAX_BODY + 1),
        (0xFFFF_FFFF, 1000),
        (1000, 64 << 20),
        (1000, 999),
        (1000, 1001),
    ],
)
def test_a_bomb_is_refused_before_it_takes_memory(codec: int, claimed: int, real: int) -> None:
    batch = bomb(codec, claimed, real)
    tracemalloc.start()
    with pytest.raises(BatchError):
        RecordBatch(batch)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def test_a_frame_that_does_not_say_its_size_is_refused() -> None:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    with pytest.raises(CompressionError, match="does not say"):
        decompress(CODEC_ZSTD, packed, 1000)


def test_what_follows_a_frame_is_refused() -> None:
    packed = zstandard.ZstdCompressor().compress(bytes(1000))
    with pytest.raises(CompressionError):
        decompress(CODEC_ZSTD, packed + b"x", 1000)
    with pytest.raises(CompressionError):
        decompress(CODEC_ZSTD, packed + packed, 1000)


def test_an_unknown_codec_is_refused() -> None:
    batch = bytearray(encode_batch(messages(50), None, CODEC_LZ4))
    batch[5] = 3
    with pytest.raises(BatchError, match="codec 3"):
        RecordBatch(seal(batch))


@settings(max_examples=200)
@given(st.sampled_from(PACKED), st.binary(max_size=300), st.integers(0, MAX_BODY))
def test_noise_gives_only_compression_errors(codec: int, packed: bytes, size: int) -> None:
    try:
        assert len(decompress(codec, packed, size)) == size
    except CompressionError:
        pass


@settings(max_examples=100)
@given(st.sampled_from(PACKED), st.data())
def test_damage_with_a_right_checksum_gives_only_batch_errors(
    codec: int, data: st.DataObject
) -> None:
    forged = bytearray(encode_batch(messages(50), None, codec))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(forged) - 1))
        forged[at] = data.draw(st.integers(0, 255))
    try:
        view = RecordBatch(seal(forged))
        for row in range(min(view.count, 3)):
            view.message(row)
    except BatchError:
        pass


@settings(max_examples=100)
@given(st.sampled_from(PACKED), st.binary(min_size=MIN_BODY, max_size=5000))
def test_what_was_compressed_comes_back(codec: int, body: bytes) -> None:
    packed = compress(codec, body * 2)
    if packed is not None:
        assert decompress(codec, packed, len(body) * 2) == body * 2


def test_codecs_have_names() -> None:
    assert CODECS == {"none": CODEC_NONE, "lz4": CODEC_LZ4, "zstd": CODEC_ZSTD}
