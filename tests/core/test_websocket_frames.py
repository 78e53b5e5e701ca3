"""Frames that carry a protocol's bytes (RFC 6455, sections 5 and 5.7), by bytes and against the
library that judges all others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import SERVER, Protocol

from tests.support.websocket import masked
from trivium.common.pieces import Piece
from trivium.runtime.websocket_frames import FRAME_BYTES, FrameReader, frame_header, framed

MAXIMUM = 1 << 20


@dataclass
class Receiver:
    """A server's end: what ``FrameReader`` leaves goes to the library, as it does in the layer."""

    frames: FrameReader = field(default_factory=lambda: FrameReader(MAXIMUM))
    library: Protocol = field(default_factory=lambda: Protocol(SERVER, max_size=MAXIMUM))
    payload: bytearray = field(default_factory=bytearray)
    control: list[tuple[int, bytes]] = field(default_factory=list)

    def feed(self, data: bytes) -> None:
        if self.failed:
            return
        frames = self.frames
        data = frames.join(data)
        at = 0
        while True:
            if not frames.other:
                at = frames.take(data, at)
                self.payload += frames.payload
                if frames.notice:
                    self.library.receive_data(frames.notice)
                    assert [len(e.data) for e in self.events()] == [0]
                    frames.notice = b""
            if at == len(data):
                return
            if frames.other:
                end = min(at + frames.other, len(data))
                frames.other -= end - at
                self.library.receive_data(data[at:end])
                at = end
                if self.take_events():
                    return

    def events(self) -> list[Frame]:
        return [event for event in self.library.events_received() if isinstance(event, Frame)]

    def take_events(self) -> bool:
        """Whether nothing more is taken."""
        for event in self.events():
            if event.opcode in (Opcode.BINARY, Opcode.CONT):
                self.payload += event.data
            else:
                self.control.append((event.opcode, bytes(event.data)))
        return self.failed

    @property
    def failed(self) -> bool:
        return self.library.close_sent is not None

    @property
    def close_code(self) -> int | None:
        sent = self.library.close_sent
        return None if sent is None else sent.code


class Reference(Receiver):
    """The library alone."""

    def feed(self, data: bytes) -> None:
        if not self.failed:
            self.library.receive_data(data)
            self.take_events()


def received(*parts: bytes) -> Receiver:
    receiver = Receiver()
    for part in parts:
        receiver.feed(part)
    return receiver


def test_rfc_6455_5_7_masked_frame() -> None:
    # The example is a text; its bytes as a binary message.
    frame = bytes.fromhex("828537fa213d7f9f4d5158")
    assert received(frame).payload == b"Hello"


def test_rfc_6455_5_7_ping_is_for_the_library() -> None:
    receiver = received(bytes.fromhex("898537fa213d7f9f4d5158"))
    assert receiver.control == [(9, b"Hello")]
    assert receiver.library.data_to_send() == [bytes.fromhex("8a0548656c6c6f")]


@pytest.mark.parametrize(
    ("size", "header"),
    [
        (0, "8200"),
        (5, "8205"),
        (125, "827d"),
        (126, "827e007e"),
        (256, "827e0100"),
        (65535, "827effff"),
    ],
)
def test_rfc_6455_5_2_header_is_the_shortest(size: int, header: str) -> None:
    assert frame_header(size) == bytes.fromhex(header)


@pytest.mark.parametrize("size", [0, 1, 3, 7, 8, 9, 125, 126, 127, 65535, 65536, 70001])
def test_rfc_6455_5_3_payload_is_unmasked_at_each_cut(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    frame = masked(payload) + masked(b"next")
    for cut in {1, 2, 3, 5, 6, 7, 9, 13, 14, 15, 20, len(frame) - 1} & set(range(len(frame))):
        assert received(frame[:cut], frame[cut:]).payload == payload + b"next", cut
    assert received(*(frame[at : at + 1000] for at in range(0, len(frame), 1000))).payload


def test_rfc_6455_5_4_control_frames_lie_between_fragments() -> None:
    receiver = received(
        masked(b"He", fin=False) + masked(b"?", opcode=9) + masked(b"llo", opcode=0)
    )
    assert receiver.payload == b"Hello"
    assert receiver.control == [(9, b"?")]
    assert not receiver.failed


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"\x82\x05Hello", 1002, id="5.1-not-masked"),
        pytest.param(masked(b"x", opcode=0), 1002, id="5.4-continuation-of-nothing"),
        pytest.param(masked(b"x", fin=False) + masked(b"y"), 1002, id="5.4-message-in-a-message"),
        pytest.param(masked(b"x", fin=False, opcode=9), 1002, id="5.5-fragmented-ping"),
        pytest.param(masked(b"x" * 126, opcode=9), 1002, id="5.5-long-ping"),
        pytest.param(masked(b"x", opcode=3), 1002, id="5.2-reserved-opcode"),
        pytest.param(b"\x83\x80", 1002, id="5.2-reserved-opcode-before-its-mask"),
        pytest.param(masked(b"x", opcode=0x42), 1002, id="5.2-reserved-bit"),
        pytest.param(b"\x82\xff" + (MAXIMUM + 1).to_bytes(8, "big") + b"mask", 1009, id="large"),
        pytest.param(b"\x82\xff" + b"\xff" * 8 + b"mask", 1009, id="63-bits"),
        pytest.param(masked(b"\x03", opcode=8), 1002, id="5.5.1-short-close"),
        pytest.param(masked(b"\x03\xed", opcode=8), 1002, id="7.4.1-code-that-is-not-sent"),
        pytest.param(masked(b"\x03\xe8\xff", opcode=8), 1007, id="5.5.1-reason-is-no-utf-8"),
    ],
)
def test_rfc_6455_what_breaks_a_rule_fails_the_connection(data: bytes, code: int) -> None:
    assert received(data).close_code == code
    assert received(*(data[at : at + 1] for at in range(len(data)))).close_code == code


#: Frames, right ones mostly, and what is none.
FRAMES = st.one_of(
    st.builds(
        masked,
        st.binary(max_size=300),
        st.sampled_from([2, 2, 2, 0, 9, 10, 8, 3, 0x42]),
        st.booleans(),
        st.binary(min_size=4, max_size=4),
    ),
    st.builds(masked, st.binary(max_size=20), st.sampled_from([2, 0])),
    st.binary(max_size=20),
)


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(1, 200), max_size=10))
def test_frames_are_taken_as_the_library_alone_takes_them(
    frames: list[bytes], sizes: list[int]
) -> None:
    data = b"".join(frames)
    reference = Reference()
    reference.feed(data)
    receiver = Receiver()
    at = 0
    for size in [*sizes, len(data) + 1]:
        receiver.feed(data[at : at + size])
        at += size
    assert receiver.close_code == reference.close_code
    assert receiver.control == reference.control
    # What has come of a frame that is not whole is taken as it comes.
    assert receiver.payload.startswith(reference.payload)
    assert receiver.library.data_to_send() == reference.library.data_to_send()


def unframed(pieces: list[Piece]) -> tuple[bytes, list[int]]:
    """The payload of a server's frames, and the sizes of these."""
    data = b"".join(pieces)
    payload, sizes = b"", []
    while data:
        assert data[0] == 0x82
        size, header = data[1], 2
        if size == 126:
            size, header = int.from_bytes(data[2:4], "big"), 4
        payload += data[header : header + size]
        data = data[header + size :]
        sizes.append(size)
    return payload, sizes


def test_output_of_a_turn_is_one_frame() -> None:
    payload, sizes = unframed(framed([b"ab", memoryview(b"cd"), b"e" * 50_000]))
    assert payload == b"abcd" + b"e" * 50_000
    assert sizes == [50_004]


def test_no_output_is_no_frame() -> None:
    assert framed([]) == []
    assert framed([b""]) == []


def test_frames_are_bounded_and_large_pieces_are_not_copied() -> None:
    large = bytes(200_000)
    pieces = framed([b"head", large, b"tail"])
    payload, sizes = unframed(pieces)
    assert payload == b"head" + large + b"tail"
    assert sizes == [FRAME_BYTES] * 3 + [200_008 - 3 * FRAME_BYTES]
    assert sum(isinstance(piece, memoryview) and piece.obj is large for piece in pieces) == 4
