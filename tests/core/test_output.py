"""What a connection writes: small parts are collected, large ones are not copied, all in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.server import LISTENER, Server, Transport
from trivium.runtime.adapter import LARGE_OUTPUT, Connection, Peer

SIZES = st.sampled_from([0, 1, 64, 300, LARGE_OUTPUT - 1, LARGE_OUTPUT, 3 * LARGE_OUTPUT])


def a_connection() -> Connection:
    return Connection(Server().broker, Transport(), Peer("", True, LISTENER))


@given(st.lists(st.tuples(st.sampled_from(["send", "write", "take"]), SIZES), max_size=20))
def test_parts_leave_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    connection = a_connection()
    expected = b""
    for number, (step, size) in enumerate(steps):
        if step == "take":
            assert connection.output_size == len(expected)
            assert b"".join(connection.take_output()) == expected
            assert connection.output_size == 0
            expected = b""
            continue
        part = bytes([number]) * size
        expected += part
        if step == "send":
            connection.send(part)
        else:
            connection.output.write(part)
            connection.output_size += size
    assert b"".join(connection.take_output()) == expected


def test_a_large_part_is_not_copied() -> None:
    connection = a_connection()
    large = bytes(LARGE_OUTPUT)
    for part in (b"before", large, b"behind"):
        connection.send(part)
    before, taken, behind = connection.take_output()
    assert (before, behind) == (b"before", b"behind")
    assert taken is large


def test_what_was_taken_stays_as_it_is() -> None:
    connection = a_connection()
    connection.send(b"first")
    first = connection.take_output()
    connection.send(b"second")
    assert first == [b"first"]
    assert connection.take_output() == [b"second"]
