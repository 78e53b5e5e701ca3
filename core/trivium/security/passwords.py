"""Passwords at rest: plain text, or a hash.

`hash_password` makes argon2id hashes, which read `$argon2id$v=19$m=19456,t=2,p=1$SALT$HASH`: KiB of
memory, passes over it, lanes. What else is understood: scrypt, `$scrypt$ln=14,r=8,p=1$SALT$HASH`
with the base-2 logarithm of the cost; the two forms of Mosquitto's password files,
`$7$ITERATIONS$SALT$HASH` (PBKDF2 with HMAC-SHA-512) and `$6$SALT$HASH` (SHA-512 of password and
salt); and `$salted-sha256$SALT$HASH` and `$salted-sha512$SALT$HASH`, of salt and password, which
come with definitions of RabbitMQ. Text that does not begin with `$` is a plain password.

Every cost has a bound, so that what somebody has stored cannot stall the broker.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

#: 19 MiB, two passes, one lane, and some 30 ms per check: the OWASP minimum, bearable when a
#: thousand clients reconnect
ARGON2_COST: Final = (19_456, 2, 1)
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
#: most memory of one check in KiB (256 MiB), and memory times passes (about a second)
MAX_MEMORY_KIB: Final = 262_144
MAX_ARGON2_WORK: Final = 1_048_576
#: what the algorithm itself asks for (RFC 9106, 3.1)
MIN_ARGON2_SALT_BYTES: Final = 8
#: what nobody guesses, and more than the algorithms ask for
MIN_DIGEST_BYTES: Final = 16
#: the largest cost of scrypt (256 MiB too)
MAX_SCRYPT_LOG_COST: Final = 18
MAX_LANES: Final = 4
#: about a second of PBKDF2
MAX_ITERATIONS: Final = 1_000_000

ARGON2ID: Final = "argon2id"
SCRYPT: Final = "scrypt"
PBKDF2: Final = "pbkdf2-sha512"
SHA512: Final = "sha512"
SALTED_SHA256: Final = "salted-sha256"
SALTED_SHA512: Final = "salted-sha512"
#: the digests of those that have no cost, and their sizes
_DIGESTS: Final = {SHA512: "sha512", SALTED_SHA256: "sha256", SALTED_SHA512: "sha512"}

_BASE64: Final = r"([A-Za-z0-9+/]{1,128})"
_PADDED: Final = r"([A-Za-z0-9+/]{1,128}={0,2})"
#: scheme -> the text of a hash: the numbers of its cost, then salt and digest
_FORMS: Final = {
    ARGON2ID: re.compile(
        rf"\$argon2id\$v=19\$m=(\d{{1,7}}),t=(\d{{1,4}}),p=(\d{{1,2}})\${_BASE64}\${_BASE64}"
    ),
    SCRYPT: re.compile(
        rf"\$scrypt\$ln=(\d{{1,2}}),r=(\d{{1,2}}),p=(\d{{1,2}})\${_BASE64}\${_BASE64}"
    ),
    PBKDF2: re.compile(rf"\$7\$(\d{{1,8}})\${_PADDED}\${_PADDED}"),
    SHA512: re.compile(rf"\$6\${_PADDED}\${_PADDED}"),
    SALTED_SHA256: re.compile(rf"\$salted-sha256\${_PADDED}\${_PADDED}"),
    SALTED_SHA512: re.compile(rf"\$salted-sha512\${_PADDED}\${_PADDED}"),
}


class PasswordFormatError(ValueError):
    """A stored password begins with `$` but is no hash that is known, or costs too much."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A hash, taken apart. `cost` is what its scheme counts, in the order of its text."""

    scheme: str
    cost: tuple[int, ...]
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    def matches(self, password: bytes) -> bool:
        """Whether it is the password's; takes as long whether or not it is."""
        derived = derive(self.scheme, self.cost, password, self.salt, len(self.digest))
        return hmac.compare_digest(self.digest, derived)


def hash_password(password: bytes) -> str:
    """A salted argon2id hash of the password, in PHC string format."""
    salt = secrets.token_bytes(SALT_BYTES)
    digest = derive(ARGON2ID, ARGON2_COST, password, salt, HASH_BYTES)
    memory, passes, lanes = ARGON2_COST
    return f"$argon2id$v=19$m={memory},t={passes},p={lanes}${_encode(salt)}${_encode(digest)}"


def salted_text(scheme: str, salt: bytes, digest: bytes) -> str:
    """What is stored of a digest of SALTED_SHA256 or SALTED_SHA512. Raises PasswordFormatError."""
    stored = f"${scheme}${_encode(salt)}${_encode(digest)}"
    parse_hash(stored)
    return stored


def no_password() -> str:
    """What is stored where no password is right: a digest of which nobody knows what it is of."""
    size = hashlib.sha512().digest_size
    salt, digest = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(size)
    return f"$6${_encode(salt)}${_encode(digest)}"


def kind_of(stored: str) -> str:
    """What hashes that take the same work have in common: all but the salt and the digest."""
    cost, _, digest = stored.rsplit("$", 2)
    return f"{cost}${len(digest)}"


def work_of(stored: str) -> int:
    """About how many microseconds the check of a hash takes. Raises PasswordFormatError."""
    found = parse_hash(stored)
    if found.scheme == ARGON2ID:
        memory, passes, _ = found.cost
        return memory * passes
    if found.scheme == SCRYPT:
        log_cost, block_size, lanes = found.cost
        return (block_size * lanes << log_cost) // 3
    if found.scheme == PBKDF2:
        return found.cost[0] * -(-len(found.digest) // hashlib.sha512().digest_size)
    return 1


def is_hashed(stored: str) -> bool:
    """Whether the stored password is a hash, whose check takes tens of milliseconds."""
    return stored.startswith("$")


def check_stored_password(stored: str) -> None:
    """Raise PasswordFormatError unless `verify_password` can work with the stored password."""
    if not stored:
        raise PasswordFormatError("must not be empty")
    if is_hashed(stored):
        parse_hash(stored)


def verify_password(stored: str, presented: bytes) -> bool:
    """Whether the presented password matches; takes the same time whether or not it does."""
    if not is_hashed(stored):
        return hmac.compare_digest(stored.encode(), presented)
    return parse_hash(stored).matches(presented)


def parse_hash(stored: str) -> PasswordHash:
    """Take a hash apart. Raises PasswordFormatError."""
    found = None
    for scheme, form in _FORMS.items():
        match = form.fullmatch(stored)
        if match is not None:
            *numbers, salt, digest = match.groups()
            cost = tuple(int(number) for number in numbers)
            try:
                found = PasswordHash(scheme, cost, _decode(salt), _decode(digest))
            except binascii.Error:
                raise PasswordFormatError("salt or hash is not base64") from None
    if found is None:
        raise PasswordFormatError(
            "begins with $ but is no argon2id, scrypt, $7$, $6$ or salted-sha hash"
        )
    _check(found)
    return found


def _check(found: PasswordHash) -> None:
    """Raise PasswordFormatError for what cannot be computed, or not soon."""
    cost = found.cost
    least = MIN_DIGEST_BYTES
    if found.scheme in _DIGESTS:
        least = hashlib.new(_DIGESTS[found.scheme]).digest_size
    if len(found.digest) < least:
        raise PasswordFormatError("the hash is too short")
    if found.scheme == ARGON2ID:
        memory, passes, lanes = cost
        if not (1 <= lanes <= MAX_LANES and 8 * lanes <= memory <= MAX_MEMORY_KIB and passes):
            raise PasswordFormatError(f"has a cost beyond m={MAX_MEMORY_KIB},p={MAX_LANES}")
        if memory * passes > MAX_ARGON2_WORK:
            raise PasswordFormatError(f"has a cost m times t beyond {MAX_ARGON2_WORK}")
        if len(found.salt) < MIN_ARGON2_SALT_BYTES:
            raise PasswordFormatError("the salt is too short")
    elif found.scheme == SCRYPT:
        log_cost, block_size, lanes = cost
        if not (1 <= log_cost <= MAX_SCRYPT_LOG_COST and 1 <= block_size <= 8):
            raise PasswordFormatError(f"has a cost beyond ln={MAX_SCRYPT_LOG_COST},r=8")
        if not 1 <= lanes <= MAX_LANES:
            raise PasswordFormatError(f"has a cost beyond p={MAX_LANES}")
    elif found.scheme == PBKDF2 and not 1 <= cost[0] <= MAX_ITERATIONS:
        raise PasswordFormatError(f"has more than {MAX_ITERATIONS} iterations, or none")


def derive(scheme: str, cost: tuple[int, ...], password: bytes, salt: bytes, length: int) -> bytes:
    """The `length` bytes that a scheme makes of a password."""
    if scheme == ARGON2ID:
        from argon2.low_level import Type, hash_secret_raw

        memory, passes, lanes = cost
        return hash_secret_raw(password, salt, passes, memory, lanes, length, Type.ID)
    if scheme == SCRYPT:
        log_cost, block_size, lanes = cost
        needed = 128 * block_size * (2**log_cost + lanes + 2)
        return hashlib.scrypt(
            password,
            salt=salt,
            n=2**log_cost,
            r=block_size,
            p=lanes,
            maxmem=needed + 1024 * 1024,
            dklen=length,
        )
    if scheme == PBKDF2:
        return hashlib.pbkdf2_hmac("sha512", password, salt, cost[0], length)
    if scheme == SHA512:
        return hashlib.sha512(password + salt).digest()
    return hashlib.new(_DIGESTS[scheme], salt + password).digest()


def _encode(data: bytes) -> str:
    return base64.b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
