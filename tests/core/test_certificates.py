"""Client certificates in place of a password: whom they let in, and as whom."""

from __future__ import annotations

import pytest

from tests.support.authentication import MOSQUITTO_7, Pool
from trivium.common.events import Events
from trivium.config import Config, UserConfig
from trivium.runtime.authentication import Authentication
from trivium.security.attempts import Attempt, Login
from trivium.security.identity import Identity
from trivium.storage.memory import MemoryStorage


class World:
    """A broker with the user ann of the table, and bob of the configuration."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.events = Events()
        config = Config(users={"bob": UserConfig(password="b")})
        self.found = Authentication(config, self.pool, events=self.events)
        self.found.open(MemoryStorage())
        self.found.users.add("ann", MOSQUITTO_7, ["monitoring"])

    def login(self, owner: str, username: str | None = None, password: bytes = b"") -> Login | None:
        answers: list[Login | None] = []
        shown = Attempt(username=username, password=password, certificate_user=owner)
        self.found.authenticator.authenticate(shown, answers.append)
        self.pool.run()
        (answer,) = answers
        return answer


@pytest.mark.parametrize("username", [None, "", "ann"])
def test_whoever_shows_no_password_is_the_owner(username: str | None) -> None:
    login = World().login("ann", username)
    assert login is not None
    assert login.identity == Identity("ann", frozenset(["monitoring"]))


def test_the_owner_is_nobody_else() -> None:
    assert World().login("ann", "bob") is None


def test_a_password_decides_where_there_is_one() -> None:
    world = World()
    login = world.login("ann", "bob", b"b")
    assert login is not None
    assert login.identity.name == "bob"
    assert world.login("bob", "bob", b"wrong") is None


@pytest.mark.parametrize("username", [None, "", "ann"])
def test_a_certificate_of_several_names_is_refused_and_the_reason_told(
    username: str | None,
) -> None:
    """Also where clients without credentials may come in: it is not one of them."""
    world = World()
    told: list[object] = []
    world.events.listen(lambda name, about: told.append((name, about.get("reason"))))
    answers: list[Login | None] = []
    shown = Attempt(username=username, is_certificate_ambiguous=True, admits_anonymous=True)
    world.found.authenticator.authenticate(shown, answers.append)
    world.pool.run()
    assert answers == [None]
    assert told == [("user.authentication.failure", "the certificate has several names")]


def test_a_password_decides_beside_a_certificate_of_several_names() -> None:
    world = World()
    answers: list[Login | None] = []
    shown = Attempt(username="bob", password=b"b", is_certificate_ambiguous=True)
    world.found.authenticator.authenticate(shown, answers.append)
    world.pool.run()
    assert answers[0] is not None


@pytest.mark.parametrize("owner", ["a\nb", "x" * 256])
def test_a_name_that_no_user_may_have_is_refused(owner: str) -> None:
    assert World().login(owner) is None


def test_the_owner_has_the_tags_that_its_user_has_by_now() -> None:
    world = World()
    login = world.login("ann")
    assert login is not None
    assert world.found.authenticator.current(login) is login
    world.found.users.set_tags("ann", [])
    current = world.found.authenticator.current(login)
    assert current is not None
    assert current.identity == Identity("ann")
