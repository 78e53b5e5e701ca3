"""Who shows a token or key that is right waits for nobody else's failures."""

from __future__ import annotations

import time
from pathlib import Path

import jwt
import pytest

from tests.support.authentication import Moved, Pool
from trivium.config import AuthConfig, Config, JwtConfig, UserConfig
from trivium.listen import ListenerConfig, TlsConfig
from trivium.runtime.authentication import Authentication
from trivium.security.attempts import Attempt, Login
from trivium.security.failures import MAX_LOOKS
from trivium.security.tokens import Tokens
from trivium.storage.memory import MemoryStorage

SECRET = "s" * 32
CHAINS = [(), ("internal", "certificate", "jwt", "api-key")]


class Door:
    """A broker's authentication, one address, and what came of whom."""

    def __init__(self, tmp_path: Path, chain: tuple[str, ...] = ()) -> None:
        (tmp_path / "key").write_text(SECRET, encoding="utf-8")
        self.clock, self.pool = Moved(), Pool()
        self.found = Authentication(
            Config(
                jwt=JwtConfig(key_file=str(tmp_path / "key")),
                users={"bob": UserConfig(password="right")},
                auth=AuthConfig(methods=chain),
                listeners=(
                    ListenerConfig(
                        protocol="mqtt",
                        address="1",
                        tls=TlsConfig(certificate="c", key="k", ca="a"),
                    ),
                ),
            ),
            self.pool,
            now_ms=lambda: time.time_ns() // 1_000_000,
            clock=self.clock,
        )
        self.found.open(MemoryStorage())

    def come(self, password: str, username: str | None = "") -> list[Login | None]:
        answers: list[Login | None] = []
        shown = Attempt(username=username, password=password.encode(), address="10.0.0.1")
        self.found.authenticator.authenticate(shown, answers.append)
        self.pool.run()
        return answers


def token(secret: str = SECRET, user: str = "ann") -> str:
    return jwt.encode({"sub": user, "exp": time.time() + 60}, secret, "HS256")


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("username", ["", None])
def test_wrong_tokens_and_keys_keep_no_right_one_of_the_address_out(
    tmp_path: Path, chain: tuple[str, ...], username: str | None
) -> None:
    door = Door(tmp_path, chain)
    door.found.users.add("eve", "p", [])
    _, key = door.found.api_keys.add("eve")
    wrong = [door.come(token("x" * 32), username) for _ in range(10)]
    wrong += [door.come(f"trivium_{'0' * 16}_{'0' * 64}", username) for _ in range(60)]
    assert [len(answers) for answers in wrong] == [1] * 3 + [0] * 67
    for shown, name in ((token(), "ann"), (key, "eve")):
        (login,) = door.come(shown, username)
        assert login is not None
        assert login.identity.name == name
    # The wrong ones wait as before.
    door.clock.move(249)
    assert wrong[3] == []
    door.clock.move(1)
    assert wrong[3] == [None]


def test_passwords_that_are_guessed_wait_whether_or_not_they_are_right(tmp_path: Path) -> None:
    door = Door(tmp_path)
    for _ in range(3):
        assert door.come("wrong", "bob") == [None]
    right = door.come("right", "bob")
    door.come(token(), "bob")
    assert right == []
    door.clock.move(250)
    assert len(right) == 1


def test_the_method_that_knows_the_user_decides_also_about_a_token(tmp_path: Path) -> None:
    door = Door(tmp_path, ("internal", "jwt"))
    assert door.come(token(user="bob"), "bob") == [None]
    (login,) = door.come(token(user="bob"), "ann")
    assert login is not None
    assert login.identity.name == "bob"


def test_wrong_tokens_are_looked_at_so_often_before_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Attempt] = []
    recognise = Tokens.recognise

    def counted(tokens: Tokens, attempt: Attempt) -> object:
        looks.append(attempt)
        return recognise(tokens, attempt)

    monkeypatch.setattr(Tokens, "recognise", counted)
    door = Door(tmp_path)
    for _ in range(10 * MAX_LOOKS):
        door.come(token("x" * 32))
    # Once more in their turn, those that cost nothing.
    assert len(looks) == MAX_LOOKS + 3
    door.clock.move(1000)
    (login,) = door.come(token())
    assert login is not None
