"""The way into a connection: each frame is taken once, in order, and while nothing holds input."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.server import LISTENER, RecordingDriver, Server, Transport
from trivium.observability.metrics import ProtocolMetrics
from trivium.runtime.adapter import Peer
from trivium.runtime.broker import Broker
from trivium.runtime.framed import CLOCK_FRAMES, FOR_PROTOCOL, FOR_SUBSCRIBERS, FramedConnection

FOR_ONE = FOR_PROTOCOL
FOR_OTHER = FOR_PROTOCOL << 1


class Sized(FramedConnection):
    """Its frames are a byte that says how long the rest is, and the rest."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(ProtocolMetrics(), broker, Transport(), Peer("", True, LISTENER))
        self.frames: list[bytes] = []
        #: the next frame with this body holds input
        self.holder: bytes | None = None
        #: calls of ``take_frames``
        self.looks = 0
        #: whether frames were taken while input was held, or with not one byte there
        self.is_wrong = False

    def take_frames(self, data: bytes, at: int) -> int:
        self.looks += 1
        self.is_wrong |= self.held_for != 0 or at >= len(data)
        while at < len(data) and not self.stops_input():
            size = 1 + data[at]
            if at + size > len(data):
                self.needed = size
                break
            self.frames.append(data[at + 1 : at + size])
            at += size
            if self.frames[-1] == self.holder:
                self.holder = None
                self.hold_input(FOR_ONE)
        return at


class SlowDriver(RecordingDriver):
    """Each turn is long as soon as someone asks."""

    def is_turn_long(self) -> bool:
        return True


def connection_of(driver: RecordingDriver | None = None) -> Sized:
    server = Server()
    if driver is not None:
        server.broker.driver = driver
    return Sized(server.broker)


def encoded(frames: list[bytes]) -> bytes:
    return b"".join(bytes((len(frame),)) + frame for frame in frames)


some_frames = st.lists(st.binary(max_size=9), max_size=3 * CLOCK_FRAMES)
reasons = st.sampled_from([FOR_ONE, FOR_OTHER, FOR_SUBSCRIBERS])


@given(some_frames, st.data(), st.booleans())
def test_frames_are_taken_once_and_in_order(
    frames: list[bytes], draw: st.DataObject, is_slow: bool
) -> None:
    connection = connection_of(SlowDriver() if is_slow else None)
    data = encoded(frames)
    while data:
        size = draw.draw(st.integers(1, len(data)))
        # Also while it is held: what was on its way already.
        connection.feed(data[:size])
        data = data[size:]
        before = list(connection.frames)
        match draw.draw(st.sampled_from(["hold", "continue", "turn", "holder", "nothing"])):
            case "hold":
                connection.hold_input(draw.draw(reasons))
                assert connection.frames == before
            case "continue":
                connection.continue_input(draw.draw(reasons))
            case "turn":
                connection.next_turn()
            case "holder" if frames:
                connection.holder = draw.draw(st.sampled_from(frames))
    connection.holder = None
    for reason in (FOR_ONE, FOR_OTHER, FOR_SUBSCRIBERS):
        connection.continue_input(reason)
    for _ in frames:
        connection.next_turn()
    assert connection.frames == frames
    assert not connection.is_wrong
    assert connection.held_for == 0


def test_what_is_put_back_comes_before_what_waits() -> None:
    connection = connection_of()
    connection.feed(encoded([b"a"]) + b"\x09part")
    connection.put_back(encoded([b"b", b"c"]))
    connection.take_waiting()
    assert connection.frames == [b"a", b"b", b"c"]
    connection.feed(b" two!" + encoded([b"d"]))
    assert connection.frames == [b"a", b"b", b"c", b"part two!", b"d"]


def test_an_incomplete_frame_is_not_looked_at_before_the_rest_is_there() -> None:
    connection = connection_of()
    for _ in range(256):
        connection.feed(b"\xff")
    assert connection.frames == [b"\xff" * 255]
    assert connection.looks == 2


def test_what_comes_while_a_turn_holds_the_rest_comes_behind_it() -> None:
    connection = connection_of(SlowDriver())
    frames = [b"%d" % number for number in range(3 * CLOCK_FRAMES)]
    data = encoded([*frames, b"last"])
    connection.feed(data[:-2])
    assert connection.waits_for_turn
    connection.feed(data[-2:])
    for _ in range(4):
        connection.next_turn()
    assert connection.frames == [*frames, b"last"]


def test_what_is_put_back_comes_before_what_a_turn_holds() -> None:
    connection = connection_of(SlowDriver())
    frames = [b"%d" % number for number in range(2 * CLOCK_FRAMES)]
    connection.feed(encoded(frames))
    taken = len(connection.frames)
    connection.put_back(encoded([b"back"]))
    for _ in range(3):
        connection.next_turn()
    assert connection.frames == [*frames[:taken], b"back", *frames[taken:]]
