"""The broker's own users: a table that commands change, beside the configuration."""

from collections.abc import Callable

import pytest

from tests.support.authentication import MOSQUITTO_7, Pool
from trivium.config import Config, UserConfig
from trivium.errors import AccessRefused, LimitExceeded, NotFound, PreconditionFailed
from trivium.runtime.authentication import Authentication
from trivium.security import users as module
from trivium.security.identity import Identity
from trivium.security.permissions import READ, grants_of
from trivium.security.users import Users
from trivium.storage.memory import MemoryStorage


class Changes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def opened(storage: MemoryStorage, changes: Callable[[], None] = lambda: None) -> Users:
    config = Config(users={"fixed": UserConfig(password="x")})
    found = Authentication(config, Pool(), changed=changes)
    found.open(storage)
    return found.users


def test_users_are_rows_of_the_table_users() -> None:
    storage, changes = MemoryStorage(), Changes()
    users = opened(storage, changes)
    users.add("ann", MOSQUITTO_7, ["monitoring"])
    users.add("bob", MOSQUITTO_7)
    users.set_tags("bob", ["administrator"])
    users.delete("ann")
    assert changes.count == 4
    again = opened(storage)
    assert again.find("ann") is None
    found = again.find("bob")
    assert found is not None
    assert (found.stored, found.tags) == (MOSQUITTO_7, frozenset(["administrator"]))
    assert [user.name for user in again.all()] == ["bob", "fixed", "guest"]


def test_a_user_of_the_configuration_cannot_be_changed() -> None:
    users = opened(MemoryStorage())
    changes: list[Callable[[str], None]] = [
        lambda name: users.set_password(name, MOSQUITTO_7),
        lambda name: users.set_tags(name, []),
        users.delete,
    ]
    for change in changes:
        for name in ("fixed", "guest"):
            with pytest.raises(AccessRefused, match="stands in the configuration"):
                change(name)
        with pytest.raises(NotFound):
            change("nobody")
    with pytest.raises(PreconditionFailed, match="exists"):
        users.add("fixed", MOSQUITTO_7)


def test_a_user_of_the_configuration_holds_before_one_of_the_table() -> None:
    storage = MemoryStorage()
    found = Authentication(Config(), Pool())
    found.open(storage)
    found.users.add("fixed", MOSQUITTO_7)
    user = opened(storage).find("fixed")
    assert user is not None
    assert user.stored == "x"


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "a\nb", "\udc80", "a\x00"])
def test_what_is_no_name_for_a_user(name: str) -> None:
    with pytest.raises(PreconditionFailed):
        opened(MemoryStorage()).add(name, MOSQUITTO_7)


@pytest.mark.parametrize("name", ["+", "#", "a/b", "%u", "x" * 255, "名前", "a b", "a:b"])
def test_what_is_a_name_for_a_user(name: str) -> None:
    users = opened(MemoryStorage())
    users.add(name, MOSQUITTO_7)
    assert users.find(name) is not None


@pytest.mark.parametrize("tags", [[""], ["x" * 65], ["a\n"], [str(n) for n in range(33)]])
def test_what_are_no_tags(tags: list[str]) -> None:
    with pytest.raises(PreconditionFailed):
        opened(MemoryStorage()).add("ann", MOSQUITTO_7, tags)


def test_there_are_so_many_users_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_USERS", 2)
    users = opened(MemoryStorage())
    users.add("a", MOSQUITTO_7)
    users.add("b", MOSQUITTO_7)
    with pytest.raises(LimitExceeded):
        users.add("c", MOSQUITTO_7)


def test_the_acl_of_a_user_moves_with_its_virtual_host() -> None:
    told: list[str | None] = []
    found = Authentication(Config(), Pool(), permissions_changed=told.append)
    found.open(MemoryStorage())
    found.users.add("ann", MOSQUITTO_7)
    found.permissions.set_user("ann", grants_of({}, {}, ["topic read t"], []))
    accesses = [found.permissions.access(Identity("ann"), vhost) for vhost in ("/", "farm")]
    assert [access.may_topic(READ, "amq.topic", b"t") for access in accesses] == [True, False]
    found.set_virtual_host("ann", "farm")
    assert [access.may_topic(READ, "amq.topic", b"t") for access in accesses] == [False, True]
    assert told == ["ann"]
