"""Who is sent live figures at a time: ``trivium.management.places``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trivium.management.places import BEHIND_EVENTS, MAX_PLACES, Place, Places

HOST = "192.0.2.1"
OTHER = "192.0.2.2"


class Room:
    """Places, and who has to go."""

    def __init__(self) -> None:
        self.places = Places()
        self.dropped: list[str] = []

    def come(self, user: str, host: str = HOST, missed: int = 0) -> Place | None:
        """One that has missed so many events; None where it is refused."""
        place = Place(user, host, lambda: missed > 0, lambda: self.dropped.append(user))
        if not self.places.take(place):
            return None
        for _ in range(missed):
            place.look()
        return place

    def fill(self, user: str, host: str = HOST) -> list[Place]:
        found = [self.come(user, host) for _ in range(MAX_PLACES)]
        return [each for each in found if each is not None]


def given_up(places: list[Place]) -> list[Place]:
    return [each for each in places if each.is_given_up]


def test_one_more_of_the_same_user_and_address_gets_no_place() -> None:
    room = Room()
    ann = room.fill("ann")
    assert room.come("ann") is None
    assert given_up(ann) == []
    room.places.leave(ann[3])
    assert room.come("ann") is not None


def test_the_user_with_most_places_gives_its_oldest_up() -> None:
    room = Room()
    ann = room.fill("ann")
    assert room.come("bob") is not None
    assert given_up(ann) == ann[:1]
    # It is told that it is over, as it takes what it is sent.
    assert room.dropped == []
    # Whose it was does not take it back.
    assert room.come("ann") is None


def test_users_share_alike_and_nobody_takes_back_and_forth() -> None:
    room = Room()
    ann = room.fill("ann")
    bob = [each for each in (room.come("bob", OTHER) for _ in range(MAX_PLACES)) if each]
    assert len(bob) == MAX_PLACES // 2
    assert len(given_up(ann)) == MAX_PLACES // 2
    assert room.come("ann") is None
    assert room.come("eve") is not None


def test_addresses_of_one_user_share_alike() -> None:
    room = Room()
    first = room.fill("ann")
    second = [each for each in (room.come("ann", OTHER) for _ in range(MAX_PLACES)) if each]
    assert len(second) == MAX_PLACES // 2
    assert len(given_up(first)) == MAX_PLACES // 2


def test_addresses_of_one_network_are_one() -> None:
    room = Room()
    first = room.fill("ann", "2001:db8::1")
    assert room.come("ann", "2001:db8::2") is None
    assert given_up(first) == []
    assert room.come("ann", "2001:db8:0:1::2") is not None


def test_who_is_behind_gives_way_to_anybody_and_is_dropped() -> None:
    room = Room()
    room.come("eve", OTHER)
    slow = room.come("bob", OTHER, BEHIND_EVENTS)
    ann = [room.come("ann") for _ in range(MAX_PLACES - 2)]
    assert all(ann)
    assert room.come("ann") is not None
    assert slow is not None
    assert slow.is_given_up
    assert room.dropped == ["bob"]
    assert room.come("ann") is None


def test_who_is_behind_for_longest_goes_first() -> None:
    room = Room()
    ann = [room.come("ann", missed=BEHIND_EVENTS + (number == 5)) for number in range(MAX_PLACES)]
    room.come("ann")
    assert [each.is_given_up for each in ann if each].index(True) == 5


def test_who_has_taken_all_again_is_not_behind() -> None:
    behind = [True]
    place = Place("ann", HOST, lambda: behind[0])
    for _ in range(BEHIND_EVENTS):
        place.look()
    behind[0] = False
    place.look()
    assert place.missed == 0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([HOST, OTHER])), max_size=80))
def test_there_are_never_more_and_nobody_loses_the_last(comers: list[tuple[str, str]]) -> None:
    room = Room()
    there: list[Place] = []
    for user, host in comers:
        found = room.come(user, host)
        if found is not None:
            there = [each for each in [*there, found] if not each.is_given_up]
        assert len(there) <= MAX_PLACES
        # Four users, of two addresses: each has a place while it asks for one.
        assert any(each.user == user for each in there)
