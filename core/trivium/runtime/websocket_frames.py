"""WebSocket's frames (RFC 6455, section 5.2), as far as they carry a protocol's bytes.

Almost all frames of a client are binary and uncompressed: their payload is unmasked where it lies,
also that of a frame that has come in part, so that nothing waits here but a cut header. All others
(of control, compressed, text, wrong ones) are left to the library, which is told of fragmented
messages so that it judges the others as if it had seen all.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i64_be, write_i64_be
from mypy_extensions import i64

from trivium.common.native import IS_INTERPRETED
from trivium.common.pieces import Piece, split_parts

#: Opcodes (section 5.2), and the bit of a message's last frame.
CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
FINAL: Final = 0x80

_CONTROL: Final = 0x08
_MASKED: Final = 0x80
_LENGTH_16: Final = 126
_LENGTH_64: Final = 127

#: What the library is told: a binary message begins, and it ends. Both masked, with no payload.
MESSAGE_BEGINS: Final = b"\x02\x80\x00\x00\x00\x00"
MESSAGE_ENDS: Final = b"\x80\x80\x00\x00\x00\x00"

#: Bytes of a frame that is written: clients that bound a frame's size do it at 64 KiB or above.
FRAME_BYTES: Final = 0xFFFF

#: Output up to this size is one piece with the header in front (4 KiB): that is less to do than
#: two pieces are for the loop.
_JOINED_BYTES: Final = 4096

# Whose message is incomplete: nobody's; one that is taken here; one that the library takes.
_NONE: Final = 0
_OURS: Final = 1
_OTHERS: Final = 2


class FrameReader:
    """What a client sends, of which ``take`` leaves the payloads in ``payload``.

    ``maximum`` is the size of the largest frame that is taken.
    """

    def __init__(self, maximum: int) -> None:
        #: payloads that ``take`` has found
        self.payload = b""
        #: bytes of a frame for the library that come next
        self.other: i64 = 0
        #: the first byte of that frame
        self.other_head: i64 = 0
        #: what the library is to be told before it gets another frame
        self.notice = b""
        self._maximum: i64 = maximum
        # Bytes of the frame's payload that are still to come, and its mask, repeated, as it is to
        # be laid over the first of them.
        self._left: i64 = 0
        self._mask = b""
        self._message = _NONE
        # A header that has come in part.
        self._header = b""

    def join(self, data: bytes) -> bytes:
        """What is to be taken, now that ``data`` has come."""
        header = self._header
        if header:
            self._header = b""
            return header + data
        return data

    def take(self, data: bytes, at: i64) -> int:
        """Take what there is from ``at`` on, up to the end or a frame for the library (``other``,
        ``notice``). Returns where it ended.
        """
        size: i64 = len(data)
        out = BytesWriter()
        while at < size:
            if self._left:
                at = self._take_payload(data, at, out)
            else:
                start = at
                at = self._take_header(data, at)
                if at == start or self.other or self.notice:
                    break
        self.payload = out.getvalue()
        return at

    def _take_header(self, data: bytes, at: i64) -> i64:
        """The header of the next frame; returns where the payload begins, or ``at`` when the
        library is to have all of the frame. A header that is incomplete is kept.
        """
        rest: i64 = len(data) - at
        if rest < 2:
            self._header = data[at:]
            return len(data)
        head: i64 = data[at]
        second: i64 = data[at + 1]
        length: i64 = second & 0x7F
        header: i64 = 6
        if length == _LENGTH_16:
            header = 8
        elif length == _LENGTH_64:
            header = 14
        # What is not masked, or of no known opcode, is refused for that, whatever follows.
        is_read = second & _MASKED != 0 and (head & 7) <= BINARY
        if not is_read:
            header = 2
        if rest < header:
            self._header = data[at:]
            return len(data)
        if is_read and length == _LENGTH_16:
            length = i64(read_i16_be(data, at + 2)) & 0xFFFF
        elif is_read and length == _LENGTH_64:
            length = read_i64_be(data, at + 2)
        is_right = is_read and 0 <= length <= self._maximum
        if not is_right or not self._is_ours(head):
            # What is too long is refused for its header, too.
            self.other = header + length if is_right else header
            self.other_head = head
            if head & _CONTROL == 0 and self._message != _OURS:
                self._message = _NONE if head & FINAL else _OTHERS
            return at
        at += header
        self._left = length
        self._mask = data[at - 4 : at] * 3
        return at

    def _is_ours(self, head: i64) -> bool:
        """Whether a frame's payload is taken here, by its first byte."""
        message = self._message
        opcode = head & ~FINAL
        if opcode == BINARY and message == _NONE:
            if head & FINAL == 0:
                self._message = _OURS
                self.notice = MESSAGE_BEGINS
            return True
        if opcode == CONTINUATION and message == _OURS:
            if head & FINAL:
                self._message = _NONE
                self.notice = MESSAGE_ENDS
            return True
        return False

    def _take_payload(self, data: bytes, at: i64, out: BytesWriter) -> i64:
        """Unmask what there is of the payload (section 5.3); returns where it ends."""
        size: i64 = min(self._left, len(data) - at)
        end = at + size
        self._left -= size
        mask = self._mask
        if IS_INTERPRETED:
            # There a number of any size costs less than a loop.
            laid = (mask * (size // 12 + 1))[:size]
            found = int.from_bytes(data[at:end], "big") ^ int.from_bytes(laid, "big")
            out.write(found.to_bytes(size, "big"))
        else:
            word: i64 = read_i64_be(mask, 0)
            while at + 8 <= end:
                write_i64_be(out, read_i64_be(data, at) ^ word)
                at += 8
            place: i64 = 0
            while at < end:
                out.append(data[at] ^ mask[place])
                at += 1
                place += 1
        if self._left:
            turn: i64 = size & 3
            self._mask = (mask[turn:] + mask)[:12]
        return end


def framed(pieces: list[Piece]) -> list[Piece]:
    """The pieces as binary frames, as few as ``FRAME_BYTES`` allows; large ones are not copied."""
    size: i64 = 0
    for piece in pieces:
        size += len(piece)
    if size <= _JOINED_BYTES:
        return [frame_header(size) + b"".join(pieces)] if size else []
    found: list[Piece] = []
    while size > FRAME_BYTES:
        first, pieces = split_parts(pieces, FRAME_BYTES)
        found.append(frame_header(FRAME_BYTES))
        found.extend(first)
        size -= FRAME_BYTES
    found.append(frame_header(size))
    found.extend(pieces)
    return found


def frame_header(size: int) -> bytes:
    """The header of a binary frame of up to ``FRAME_BYTES`` that is a whole message (section 5.2);
    a server does not mask (section 5.1).
    """
    if size < _LENGTH_16:
        return bytes((FINAL | BINARY, size))
    return bytes((FINAL | BINARY, _LENGTH_16, size >> 8, size & 0xFF))
