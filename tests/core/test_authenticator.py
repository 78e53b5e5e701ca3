"""Who may connect."""

from pathlib import Path
from typing import Any

import pytest

import trivium.security.passwords
from tests.support.authentication import MOSQUITTO_6, MOSQUITTO_7, Pool, attempt
from trivium.common.events import Events
from trivium.config import AuthConfig, Config, ListenerConfig, TlsConfig, UserConfig
from trivium.errors import ConfigError
from trivium.runtime.authentication import Authentication, make_authenticator
from trivium.security.attempts import REFUSED, Attempt, Decided, Login, Method
from trivium.security.authenticator import MAX_CREDENTIAL_BYTES, Authenticator
from trivium.security.clock import Clock
from trivium.security.hash_queue import HashQueue
from trivium.security.identity import Identity
from trivium.security.passwords import hash_password, work_of
from trivium.security.stored import StoredUser
from trivium.storage.memory import MemoryStorage


def test_guest_is_admitted_from_this_machine_only() -> None:
    pool = Pool()
    authenticator = make_authenticator(Config(), pool)
    assert attempt(authenticator, pool, "guest", b"guest")
    assert not attempt(authenticator, pool, "guest", b"guest", local=False)
    assert not attempt(authenticator, pool, "guest", b"wrong")


def test_who_authenticated_is_told_by_name_and_tags() -> None:
    pool = Pool()
    users = {"ann": UserConfig(password="x")}
    authenticator = make_authenticator(Config(users=users), pool)
    guest = Identity("guest", frozenset(["administrator"]))
    assert attempt(authenticator, pool, "guest", b"guest") == guest
    assert attempt(authenticator, pool, "ann", b"x") == Identity("ann")
    assert attempt(authenticator, pool, "ann", b"y") is None
    tags = frozenset(["policymaker", "monitoring"])
    assert authenticator.anonymous == Identity("", tags, is_anonymous=True)


def test_guest_can_be_switched_off() -> None:
    pool = Pool()
    authenticator = make_authenticator(Config(auth=AuthConfig(guest=False)), pool)
    assert not attempt(authenticator, pool, "guest", b"guest")


def test_configured_guest_is_a_user_like_any_other() -> None:
    pool = Pool()
    config = Config(users={"guest": UserConfig(password="long secret")})
    authenticator = make_authenticator(config, pool)
    assert attempt(authenticator, pool, "guest", b"long secret", local=False)
    assert not attempt(authenticator, pool, "guest", b"guest")


def test_plain_password_is_answered_at_once() -> None:
    pool = Pool()
    authenticator = make_authenticator(Config(users={"ann": UserConfig(password="x")}), pool)
    assert attempt(authenticator, pool, "ann", b"x", local=False)
    assert not attempt(authenticator, pool, "ann", b"y")
    assert not attempt(authenticator, pool, "bob", b"x")
    assert pool.done == 0


def test_hashed_password_is_checked_in_the_pool_once() -> None:
    pool = Pool()
    config = Config(users={"ann": UserConfig(password=hash_password(b"right"))})
    authenticator = make_authenticator(config, pool)
    assert not attempt(authenticator, pool, "ann", b"wrong")
    assert attempt(authenticator, pool, "ann", b"right")
    assert pool.done == 2
    assert attempt(authenticator, pool, "ann", b"right")
    assert pool.done == 2, "right credentials are remembered"
    assert not attempt(authenticator, pool, "ann", b"wrong")
    assert pool.done == 3


def test_oversized_password_is_refused_without_hashing() -> None:
    pool = Pool()
    config = Config(users={"ann": UserConfig(password=hash_password(b"right"))})
    assert not attempt(make_authenticator(config, pool), pool, "ann", b"x" * 1025)
    assert pool.done == 0


class Hashing:
    """Records what each hash costs that is made."""

    def __init__(self) -> None:
        self.costs: list[tuple[str, tuple[int, ...]]] = []
        self._derive = trivium.security.passwords.derive

    def __call__(
        self, scheme: str, cost: tuple[int, ...], password: bytes, salt: bytes, length: int
    ) -> bytes:
        self.costs.append((scheme, cost))
        return self._derive(scheme, cost, password, salt, length)


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> Hashing:
    found = Hashing()
    monkeypatch.setattr(trivium.security.passwords, "derive", found)
    return found


#: a hash that takes little work
CHEAP = "$scrypt$ln=4,r=8,p=1$c2FsdHNhbHRzYWx0c2FsdA$Jn4ZN2BGd3p8lFSRI7kRhgMf5UJUFXQI0Qhuq1JxFTc"


def mixed() -> Config:
    users = {
        "ann": UserConfig(password=hash_password(b"right")),
        "bob": UserConfig(password="plain"),
    }
    return Config(users=users)


@pytest.mark.parametrize(
    ("username", "password", "local"),
    [
        ("ann", b"wrong", True),
        ("nobody", b"wrong", True),
        ("nobody", b"right", True),
        ("nobody", b"", True),
        ("bob", b"wrong", True),
        ("guest", b"wrong", True),
        ("guest", b"guest", False),
    ],
)
def test_a_refusal_takes_the_same_work_whoever_is_refused(
    hashing: Hashing, username: str, password: bytes, local: bool
) -> None:
    pool = Pool()
    authenticator = make_authenticator(mixed(), pool)
    hashing.costs.clear()
    for times in (1, 2):
        assert not attempt(authenticator, pool, username, password, local)
        assert pool.done == times
    assert hashing.costs == [("argon2id", (19456, 2, 1))] * 2


def test_a_refusal_takes_a_hash_of_each_kind_whoever_is_refused(hashing: Hashing) -> None:
    """The work of a user with a cheap hash is not less than that of one who does not exist."""
    pool = Pool()
    users = {
        "ann": UserConfig(password=CHEAP),
        "eve": UserConfig(password=MOSQUITTO_7),
        "bob": UserConfig(password=hash_password(b"x")),
        "joe": UserConfig(password=hash_password(b"x")),
        "tim": UserConfig(password="plain"),
    }
    authenticator = make_authenticator(Config(users=users), pool)
    for name in ("ann", "eve", "bob", "joe", "tim", "guest", "nobody", "nobody2"):
        hashing.costs.clear()
        assert not attempt(authenticator, pool, name, b"wrong")
        kinds = sorted(scheme for scheme, _ in hashing.costs)
        assert kinds == ["argon2id", "pbkdf2-sha512", "scrypt"], name


def test_a_refusal_takes_the_costliest_kinds_where_there_are_many(hashing: Hashing) -> None:
    pool = Pool()
    users = {
        f"user{rounds}": UserConfig(password=MOSQUITTO_7.replace("$101$", f"${rounds}$"))
        for rounds in (1, 2, 3, 4, 5, 6)
    }
    authenticator = make_authenticator(Config(users=users), pool)
    for name, own in (("nobody", []), ("user6", []), ("user3", []), ("user1", [1])):
        hashing.costs.clear()
        assert not attempt(authenticator, pool, name, b"wrong")
        assert sorted(cost[0] for _, cost in hashing.costs) == [*own, 3, 4, 5, 6], name


def test_the_costliest_kind_is_told_by_its_work() -> None:
    argon2 = hash_password(b"x")
    scrypt = CHEAP.replace("ln=4", "ln=14")
    longer = MOSQUITTO_7.replace("$101$", "$60000$")
    assert work_of(longer) > work_of(scrypt) > work_of(argon2) > work_of(MOSQUITTO_7)
    assert work_of(MOSQUITTO_7) > work_of(CHEAP) > work_of(MOSQUITTO_6)


def test_a_refusal_takes_the_work_of_the_users_that_there_are_by_now() -> None:
    pool = Pool()
    found = Authentication(Config(), pool)
    found.users.open(MemoryStorage().table("users"))
    assert not attempt(found.authenticator, pool, "nobody", b"wrong")
    assert pool.done == 0
    found.users.add("ann", CHEAP)
    assert not attempt(found.authenticator, pool, "nobody", b"wrong")
    assert pool.done == 1
    found.users.delete("ann")
    assert not attempt(found.authenticator, pool, "nobody", b"wrong")
    assert pool.done == 1


def test_the_password_of_another_user_is_wrong_for_an_unknown_one() -> None:
    pool = Pool()
    authenticator = make_authenticator(mixed(), pool)
    assert attempt(authenticator, pool, "ann", b"right")
    for _ in range(2):
        assert not attempt(authenticator, pool, "nobody", b"right")
        assert not attempt(authenticator, pool, "bob", b"right")
    assert attempt(authenticator, pool, "bob", b"plain")


def listener(address: str, anonymous: str = "") -> ListenerConfig:
    return ListenerConfig(protocol="mqtt", address=address, anonymous=anonymous)  # type: ignore[arg-type]


def authenticator_for(anonymous: str) -> Authenticator:
    config = Config(auth=AuthConfig(anonymous=anonymous))  # type: ignore[arg-type]
    return make_authenticator(config, Pool())


def test_anonymous_only_while_the_listener_is_bound_to_loopback() -> None:
    authenticator = authenticator_for("loopback")
    assert authenticator.admits_anonymous(listener("localhost:0"))
    assert authenticator.admits_anonymous(listener("unix:/run/trivium.sock"))
    assert not authenticator.admits_anonymous(listener("0.0.0.0:0"))


def test_anonymous_always_and_never_ignore_the_address() -> None:
    assert authenticator_for("always").admits_anonymous(listener("0.0.0.0:0"))
    assert not authenticator_for("never").admits_anonymous(listener("0"))


def test_a_listener_decides_on_anonymous_clients_itself() -> None:
    never = authenticator_for("never")
    assert never.admits_anonymous(listener("0.0.0.0:0", "always"))
    assert never.admits_anonymous(listener("[::1]:0", "loopback"))
    assert not never.admits_anonymous(listener("0.0.0.0:0", "loopback"))
    assert not authenticator_for("always").admits_anonymous(listener("0", "never"))


def test_a_chain_asks_only_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    file.write_text(f"ann:{MOSQUITTO_7}\n", encoding="utf-8")
    auth = AuthConfig(password_files=(str(file),), methods=("password-file",))
    pool = Pool()
    authenticator = make_authenticator(Config(auth=auth), pool)
    assert attempt(authenticator, pool, "ann", b"right")
    assert not attempt(authenticator, pool, "guest", b"guest")
    assert attempt(authenticator, pool, "guest", b"guest", methods=("internal",))
    assert not attempt(authenticator, pool, "ann", b"right", methods=("internal",))


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("magic",), "'magic' is not one of"),
        (("password-file",), "is not set up"),
        (("internal", "internal"), "twice"),
    ],
)
def test_a_method_that_is_not_there_ends_the_start(names: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_authenticator(Config(auth=AuthConfig(methods=names)), Pool())
    listener = ListenerConfig(protocol="mqtt", address="1", name="m", methods=names)
    with pytest.raises(ConfigError, match=f"listener m methods: .*{reason}"):
        make_authenticator(Config(listeners=(listener,)), Pool())


def test_a_remembered_password_is_of_no_use_once_another_one_is_stored() -> None:
    pool = Pool()
    found = Authentication(Config(), pool)
    found.users.open(MemoryStorage().table("users"))
    found.users.add("ann", hash_password(b"old"))
    assert attempt(found.authenticator, pool, "ann", b"old")
    found.users.set_password("ann", hash_password(b"new"))
    assert not attempt(found.authenticator, pool, "ann", b"old")
    assert attempt(found.authenticator, pool, "ann", b"new")


def test_a_password_that_is_changed_while_it_is_checked_lets_nobody_in() -> None:
    pool = Pool()
    found = Authentication(Config(), pool)
    found.users.open(MemoryStorage().table("users"))
    found.users.add("ann", MOSQUITTO_7)
    answers: list[Login | None] = []
    shown = Attempt(username="ann", password=b"right")
    found.authenticator.authenticate(shown, answers.append)
    found.users.delete("ann")
    pool.run()
    assert answers == [None]


def test_an_attempt_does_not_show_its_password() -> None:
    assert "right" not in repr(Attempt(username="ann", password=b"right"))


def test_a_login_and_a_user_do_not_show_what_is_stored() -> None:
    user = StoredUser(name="ann", stored="secret")
    assert "secret" not in repr(user)
    assert "secret" not in repr(Login(identity=user.identity, credential=user.stored))


class Asked(Method):
    """Tells how long the credentials are that it is asked about."""

    name = "asked"

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def check(self, attempt: Attempt, decided: Decided) -> None:
        self.sizes.append(len(attempt.password))
        decided(REFUSED)


def test_no_method_is_asked_about_a_credential_that_is_too_long() -> None:
    asked = Asked()
    pool = Pool()
    hashes = HashQueue(pool, Clock(), Events(), 10_000)
    authenticator = Authenticator([asked], ("asked",), "never", hashes, Clock())
    for size in (MAX_CREDENTIAL_BYTES, MAX_CREDENTIAL_BYTES + 1):
        assert attempt(authenticator, pool, "ann", b"x" * size) is None
    assert asked.sizes == [MAX_CREDENTIAL_BYTES]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"admits_anonymous": True}, None),
        ({"admits_anonymous": True, "ignores_unknown": True}, ""),
        ({"ignores_unknown": True}, None),
    ],
)
def test_credentials_that_nobody_knows_count_as_none_where_that_is_said(
    fields: dict[str, Any], name: str | None
) -> None:
    pool = Pool()
    answers: list[Login | None] = []
    shown = Attempt(username="nobody", password=b"x", **fields)
    make_authenticator(Config(), pool).authenticate(shown, answers.append)
    pool.run()
    assert [None if login is None else login.identity.name for login in answers] == [name]


@pytest.mark.parametrize(
    ("methods", "only", "is_admitted"),
    [
        ((), "internal", True),
        ((), "certificate", False),
        ((), "", False),
        (("certificate",), "internal", False),
    ],
)
def test_a_client_chooses_among_the_methods_of_its_listener(
    methods: tuple[str, ...], only: str, is_admitted: bool
) -> None:
    pool = Pool()
    config = Config(users={"ann": UserConfig(password="x")})
    answers: list[Login | None] = []
    shown = Attempt(username="ann", password=b"x", methods=methods, only=only)
    make_authenticator(config, pool).authenticate(shown, answers.append)
    pool.run()
    assert [login is not None for login in answers] == [is_admitted]


def test_certificates_alone_need_a_listener_that_verifies_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    auth = AuthConfig(methods=("certificate",))
    plain = ListenerConfig(protocol="mqtt", address="1", name="plain")
    with pytest.raises(ConfigError, match=r"\[auth\] methods: 'certificate' needs a listener"):
        make_authenticator(Config(listen={}, listeners=(plain,), auth=auth), Pool())
    tls = TlsConfig(certificate="c", key="k", ca="ca")
    secure = ListenerConfig(protocol="mqtt", address="2", name="secure", tls=tls)
    make_authenticator(Config(listen={}, listeners=(secure,), auth=auth), Pool())
    assert not caplog.messages
    make_authenticator(Config(listen={}, listeners=(plain, secure), auth=auth), Pool())
    (warning,) = caplog.messages
    assert warning.startswith("listener plain: nobody can come in")
