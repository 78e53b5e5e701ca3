"""SCRAM-SHA-256: its messages, and the keys that are kept."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.authentication import Pool
from tests.support.scram import ITERATIONS, ScramClient
from trivium.config import AuthConfig, Config, UserConfig
from trivium.errors import ConfigError, PreconditionFailed
from trivium.runtime.authentication import Authentication
from trivium.security.attempts import Attempt
from trivium.security.clock import Clock
from trivium.security.exchanges import Step
from trivium.security.passwords import PasswordFormatError, hash_password
from trivium.security.scram import (
    MAX_MESSAGE_BYTES,
    MadeUpKeys,
    ScramError,
    ScramExchange,
    make_keys,
    parse_first,
    parse_keys,
    prepare,
)
from trivium.storage.memory import MemoryStorage

#: RFC 7677, 3
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

KEYS = make_keys(b"pencil", 4096, SALT)


def test_rfc_7677_3_example() -> None:
    exchange = ScramExchange(parse_first(FIRST), KEYS, SERVER_NONCE)
    assert exchange.challenge == SERVER_FIRST
    assert exchange.finish(FINAL) == SERVER_FINAL


def test_rfc_7677_3_example_without_what_the_client_does_not_know() -> None:
    for keys in (make_keys(b"pencils", 4096, SALT), make_keys(b"pencil", 4097, SALT)):
        assert ScramExchange(parse_first(FIRST), keys, SERVER_NONCE).finish(FINAL) is None


def test_rfc_5802_5_1_nonce_is_new_each_time() -> None:
    first = parse_first(FIRST)
    one, other = ScramExchange(first, KEYS), ScramExchange(first, KEYS)
    assert one.challenge != other.challenge
    client = ScramClient("user", "pencil")
    final = client.final(one.challenge)
    # What was right in one exchange is not in another.
    assert other.finish(final) is None
    assert one.finish(final) == client.signature


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,r=abc,n=user",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=" + b"a" * 257,
        b"n,,n=us=er,r=abc",
        b"n,,n=us\0er,r=abc",
        b"n,,n=user,r=abc,noextension",
        # RFC 5802, 5.1: an extension that must be understood
        b"n,,m=x,n=user,r=abc",
        # RFC 5802, 6: channel binding is not offered
        b"p=tls-unique,,n=user,r=abc",
        b"x,,n=user,r=abc",
        # RFC 5802, 5.1: to act as another user
        b"n,a=root,n=user,r=abc",
        b"n,root,n=user,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=" + b"u" * MAX_MESSAGE_BYTES + b",r=abc",
    ],
)
def test_rfc_5802_7_what_is_no_first_message(message: bytes) -> None:
    with pytest.raises(ScramError):
        parse_first(message)


@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=u=2C=3D,"])
def test_rfc_5802_5_1_a_name_may_have_commas_and_equal_signs(header: str) -> None:
    keys = make_keys("pässword".encode(), ITERATIONS)
    client = ScramClient("u=2C=3D", "pässword", header=header)
    first = parse_first(client.first)
    assert first.name == "u,="
    exchange = ScramExchange(first, keys)
    assert exchange.finish(client.final(exchange.challenge)) == client.signature


@pytest.mark.parametrize(
    "changed",
    [
        # RFC 5802, 6: the header is another than the first message had
        {"c": base64.b64encode(b"y,,").decode()},
        {"c": ""},
        {"r": "rOprNGfwEbeRWgbNEkqO"},
        {"r": "x"},
        {"p": ""},
        {"p": "AAAA"},
        {"p": "!"},
        {"p": base64.b64encode(bytes(32)).decode()},
        {"x": ""},
    ],
)
def test_rfc_5802_5_1_what_is_wrong_in_the_last_message(changed: dict[str, str]) -> None:
    client = ScramClient("user", "pencil")
    exchange = ScramExchange(parse_first(client.first), KEYS)
    assert exchange.finish(client.final(exchange.challenge, **changed)) is None


def test_rfc_5802_5_1_an_extension_that_need_not_be_understood_is_passed_over() -> None:
    client = ScramClient("user", "pencil")
    client.bare += ",x=1"
    client.first += b",x=1"
    exchange = ScramExchange(parse_first(client.first), KEYS)
    assert exchange.finish(client.final(exchange.challenge, y="2")) == client.signature


def test_a_changed_name_is_noticed() -> None:
    client = ScramClient("user", "pencil")
    exchange = ScramExchange(parse_first(client.first.replace(b"n=user", b"n=root")), KEYS)
    assert exchange.finish(client.final(exchange.challenge)) is None


@given(st.binary(max_size=100))
def test_no_message_raises(message: bytes) -> None:
    assert ScramExchange(parse_first(FIRST), KEYS).finish(message) is None
    try:
        parse_first(message)
    except ScramError:
        pass


# RFC 4013


@pytest.mark.parametrize(
    ("password", "prepared"),
    [
        # RFC 4013, 3
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
    ],
)
def test_rfc_4013_3_passwords_are_prepared(password: str, prepared: str) -> None:
    assert prepare(password.encode()) == prepared.encode()
    assert make_keys(password.encode(), 4096, b"s") == make_keys(prepared.encode(), 4096, b"s")


@pytest.mark.parametrize(
    "password",
    [
        "\u0007".encode(),
        "\u0627\u0031".encode(),
        "\u0627a\u0627".encode(),
        b"",
        "\u00ad".encode(),
        b"\xff",
        "\ue000".encode(),
    ],
)
def test_rfc_4013_2_3_what_no_client_could_use(password: bytes) -> None:
    with pytest.raises(PasswordFormatError):
        prepare(password)


# What is kept


def test_keys_are_kept_as_rfc_5803_has_them() -> None:
    text = KEYS.text()
    assert text.startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert parse_keys(text) == KEYS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pencil",
        KEYS.text().replace("4096", "4095"),
        KEYS.text().replace("4096", "1000001"),
        KEYS.text().replace("SHA-256", "SHA-1"),
        KEYS.text()[:-8] + "=",
        KEYS.text().replace("W22ZaJ0SNY7soEsUEjb6gQ==", "A" * 120),
        KEYS.text().replace("W22ZaJ0SNY7soEsUEjb6gQ==", "A"),
    ],
)
def test_keys_that_cannot_be_used(text: str) -> None:
    with pytest.raises(PasswordFormatError):
        parse_keys(text)
    if text:
        with pytest.raises(ConfigError, match="scram"):
            UserConfig(password="x", scram=text)


def test_keys_are_not_told() -> None:
    for found in (KEYS, UserConfig(password="x", scram=KEYS.text())):
        assert not re.search(r"W22Z|\\x", repr(found))


def test_made_up_keys_last_and_differ_by_name() -> None:
    secret = b"x" * 32
    one, again = (MadeUpKeys(secret, 5000).of("ann", []) for _ in range(2))
    assert (one.salt, one.iterations) == (again.salt, 5000)
    assert MadeUpKeys(secret, 5000).of("bob", []).salt != one.salt
    assert MadeUpKeys(b"y" * 32, 5000).of("ann", []).salt != one.salt
    counts = {MadeUpKeys(secret, 5000).of(str(n), [4096, 8192]).iterations for n in range(50)}
    assert counts == {4096, 8192}


# Users


class Waits(Clock):
    """A clock that tells for how long somebody was to wait."""

    def __init__(self) -> None:
        self.waits: list[int] = []

    def call_later(self, milliseconds: int, work: Callable[[], None]) -> None:
        self.waits.append(milliseconds)
        work()


class World:
    """Who may come in by SCRAM."""

    def __init__(
        self, storage: MemoryStorage | None = None, makes_keys: bool = True, **auth: Any
    ) -> None:
        self.storage = storage or MemoryStorage()
        self.pool = Pool()
        config = Config(
            auth=AuthConfig(scram=True, scram_iterations=ITERATIONS, **auth),
            users={
                "file": UserConfig(
                    password=hash_password(b"pencil"), scram=KEYS.text(), tags=("monitoring",)
                ),
                "bare": UserConfig(password=hash_password(b"pencil")),
                "plain": UserConfig(password="pencil"),
                "odd": UserConfig(password="a\x07b"),
            },
        )
        self.clock = Waits()
        self.found = Authentication(config, self.pool, clock=self.clock)
        self.found.open(self.storage)
        if makes_keys:
            self.pool.run()

    def add(self, name: str, password: bytes) -> None:
        stored, scram = self.found.users.hash(password)
        self.found.users.add(name, stored, (), scram)

    def begin(
        self, client: ScramClient, username: str | None = None, is_loopback: bool = False
    ) -> tuple[Any, list[Step]]:
        steps: list[Step] = []
        attempt = Attempt(
            username=username,
            is_loopback=is_loopback,
            admits_anonymous=True,
            ignores_unknown=True,
        )
        exchange = self.found.authenticator.exchange("SCRAM-SHA-256", attempt)
        assert exchange is not None
        exchange.take(client.first, steps.append)
        return exchange, steps

    def login(
        self, name: str, password: str, username: str | None = None, is_loopback: bool = False
    ) -> str | None:
        client = ScramClient(name, password)
        exchange, steps = self.begin(client, username, is_loopback)
        step = steps.pop()
        if step.goes_on:
            exchange.take(client.final(step.data), steps.append)
            step = steps.pop()
        assert not step.goes_on
        assert not self.pool.waiting
        if step.login is None:
            assert step.data == b""
            return None
        assert step.data == client.signature
        return step.login.identity.name


def test_users_of_the_table_and_of_the_configuration() -> None:
    world = World()
    world.add("ann", b"secret")
    assert world.login("ann", "secret") == "ann"
    assert world.login("ann", "secret", "ann") == "ann"
    assert world.login("ann", "Secret") is None
    assert world.login("file", "pencil") == "file"


def test_the_packet_may_not_name_another_user() -> None:
    assert World().login("file", "pencil", "bare") is None


def test_a_plain_password_of_the_configuration_gets_keys_at_the_start() -> None:
    world = World()
    assert world.login("plain", "pencil") == "plain"
    assert world.login("plain", "Pencil") is None
    # What looks like a user without keys does so after a restart too.
    (first,) = world.begin(ScramClient("plain", "x"))[1]
    (again,) = World(world.storage).begin(ScramClient("plain", "x"))[1]
    assert first.data.partition(b",s=")[2] == again.data.partition(b",s=")[2]


@pytest.mark.parametrize("name", ["plain", "file", "nobody"])
def test_everybody_waits_until_keys_are_made(name: str) -> None:
    world = World(makes_keys=False)
    _, steps = world.begin(ScramClient(name, "pencil"))
    assert steps == []
    world.pool.run()
    assert [step.goes_on for step in steps] == [True]
    # Those of guest and plain, a piece of work each.
    assert world.pool.done == 2


def test_guest_proves_its_password_from_this_machine_only() -> None:
    world = World()
    assert world.login("guest", "guest", is_loopback=True) == "guest"
    assert world.login("guest", "guest") is None


@pytest.mark.parametrize("name", ["nobody", "bare", "odd"])
def test_without_keys_it_looks_as_with_a_wrong_password(name: str) -> None:
    world = World()
    assert world.login(name, "pencil") is None
    _, (first,) = world.begin(ScramClient(name, "x"))
    _, (again,) = World(world.storage).begin(ScramClient(name, "x"))
    assert first.goes_on
    # Its salt is as lasting as a real one, over restarts too.
    assert first.data.partition(b",s=")[2] == again.data.partition(b",s=")[2]
    assert first.data.endswith(b",i=4096")


def test_who_has_no_keys_has_the_iterations_of_those_who_do_by_now() -> None:
    world = World()

    def seen() -> set[bytes]:
        clients = [ScramClient(f"nobody{number}", "x") for number in range(50)]
        return {world.begin(client)[1][0].data.partition(b",i=")[2] for client in clients}

    assert seen() == {b"4096"}
    keys = make_keys(b"secret", 4097)
    world.found.users.add("ann", hash_password(b"secret"), (), keys)
    assert seen() == {b"4096", b"4097"}


def test_keys_survive_a_restart_and_go_with_the_password() -> None:
    world = World()
    world.add("ann", b"secret")
    world.found.users.set_tags("ann", ["monitoring"])
    again = World(world.storage)
    assert again.login("ann", "secret") == "ann"
    again.found.users.set_password("ann", *again.found.users.hash(b"other"))
    assert again.login("ann", "secret") is None
    assert again.login("ann", "other") == "ann"


def test_rows_without_keys_load() -> None:
    storage = MemoryStorage()
    off = Authentication(Config(), Pool())
    off.open(storage)
    assert off.users.hash(b"secret")[1] is None
    off.users.add("ann", hash_password(b"secret"))
    world = World(storage)
    assert world.login("ann", "secret") is None


def test_a_password_that_changes_in_the_middle_does_not_count() -> None:
    world = World()
    world.add("ann", b"secret")
    client = ScramClient("ann", "secret")
    exchange, steps = world.begin(client)
    world.found.users.set_password("ann", *world.found.users.hash(b"other"))
    exchange.take(client.final(steps.pop().data), steps.append)
    assert steps == [Step()]


def test_a_password_that_scram_cannot_have_is_refused_where_scram_is_on() -> None:
    with pytest.raises(PreconditionFailed, match="UTF-8"):
        World().found.users.check_password(b"\xff")
    Authentication(Config(), Pool()).users.check_password(b"\xff")


def test_failures_count_like_those_of_passwords() -> None:
    world = World()
    for name, password in (("file", "wrong"), ("=", "malformed")):
        for _ in range(5):
            assert world.login(name, password) is None
        # The first three cost nothing.
        assert world.clock.waits == [250, 500]
        world.clock.waits.clear()


@pytest.mark.parametrize(
    ("config", "methods"),
    [
        (Config(), ()),
        (Config(auth=AuthConfig(scram=True)), ("api-key",)),
    ],
)
def test_where_there_is_no_scram(config: Config, methods: tuple[str, ...]) -> None:
    found = Authentication(config, Pool())
    found.open(MemoryStorage())
    attempt = Attempt(username=None, methods=methods)
    assert found.authenticator.exchange("SCRAM-SHA-256", attempt) is None
    assert found.authenticator.exchange("SCRAM-SHA-1", attempt) is None


@pytest.mark.parametrize("iterations", [4095, 1_000_001])
def test_iterations_have_bounds(iterations: int) -> None:
    with pytest.raises(ConfigError, match="scram_iterations"):
        AuthConfig(scram_iterations=iterations)


@pytest.mark.parametrize("shown", [b"", b"a password", b"trivium_"])
def test_a_token_that_no_method_knows_is_not_taken_for_none(shown: bytes) -> None:
    """Whoever names a method comes in by that, or not at all."""
    attempt = Attempt(username=None, admits_anonymous=True, ignores_unknown=True)
    exchange = World().found.authenticator.exchange("API-KEY", attempt)
    assert exchange is not None
    steps: list[Step] = []
    exchange.take(shown, steps.append)
    assert steps == [Step()]
