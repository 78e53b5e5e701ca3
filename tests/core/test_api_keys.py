"""API keys: a user's, hashed at rest, with an expiry and scopes."""

import hashlib

import pytest

from tests.support.authentication import MOSQUITTO_7, Pool
from trivium.common.values import pack
from trivium.config import Config
from trivium.errors import LimitExceeded, NotFound, PreconditionFailed
from trivium.runtime.authentication import Authentication
from trivium.security import api_keys as module
from trivium.security.attempts import Attempt, Login
from trivium.security.identity import Identity
from trivium.storage.memory import MemoryStorage


class Opened:
    def __init__(self, storage: MemoryStorage | None = None) -> None:
        self.now_ms = 1000
        self.changes = 0
        self.pool = Pool()
        self.storage = storage or MemoryStorage()
        found = Authentication(
            Config(), self.pool, changed=self.changed, now_ms=lambda: self.now_ms
        )
        found.open(self.storage)
        self.authenticator, self.users, self.keys = found.authenticator, found.users, found.api_keys

    def changed(self) -> None:
        self.changes += 1

    def login(self, password: str, username: str | None = None) -> Login | None:
        answers: list[Login | None] = []
        shown = Attempt(username=username, password=password.encode())
        self.authenticator.authenticate(shown, answers.append)
        self.pool.run()
        (answer,) = answers
        return answer


@pytest.fixture
def opened() -> Opened:
    found = Opened()
    found.users.add("ann", MOSQUITTO_7, ["monitoring", "administrator"])
    return found


def test_a_key_stands_for_a_password_of_its_user(opened: Opened) -> None:
    _, text = opened.keys.add("ann")
    for username in ("", None):
        login = opened.login(text, username)
        assert login is not None
        assert login.identity.name == "ann"
        assert login.identity.tags == {"monitoring", "administrator"}
    assert opened.login(text, "guest") is None
    assert opened.login(text[:-1] + ("0" if text[-1] != "0" else "1")) is None
    assert opened.pool.done == 2, "a refusal costs a hash, though the method took none"


def test_a_key_stands_beside_the_name_of_its_user(opened: Opened) -> None:
    _, text = opened.keys.add("ann")
    assert opened.login(text, "ann") is not None


def test_what_is_stored_is_not_the_key(opened: Opened) -> None:
    key, text = opened.keys.add("ann")
    secret = text.rpartition("_")[2]
    rows = dict(opened.storage.table("keys").items())
    assert list(rows) == [key.id.encode()]
    assert secret.encode() not in rows[key.id.encode()]
    assert secret not in repr(opened.keys.all())
    assert repr(key.digest) not in repr(key)


def test_keys_are_there_again(opened: Opened) -> None:
    key, text = opened.keys.add("ann", ["monitoring"], 5000)
    again = Opened(opened.storage)
    assert again.keys.all() == [key]
    login = again.login(text)
    assert login is not None
    assert login.identity.tags == {"monitoring"}
    assert login.expires_ms == 5000


def test_a_key_gives_no_tag_that_its_user_has_not(opened: Opened) -> None:
    for add in (opened.keys.add, opened.keys.add_own):
        with pytest.raises(PreconditionFailed, match="user 'ann' has no tag 'other'"):
            add("ann", ["monitoring", "other"])
    assert opened.keys.all() == []
    _, text = opened.keys.add("ann", ["monitoring", "policymaker"])
    opened.users.set_tags("ann", ["monitoring"])
    login = opened.login(text)
    assert login is not None
    assert login.identity.tags == {"monitoring"}
    opened.users.set_tags("ann", [])
    current = opened.authenticator.current(login)
    assert current is not None
    assert current.identity.tags == set()


@pytest.mark.parametrize(
    ("tag", "implied"),
    [
        ("administrator", ["policymaker", "monitoring", "management"]),
        ("policymaker", ["management"]),
        ("monitoring", ["management"]),
        ("management", []),
        ("other", []),
    ],
)
def test_a_key_may_have_a_tag_that_one_of_its_user_implies(
    opened: Opened, tag: str, implied: list[str]
) -> None:
    opened.users.set_tags("ann", [tag])
    for wanted in ("administrator", "policymaker", "monitoring", "management", "other"):
        if wanted not in (tag, *implied):
            with pytest.raises(PreconditionFailed, match=f"no tag '{wanted}'"):
                opened.keys.add("ann", [wanted])
            continue
        login = opened.login(opened.keys.add("ann", [wanted])[1])
        assert login is not None
        assert login.identity.tags == {wanted}


def test_a_key_without_any_scope_is_refused(opened: Opened) -> None:
    for add in (opened.keys.add, opened.keys.add_own):
        with pytest.raises(PreconditionFailed, match="permits nothing"):
            add("ann", [])
    assert opened.keys.all() == []


def test_a_key_that_was_stored_without_any_scope_permits_nothing(opened: Opened) -> None:
    secret = "00" * module.SECRET_BYTES
    row = pack(["ann", hashlib.sha256(secret.encode()).digest(), [], 0])
    opened.storage.table("keys").put(b"0123456789abcdef", row)
    login = Opened(opened.storage).login(f"trivium_0123456789abcdef_{secret}")
    assert login is not None
    assert login.identity == Identity("ann", scopes=(), is_narrowed=True)


def test_a_key_with_scopes_narrows_what_its_user_may(opened: Opened) -> None:
    _, text = opened.keys.add("ann", ["monitoring", "tag:administrator", "read:*/q"])
    login = Opened(opened.storage).login(text)
    assert login is not None
    tags = frozenset(["monitoring", "administrator"])
    assert login.identity == Identity("ann", tags, scopes=("read:*/q",), is_narrowed=True)
    _, text = opened.keys.add("ann", ["read:*/q"])
    login = opened.login(text)
    assert login is not None
    assert login.identity.tags == set()
    assert opened.authenticator.current(login) is login


def test_a_scope_that_is_misspelt_is_refused(opened: Opened) -> None:
    with pytest.raises(PreconditionFailed, match="no scope"):
        opened.keys.add("ann", ["reed:*/q"])


def test_a_key_expires(opened: Opened) -> None:
    _, text = opened.keys.add("ann", expires_ms=2000)
    assert opened.login(text) is not None
    opened.now_ms = 2000
    assert opened.login(text) is None
    with pytest.raises(PreconditionFailed):
        opened.keys.add("ann", expires_ms=2000)


def test_a_key_that_is_taken_back_holds_no_more(opened: Opened) -> None:
    key, text = opened.keys.add("ann")
    login = opened.login(text)
    assert login is not None
    before = opened.changes
    opened.keys.delete(key.id)
    assert opened.changes == before + 1
    assert opened.authenticator.current(login) is None
    assert opened.login(text) is None
    with pytest.raises(NotFound):
        opened.keys.delete(key.id)


def test_a_key_goes_with_its_user(opened: Opened) -> None:
    _, text = opened.keys.add("ann")
    login = opened.login(text)
    assert login is not None
    opened.keys.delete_of("ann")
    opened.users.delete("ann")
    assert opened.authenticator.current(login) is None
    assert opened.login(text) is None
    opened.users.deleted("ann")
    opened.users.add("ann", MOSQUITTO_7)
    assert opened.login(text) is None, "of one who was called the same"
    with pytest.raises(NotFound):
        opened.keys.add("nobody")


def test_there_are_so_many_keys_at_most(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEYS", 1)
    opened.keys.add("ann")
    with pytest.raises(LimitExceeded):
        opened.keys.add("ann")


def test_a_key_that_is_taken_back_does_not_come_back_with_a_restart(opened: Opened) -> None:
    key, text = opened.keys.add("ann")
    opened.keys.delete(key.id)
    again = Opened(opened.storage)
    assert again.keys.all() == []
    assert again.login(text) is None
