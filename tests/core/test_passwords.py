"""Stored passwords: plain, or hashes of four kinds."""

import pytest

from tests.support.authentication import MOSQUITTO_6, MOSQUITTO_7
from trivium.security.passwords import (
    PasswordFormatError,
    check_stored_password,
    hash_password,
    is_hashed,
    parse_hash,
    verify_password,
)

#: RFC 7914 section 12, third vector (pleaseletmein, SodiumChloride), first 32 bytes
RFC_7914 = "$scrypt$ln=14,r=8,p=1$U29kaXVtQ2hsb3JpZGU$cCO9yzr9c0hGHAbNgf046/2o+7qQT44+qbVD9lRdofI"

#: of the reference implementation's own tests (password, somesalt)
ARGON2ID = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"


def test_argon2id_reference_vector_verifies() -> None:
    assert verify_password(ARGON2ID, b"password")
    assert not verify_password(ARGON2ID, b"passwort")


@pytest.mark.parametrize("stored", [MOSQUITTO_7, MOSQUITTO_6])
def test_hashes_of_mosquitto_verify(stored: str) -> None:
    check_stored_password(stored)
    assert verify_password(stored, b"right")
    assert not verify_password(stored, b"wrong")


def test_new_hashes_are_argon2id_of_the_least_cost_that_owasp_asks_for() -> None:
    assert hash_password(b"x").startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def test_a_hash_does_not_show_in_its_repr() -> None:
    text = repr(parse_hash(ARGON2ID))
    assert "somesalt" not in text
    assert "digest" not in text


def test_rfc_7914_vector_verifies() -> None:
    assert verify_password(RFC_7914, b"pleaseletmein")
    assert not verify_password(RFC_7914, b"pleaseletmeout")


def test_hash_round_trip_is_salted() -> None:
    first, second = hash_password(b"s\xc3\xa9same"), hash_password(b"s\xc3\xa9same")
    assert first != second
    assert is_hashed(first)
    assert verify_password(first, b"s\xc3\xa9same")
    assert not verify_password(first, b"sesame")


def test_plain_password_verifies_by_bytes() -> None:
    assert verify_password("sésame", "sésame".encode())
    assert not verify_password("secret", b"secret ")
    assert not verify_password("secret", b"\xff\xfe")


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "$2b$12$abcdefghijklmnopqrstuv",
        "$scrypt$ln=14,r=8,p=1$U29kaXVt",
        "$scrypt$ln=19,r=8,p=1$U29kaXVt$cCO9yzr9",
        "$scrypt$ln=14,r=99,p=1$U29kaXVt$cCO9yzr9",
        "$scrypt$ln=00,r=8,p=1$U29kaXVt$cCO9yzr9",
        "$scrypt$ln=14,r=8,p=1$U29kaX$cCO9yzr9x",
        "$scrypt$ln=14,r=8,p=5$U29kaXVt$cCO9yzr9c0hGHAbNgf046w",
        ARGON2ID.replace("v=19", "v=16"),
        ARGON2ID.replace("argon2id", "argon2i"),
        ARGON2ID.replace("m=65536", "m=262145"),
        ARGON2ID.replace("t=2", "t=17"),
        ARGON2ID.replace("t=2", "t=0"),
        ARGON2ID.replace("p=1", "p=5"),
        ARGON2ID.replace("m=65536", "m=7"),
        ARGON2ID.replace("c29tZXNhbHQ", "c29tZQ"),
        ARGON2ID[:-24],
        MOSQUITTO_7.replace("$101$", "$0$"),
        MOSQUITTO_7.replace("$101$", "$1000001$"),
        MOSQUITTO_6[:-16],
    ],
)
def test_unusable_stored_password_is_refused(stored: str) -> None:
    with pytest.raises(PasswordFormatError):
        check_stored_password(stored)
