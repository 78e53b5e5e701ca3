"""Stored passwords: plain or scrypt."""

import pytest

from trivium.security.passwords import (
    PasswordFormatError,
    check_stored_password,
    hash_password,
    is_hashed,
    verify_password,
)

#: RFC 7914 section 12, third vector (pleaseletmein, SodiumChloride), first 32 bytes
RFC_7914 = "$scrypt$ln=14,r=8,p=1$U29kaXVtQ2hsb3JpZGU$cCO9yzr9c0hGHAbNgf046/2o+7qQT44+qbVD9lRdofI"


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
    ],
)
def test_unusable_stored_password_is_refused(stored: str) -> None:
    with pytest.raises(PasswordFormatError):
        check_stored_password(stored)
