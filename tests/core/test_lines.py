"""Many attempts at once are looked at as if they came one after another."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from tests.support.authentication import MOSQUITTO_7, Moved, Pool
from tests.support.steps import living
from trivium.common.events import Events
from trivium.config import Config, UserConfig
from trivium.runtime.authentication import Authentication
from trivium.security import lines as module
from trivium.security.attempts import REFUSED, Attempt, Decided, Login, Method, Verdict
from trivium.security.authenticator import Authenticator
from trivium.security.hash_queue import HashQueue
from trivium.security.identity import Identity
from trivium.storage.memory import MemoryStorage


class Held(Method):
    """Keeps what it is asked until the test answers."""

    name = "held"

    def __init__(self) -> None:
        self.asked: list[tuple[Attempt, Decided]] = []

    def check(self, attempt: Attempt, decided: Decided) -> None:
        self.asked.append((attempt, decided))

    def answer(self, name: str | None = None) -> None:
        """Refuse the first one, or let it in as somebody."""
        _, decided = self.asked.pop(0)
        decided(REFUSED if name is None else Verdict(Login(identity=Identity(name))))


class Door:
    """An authenticator with one method, and the answers to who came."""

    def __init__(self) -> None:
        self.clock = Moved()
        self.held = Held()
        hashes = HashQueue(Pool(), self.clock, Events(), 10_000)
        self.authenticator = Authenticator([self.held], ("held",), "never", hashes, self.clock)
        self.answers: list[bool] = []

    def come(
        self,
        user: str = "ann",
        address: str = "10.0.0.1",
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        attempt = Attempt(username=user, password=b"x", address=address, is_gone=is_gone)
        self.authenticator.authenticate(
            attempt, lambda login: self.answers.append(login is not None)
        )


def test_of_an_address_and_user_so_many_are_looked_at_as_may_fail_freely() -> None:
    door = Door()
    for _ in range(150):
        door.come()
    assert len(door.held.asked) == 3
    for _ in range(2):
        door.held.answer()
        door.clock.move(0)
        assert len(door.held.asked) == 3 - len(door.answers)
    door.held.answer()
    assert door.held.asked == []
    for wait in (250, 500, 1000, 2000, 4000):
        door.clock.move(wait - 1)
        assert door.held.asked == []
        door.clock.move(1)
        assert len(door.held.asked) == 1
        door.held.answer()
    assert door.clock.at == 7750
    assert door.answers == [False] * 8


@pytest.mark.parametrize("stored", ["plain", MOSQUITTO_7])
def test_in_eight_seconds_eight_guesses_are_looked_at(stored: str) -> None:
    pool, clock = Pool(), Moved()
    found = Authentication(Config(users={"ann": UserConfig(password=stored)}), pool, clock=clock)
    found.open(MemoryStorage())
    answers: list[Login | None] = []
    attempt = Attempt(username="ann", password=b"wrong", address="10.0.0.1")
    for _ in range(150):
        found.authenticator.authenticate(attempt, answers.append)
    pool.run()
    for _ in range(80):
        clock.move(100)
        pool.run()
    assert len(answers) == 8


def test_others_do_not_wait_in_that_line() -> None:
    door = Door()
    for _ in range(10):
        door.come()
    door.come("bob")
    door.come("ann", "10.0.0.2")
    assert [(each.username, each.address[-1]) for each, _ in door.held.asked[3:]] == [
        ("bob", "1"),
        ("ann", "2"),
    ]


def test_once_one_is_right_all_that_wait_are_looked_at() -> None:
    pool, clock = Pool(), Moved()
    found = Authentication(Config(), pool, clock=clock)
    found.open(MemoryStorage())
    found.users.add("ann", MOSQUITTO_7)
    answers: list[Login | None] = []
    attempt = Attempt(username="ann", password=b"right", address="10.0.0.1")
    for _ in range(100):
        found.authenticator.authenticate(attempt, answers.append)
    pool.run()
    clock.move(0)
    assert pool.done == 3
    assert [login is not None for login in answers] == [True] * 100


def test_a_line_that_is_empty_is_forgotten() -> None:
    clock = Moved()
    lines = module.Lines(lambda _: 1, clock, Events(), 10_000)
    begun: list[bool] = []
    for _ in range(3):
        lines.enter("ann", Attempt(username="ann"), begun.append)
    for _ in range(3):
        assert len(lines) == 1
        lines.leave("ann")
        clock.move(0)
    assert begun == [True] * 3
    assert len(lines) == 0


def test_of_an_address_so_many_are_looked_at_together() -> None:
    door = Door()
    for number in range(60):
        door.come(f"user{number}")
    door.come("other", "10.0.0.2")
    assert len(door.held.asked) == 51
    door.held.answer()
    door.clock.move(0)
    assert len(door.held.asked) == 51
    assert door.held.asked[-1][0].username == "user50"


def test_beyond_so_many_that_wait_further_ones_are_refused_and_have_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_IN_LINE", 4)
    monkeypatch.setattr(module, "MAX_IN_LINES", 5)
    door = Door()
    for _ in range(9):
        door.come()
    assert door.answers == [False] * 2
    for _ in range(5):
        door.come("bob")
    assert door.answers == [False] * 3, "five wait in all lines"
    while door.held.asked:
        door.held.answer("ann")
        door.clock.move(0)
    assert len(door.answers) == 14
    for _ in range(3):
        door.come("bob")
    assert len(door.held.asked) == 3


def test_who_has_left_or_waited_too_long_is_not_looked_at() -> None:
    door = Door()
    for _ in range(3):
        door.come()
    door.come(is_gone=lambda: True)
    door.come()
    door.clock.move(10_001)
    door.come("ann")
    for _ in range(3):
        door.held.answer("ann")
    door.clock.move(0)
    assert len(door.held.asked) == 1
    assert door.answers == [True] * 3 + [False] * 2


def test_who_leaves_during_its_wait_is_not_looked_at_and_the_next_one_is() -> None:
    door = Door()
    for _ in range(3):
        door.come()
        door.held.answer()
    has_left = False
    door.come(is_gone=lambda: has_left)
    door.come()
    has_left = True
    door.clock.move(250)
    assert door.held.asked == []
    door.clock.move(250)
    assert len(door.held.asked) == 1


def test_a_credential_of_another_user_clears_no_count() -> None:
    """Beside a token any name may stand: its owner would guess the passwords of others."""
    door = Door()
    for answer in (None, None, "eve", None):
        door.come()
        door.held.answer(answer)
    door.come()
    assert door.held.asked == []
    door.clock.move(250)
    assert len(door.held.asked) == 1


def test_proofs_stand_in_the_same_line() -> None:
    door = Door()
    proofs: list[int] = []
    attempt = Attempt(username="ann", address="10.0.0.1")
    for _ in range(2):
        door.come()
    for number in range(3):
        door.authenticator.prove(attempt, lambda n=number: proofs.append(n), lambda _: None)  # type: ignore[misc]
    door.clock.move(0)
    assert len(door.held.asked) == 2
    assert proofs == [0]
    door.held.answer()
    door.held.answer()
    door.clock.move(249)
    assert proofs == [0]
    door.clock.move(1)
    assert proofs == [0, 1]


def test_what_an_answer_raises_keeps_nobody_in_line() -> None:
    door = Door()

    def fail(_: Login | None) -> None:
        raise RuntimeError("of a client")

    attempt = Attempt(username="ann", password=b"x", address="10.0.0.1")
    for _ in range(3):
        door.authenticator.authenticate(attempt, fail)
    door.come()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            door.held.answer()
    door.clock.move(250)
    assert len(door.held.asked) == 1


def test_an_attempt_that_is_over_is_freed_at_once() -> None:
    """No collection is needed, nor made: it would walk all messages."""
    door = Door()
    gc.collect()
    gc.disable()
    try:
        before = living(Attempt)
        for _ in range(10):
            door.come()
        while door.held.asked:
            door.held.answer("ann")
            door.clock.move(0)
        assert door.answers == [True] * 10
        assert living(Attempt) == before
    finally:
        gc.enable()
