"""Passwords at rest: plain text, or an scrypt hash in PHC string format.

A hash reads `$scrypt$ln=14,r=8,p=1$SALT$HASH`, where `ln` is the base-2 logarithm of the cost, and
salt and hash are base64 without padding. Text that does not begin with `$` is a plain password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import Final

#: 16 MiB and some 50 ms per check: the OWASP minimum, bearable when a thousand clients reconnect
LOG_COST: Final = 14
BLOCK_SIZE: Final = 8
PARALLELISM: Final = 1
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
#: the largest cost that is accepted (256 MiB), so that a configuration cannot stall the broker
MAX_LOG_COST: Final = 18

_PHC: Final = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]{1,128})\$([A-Za-z0-9+/]{1,128})"
)


class PasswordFormatError(ValueError):
    """A stored password begins with `$` but is no scrypt hash."""


def hash_password(password: bytes) -> str:
    """A salted scrypt hash of the password, in PHC string format."""
    salt = secrets.token_bytes(SALT_BYTES)
    digest = _scrypt(password, salt, LOG_COST, BLOCK_SIZE, PARALLELISM, HASH_BYTES)
    parameters = f"ln={LOG_COST},r={BLOCK_SIZE},p={PARALLELISM}"
    return f"$scrypt${parameters}${_encode(salt)}${_encode(digest)}"


def is_hashed(stored: str) -> bool:
    """Whether the stored password is a hash, whose check takes tens of milliseconds."""
    return stored.startswith("$")


def check_stored_password(stored: str) -> None:
    """Raise PasswordFormatError unless `verify_password` can work with the stored password."""
    if not stored:
        raise PasswordFormatError("must not be empty")
    if is_hashed(stored):
        _parse(stored)


def verify_password(stored: str, presented: bytes) -> bool:
    """Whether the presented password matches; takes the same time whether or not it does."""
    if not is_hashed(stored):
        return hmac.compare_digest(stored.encode(), presented)
    log_cost, block_size, parallelism, salt, expected = _parse(stored)
    digest = _scrypt(presented, salt, log_cost, block_size, parallelism, len(expected))
    return hmac.compare_digest(expected, digest)


def _parse(stored: str) -> tuple[int, int, int, bytes, bytes]:
    match = _PHC.fullmatch(stored)
    if match is None:
        raise PasswordFormatError("begins with $ but is not $scrypt$ln=..,r=..,p=..$SALT$HASH")
    log_cost, block_size, parallelism = (int(number) for number in match.groups()[:3])
    if not (1 <= log_cost <= MAX_LOG_COST and 1 <= block_size <= 8 and 1 <= parallelism <= 4):
        raise PasswordFormatError(f"has a cost beyond ln={MAX_LOG_COST},r=8,p=4")
    try:
        return log_cost, block_size, parallelism, _decode(match[4]), _decode(match[5])
    except binascii.Error:
        raise PasswordFormatError("salt or hash is not base64 without padding") from None


def _scrypt(
    password: bytes, salt: bytes, log_cost: int, block_size: int, parallelism: int, length: int
) -> bytes:
    memory = 128 * block_size * (2**log_cost + parallelism + 2)
    return hashlib.scrypt(
        password,
        salt=salt,
        n=2**log_cost,
        r=block_size,
        p=parallelism,
        maxmem=memory + 1024 * 1024,
        dklen=length,
    )


def _encode(data: bytes) -> str:
    return base64.b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
