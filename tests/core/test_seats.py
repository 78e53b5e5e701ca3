"""Who is served over HTTP at a time: ``trivium.observability.seats``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trivium.observability.seats import FEW, Seats

STRANGER = "192.0.2.1"
OTHER = "192.0.2.2"


class Room:
    """Connections are numbers here."""

    def __init__(self, limit: int) -> None:
        self.gone: list[int] = []
        self.seats: Seats[int] = Seats(limit, self.gone.append)
        self.count = 0

    def enter(self, host: str = STRANGER, state: str = "idle") -> int:
        """The number of a new one; -1 where it is refused."""
        self.count += 1
        if not self.seats.enter(self.count, host):
            return -1
        if state != "idle":
            self.seats.asks(self.count)
        if state == "in":
            self.seats.is_in(self.count)
        return self.count


def test_whoever_is_idle_for_longest_gives_way() -> None:
    room = Room(2)
    first, second = room.enter(), room.enter()
    room.seats.asks(first)
    room.seats.is_idle(first)
    room.enter()
    room.enter()
    assert room.gone == [second, first]


def test_whoever_asks_gives_way_where_nobody_is_idle() -> None:
    room = Room(3)
    first, second, third = (room.enter(state="asks") for _ in range(3))
    room.seats.is_idle(second)
    room.enter(OTHER)
    assert room.gone == [second]
    room.enter(OTHER)
    assert room.gone == [second, first]
    assert third


def test_whoever_asks_does_not_give_way_to_its_own_address() -> None:
    room = Room(3)
    few = room.enter(OTHER)
    strangers = [room.enter(state="asks") for _ in range(2)]
    assert room.enter() == -1
    assert room.gone == []
    room.seats.is_idle(strangers[1])
    assert room.enter() > 0
    assert room.gone == strangers[1:]
    assert few


def test_whoever_is_in_stays() -> None:
    room = Room(2)
    first, second = room.enter(state="in"), room.enter(state="in")
    assert room.enter(OTHER) == -1
    assert room.gone == []
    room.seats.is_idle(first)
    assert room.enter(OTHER) > 0
    assert room.gone == [first]
    assert second


def test_the_address_with_most_connections_gives_way_though_others_are_older() -> None:
    room = Room(8)
    idle, asks = room.enter(OTHER), room.enter(OTHER, "asks")
    strangers = [room.enter(state="asks") for _ in range(5)]
    room.enter("192.0.2.3")
    room.enter("192.0.2.4")
    assert room.gone == strangers[:1]
    assert idle
    assert asks


def test_those_that_are_in_do_not_count_for_who_gives_way() -> None:
    room = Room(8)
    office = [room.enter(OTHER, "in") for _ in range(4)] + [room.enter(OTHER)]
    strangers = [room.enter(state="asks") for _ in range(3)]
    room.enter("192.0.2.3")
    assert room.gone == strangers[:1]
    assert len(office) == 5


def test_an_eighth_is_kept_for_addresses_with_few_connections() -> None:
    room = Room(16)
    assert [room.enter(state="in") > 0 for _ in range(16)] == [True] * 14 + [False] * 2
    assert [room.enter(OTHER, "in") > 0 for _ in range(3)] == [True, True, False]
    assert room.gone == []


def test_who_has_few_does_not_give_way_to_who_has_more() -> None:
    room = Room(16)
    for _ in range(14):
        room.enter(state="in")
    few = [room.enter(OTHER) for _ in range(2)]
    assert room.enter() == -1
    assert room.gone == []
    # To one that has few too it does.
    room.enter("192.0.2.3")
    assert room.gone == few[:1]


def test_this_machine_may_have_all() -> None:
    room = Room(16)
    assert all(room.enter("", "in") > 0 for _ in range(16))


def test_an_ipv6_network_of_64_bits_is_one_address() -> None:
    room = Room(8)
    other = room.enter(OTHER)
    strangers = [room.enter(f"2001:db8::{number}", "asks") for number in range(1, 7)]
    room.enter("192.0.2.3")
    room.enter("192.0.2.4")
    assert room.gone == strangers[:1]
    assert other


def test_who_has_given_way_counts_no_more() -> None:
    room = Room(1)
    first = room.enter()
    second = room.enter(OTHER)
    assert room.gone == [first]
    room.seats.asks(first)
    room.seats.leave(first)
    assert len(room.seats) == 1
    room.seats.leave(second)
    assert len(room.seats) == 0


@given(
    limit=st.integers(1, 40),
    strangers=st.integers(1, 3),
    come=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["idle", "asks"])), min_size=1, max_size=120
    ),
)
def test_strangers_shut_nobody_out(limit: int, strangers: int, come: list[tuple[int, str]]) -> None:
    room = Room(limit)
    for number, state in come:
        room.enter(f"10.0.0.{number % strangers}", state)
    mine = room.enter(OTHER)
    assert mine > 0
    assert len(room.seats) <= limit
    # It has time to ask: not before as many of the strangers' have gone does it give way.
    for _ in range(FEW):
        if limit <= 2 * strangers:
            break
        room.enter("10.0.0.0", "asks")
        assert mine not in room.gone
