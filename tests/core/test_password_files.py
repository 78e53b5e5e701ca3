"""Password files of Mosquitto: read as they are, and again when they change."""

import logging
from pathlib import Path

import pytest

from tests.support.authentication import MOSQUITTO_6, MOSQUITTO_7, Pool, attempt
from trivium.config import AuthConfig, Config, UserConfig
from trivium.errors import ConfigError
from trivium.runtime.authentication import Authentication


def configure(*files: Path) -> tuple[Authentication, Pool, list[str]]:
    pool = Pool()
    changes: list[str] = []
    auth = AuthConfig(password_files=tuple(str(file) for file in files), guest=False)
    found = Authentication(Config(auth=auth), pool, changed=lambda: changes.append("changed"))
    return found, pool, changes


def write(file: Path, *lines: str) -> None:
    """Replace a file as careful programs do."""
    new = file.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    new.rename(file)


def test_users_of_both_kinds_of_hashes_come_in(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    write(file, "# a comment", "", f"ann:{MOSQUITTO_7}", f"bob:{MOSQUITTO_6}")
    found, pool, _ = configure(file)
    for name in ("ann", "bob"):
        assert attempt(found.authenticator, pool, name, b"right") is not None
        assert attempt(found.authenticator, pool, name, b"wrong") is None
    assert attempt(found.authenticator, pool, "# a comment", b"right") is None


def test_of_two_users_with_one_name_the_first_holds(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, f"ann:{MOSQUITTO_7}")
    write(second, f"ann:{MOSQUITTO_7.replace('$101$', '$102$')}")
    found, pool, _ = configure(first, second)
    assert attempt(found.authenticator, pool, "ann", b"right") is not None


def test_a_user_that_the_broker_knows_itself_is_not_looked_up_in_the_files(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    write(file, f"ann:{MOSQUITTO_7}")
    pool = Pool()
    config = Config(
        auth=AuthConfig(password_files=(str(file),)), users={"ann": UserConfig(password="own")}
    )
    authenticator = Authentication(config, pool).authenticator
    assert attempt(authenticator, pool, "ann", b"own") is not None
    assert attempt(authenticator, pool, "ann", b"right") is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ann", "USER:HASH"),
        ("ann:secret", "USER:HASH"),
        (f":{MOSQUITTO_7}", "USER:HASH"),
        ("ann:$7$", "no argon2id"),
        (f"ann:{MOSQUITTO_7.replace('$101$', '$2000000$')}", "iterations"),
    ],
)
def test_a_wrong_line_ends_the_start_and_is_not_quoted(
    tmp_path: Path, line: str, reason: str
) -> None:
    file = tmp_path / "passwords"
    write(file, f"bob:{MOSQUITTO_7}", line)
    with pytest.raises(ConfigError, match=rf"passwords, line 2: .*{reason}") as raised:
        configure(file)
    assert "secret" not in str(raised.value)


def test_a_file_that_is_missing_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        configure(tmp_path / "missing")


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    write(file, f"ann:{MOSQUITTO_7}")
    found, pool, changes = configure(file)
    found.authenticator.look(0)
    assert not pool.waiting, "nothing is read while nothing has changed"
    write(file, f"bob:{MOSQUITTO_7}")
    found.authenticator.look(0)
    found.authenticator.look(0)
    assert len(pool.waiting) == 1
    pool.run()
    assert changes == ["changed"]
    assert attempt(found.authenticator, pool, "bob", b"right") is not None
    assert attempt(found.authenticator, pool, "ann", b"right") is None


@pytest.mark.parametrize("damage", ["wrong", "gone"])
def test_a_file_that_is_wrong_then_is_not_taken(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "passwords"
    write(file, f"ann:{MOSQUITTO_7}")
    found, pool, changes = configure(file)
    if damage == "gone":
        file.unlink()
    else:
        write(file, "ann:secret")
    with caplog.at_level(logging.ERROR):
        found.authenticator.look(0)
        pool.run()
    assert not changes
    assert attempt(found.authenticator, pool, "ann", b"right") is not None
    assert "what was read before holds" in caplog.text
    assert "secret" not in caplog.text


def test_an_unknown_user_costs_the_hash_of_one_of_the_files(tmp_path: Path) -> None:
    file = tmp_path / "passwords"
    write(file, f"ann:{MOSQUITTO_7}")
    found, pool, _ = configure(file)
    for name in ("nobody", "ann"):
        before = pool.done
        assert attempt(found.authenticator, pool, name, b"wrong") is None
        assert pool.done == before + 1
