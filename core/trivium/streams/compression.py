"""Compression of the bodies of record batches: lz4 (block format) and zstd (one frame).

What is unpacked may come from anywhere, so its size is stated beforehand, bounded, and checked to
be exactly that; nothing larger is ever allocated.
"""

from __future__ import annotations

from typing import Final

import lz4.block
import zstandard

from trivium.streams.record_layout import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD

#: names of the codecs in arguments, policies and messages
CODECS: Final = {"none": CODEC_NONE, "lz4": CODEC_LZ4, "zstd": CODEC_ZSTD}

#: Smaller bodies gain less than a hundred bytes, and take as long as their messages did so far.
MIN_BODY: Final = 512

#: A larger body is left as it is: the broker's loop would stand still for more than some 10 ms.
#: It also bounds what a reader has to allocate for a compressed batch, however small that is.
MAX_BODY: Final = 4 << 20

#: zstd's quickest level but for the negative ones: half of lz4's size at half its speed.
_ZSTD_LEVEL: Final = 1


class CompressionError(ValueError):
    """The data is not what the codec makes of as many bytes as were stated."""


def compress(codec: int, body: bytes | memoryview) -> bytes | None:
    """The body compressed, or None where it is to stay as it is."""
    if codec == CODEC_NONE or not MIN_BODY <= len(body) <= MAX_BODY:
        return None
    packed: bytes
    if codec == CODEC_LZ4:
        packed = lz4.block.compress(body, store_size=False)
    else:
        packed = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
    return packed if len(packed) < len(body) else None


def decompress(codec: int, packed: bytes | memoryview, size: int) -> bytes:
    """The ``size`` bytes that were compressed. Raises CompressionError for anything else."""
    if size > MAX_BODY:
        raise CompressionError(f"{size} bytes are more than the {MAX_BODY} that may be compressed")
    body: bytes
    try:
        if codec == CODEC_LZ4:
            body = lz4.block.decompress(packed, uncompressed_size=size)
        elif codec == CODEC_ZSTD:
            # Its decoder allocates what the frame says, whatever limit it is given.
            if zstandard.get_frame_parameters(packed).content_size != size:
                raise CompressionError(f"the frame does not say that it holds {size} bytes")
            body = zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
        else:
            raise CompressionError(f"codec {codec} is not supported")
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        raise CompressionError(str(error)) from None
    if len(body) != size:
        raise CompressionError(f"{len(body)} bytes instead of {size}")
    return body
