"""Password hashes as definitions of RabbitMQ have them: base64 of a salt of 4 bytes and of the
digest of salt and password (rabbit_password_hashing_sha256, rabbit_password_hashing_sha512).

A hash that was imported logs in, and is exported again. Of any other password nothing is exported:
argon2id means nothing there.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from trivium.management.calls import BadRequest
from trivium.security.passwords import (
    SALTED_SHA256,
    SALTED_SHA512,
    PasswordFormatError,
    parse_hash,
    salted_text,
)

SALT_BYTES: Final = 4
#: Names of the algorithms -> schemes of this broker.
_SCHEMES: Final = {
    "rabbit_password_hashing_sha256": SALTED_SHA256,
    "rabbit_password_hashing_sha512": SALTED_SHA512,
}
#: Where none is named.
DEFAULT: Final = "rabbit_password_hashing_sha256"


def imported(text: str, algorithm: str) -> str:
    """What is stored for a hash; "" for none. Raises BadRequest."""
    if not text:
        return ""
    scheme = _SCHEMES.get(algorithm or DEFAULT)
    if scheme is None:
        raise BadRequest(f"{algorithm!r} is not one of {', '.join(_SCHEMES)}")
    try:
        data = base64.b64decode(text, validate=True)
        return salted_text(scheme, data[:SALT_BYTES], data[SALT_BYTES:])
    except (binascii.Error, PasswordFormatError, ValueError):
        raise BadRequest("'password_hash' is no hash of its algorithm") from None


def exported(stored: str) -> tuple[str, str]:
    """A hash, "" where there is none to show, and its algorithm."""
    for algorithm, scheme in _SCHEMES.items():
        if stored.startswith(f"${scheme}$"):
            found = parse_hash(stored)
            return base64.b64encode(found.salt + found.digest).decode(), algorithm
    return "", DEFAULT
