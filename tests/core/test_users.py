"""The broker's own users: a table that commands change, beside the configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.authentication import MOSQUITTO_7, Pool
from tests.support.certificates import replace_file
from tests.support.server import Server
from trivium.config import (
    AuthConfig,
    Config,
    HttpAuthConfig,
    JwtConfig,
    ListenerConfig,
    StorageConfig,
    UserConfig,
)
from trivium.errors import AccessRefused, LimitExceeded, NotFound, PreconditionFailed
from trivium.listen import TlsConfig
from trivium.runtime.authentication import Authentication
from trivium.runtime.broker import Broker
from trivium.security import users as module
from trivium.security.granted import USER
from trivium.security.identity import Identity
from trivium.security.passwords import hash_password
from trivium.security.permissions import READ, Grants, grants_of
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


# What is set for a name


def broker_of(**options: Any) -> Broker:
    return Server(config=Config(storage=StorageConfig(mode="memory"), **options)).broker


def test_nothing_is_granted_to_a_name_that_nobody_has() -> None:
    broker = broker_of()
    granted, limits = broker.authentication.granted, broker.logins.limits
    with pytest.raises(NotFound, match="no user 'ann'"):
        granted.set(USER, "ann", grants_of({"/": {"read": ".*"}}, {}, [], []))
    with pytest.raises(NotFound, match="no user 'ann'"):
        limits.set("ann", {"max-queues": 5})
    assert broker.permissions.user("ann") is None
    assert list(limits.all()) == []
    broker.users.add("ann", "p")
    granted.set(USER, "ann", Grants())
    limits.set("ann", {"max-queues": 5})


def test_users_of_a_password_file_are_known_by_their_names(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    file.write_text(f"ann:{hash_password(b'p')}\n")
    broker = broker_of(auth=AuthConfig(password_files=(str(file),)))
    broker.authentication.granted.set(USER, "ann", Grants())
    with pytest.raises(NotFound):
        broker.authentication.granted.set(USER, "bob", Grants())


def test_nothing_is_added_to_what_a_name_has_whose_line_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    file.write_text(f"ann:{hash_password(b'p')}\n")
    broker = broker_of(auth=AuthConfig(password_files=(str(file),)))
    granted, limits = broker.authentication.granted, broker.logins.limits
    reads = {"/": {"read": ".*"}, "a": {"read": ".*"}}
    granted.set(USER, "ann", grants_of(reads, {}, [], ["r"]))
    limits.set("ann", {"max-queues": 5, "max-channels": 5})
    replace_file(file, b"")
    assert broker.authentication.files is not None
    while broker.authentication.knows("ann"):
        broker.authenticator.look(0)
    before = broker.permissions.user("ann")
    for more in (
        grants_of(reads | {"b": {"read": ".*"}}, {}, [], ["r"]),
        grants_of({"/": {"write": ".*", "read": ".*"}}, {}, [], []),
        grants_of(reads, {"/": {"amq.topic": {"read": "a"}}}, [], ["r"]),
        grants_of(reads, {}, ["topic read a"], ["r"]),
        grants_of(reads, {}, [], ["r", "s"]),
    ):
        with pytest.raises(NotFound, match="no user 'ann'"):
            granted.set(USER, "ann", more)
    for found in ({"max-queues": 6, "max-channels": 5}, {"max-connections": 1}):
        with pytest.raises(NotFound, match="no user 'ann'"):
            limits.set("ann", found)
    assert broker.permissions.user("ann") is before
    # What it has can be taken back in parts.
    granted.set(USER, "ann", grants_of({"/": {"read": ".*"}}, {}, [], []))
    limits.set("ann", {"max-queues": 5})
    assert list(limits.all()) == [("ann", {"max-queues": 5})]
    limits.set("ann", {})
    granted.delete(USER, "ann")


@pytest.mark.parametrize("road", ["token", "certificate", "http"])
def test_a_name_that_only_others_know_may_be_granted_something(road: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"http_auth": HttpAuthConfig(url="http://127.0.0.1:1/")}
    if road == "token":
        key = tmp_path / "key"
        key.write_text("s" * 32)
        options = {"jwt": JwtConfig(key_file=str(key), algorithms=("HS256",))}
    elif road == "certificate":
        tls = TlsConfig(certificate="c", key="k", ca="ca")
        options = {"listeners": (ListenerConfig(protocol="mqtt", address="127.0.0.1:0", tls=tls),)}
    broker = broker_of(**options)
    broker.authentication.granted.set(USER, "ann", Grants())
    broker.logins.limits.set("ann", {"max-queues": 5})


def test_a_new_user_begins_with_nothing_whatever_was_granted_to_its_name() -> None:
    broker = broker_of(http_auth=HttpAuthConfig(url="http://127.0.0.1:1/"))
    granted = broker.authentication.granted
    granted.set(USER, "ann", grants_of({"/": {"read": ".*"}}, {}, [], ["r"]))
    broker.logins.limits.set("ann", {"max-queues": 5})
    broker.users.add("ann", "p")
    assert broker.permissions.user("ann") is None
    assert list(broker.logins.limits.all()) == []
    assert list(broker.storage.table("permissions").items()) == []
    assert list(broker.storage.table("limits").items()) == []


def test_what_the_configuration_grants_to_a_name_holds_for_a_user_of_it(tmp_path: Path) -> None:
    file = tmp_path / "acl"
    file.write_text("user ann\ntopic read t\n")
    broker = broker_of(auth=AuthConfig(acl_file=str(file)))
    broker.users.add("ann", "p")
    grants = broker.permissions.user("ann")
    assert grants is not None
    assert [line.text for line in grants.acl] == ["topic read t"]
