"""SCRAM-SHA-256 (RFC 5802, RFC 7677): a client proves that it knows a password, and the broker that
it knows the user, and neither says anything that a listener could use.

The broker keeps ``ScramKeys`` of a user, of which the password cannot be computed, but guessed: one
PBKDF2 a guess. Their text is that of RFC 5803, ``SCRAM-SHA-256$ITERATIONS:SALT$STORED:SERVER``. Two
messages come from the client and two go to it. Channel binding is not offered.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from dataclasses import dataclass, field
from typing import Final

from trivium.security.passwords import MAX_ITERATIONS, PasswordFormatError

SCRAM_SHA_256: Final = "SCRAM-SHA-256"

#: the least that RFC 7677, 4 asks for
MIN_ITERATIONS: Final = 4096
#: as OWASP's figure for PBKDF2 with HMAC-SHA-256
DEFAULT_ITERATIONS: Final = 600_000
SALT_BYTES: Final = 16
MAX_SALT_BYTES: Final = 64
KEY_BYTES: Final = 32
#: random bytes of the broker's part of the nonce
NONCE_BYTES: Final = 18
#: of the longest message of a client: a name of 255 bytes, of which each may be written as three,
#: twice; and a nonce
MAX_MESSAGE_BYTES: Final = 2048
MAX_NONCE_BYTES: Final = 256

#: What RFC 5802, 7 calls `printable`.
_NONCE: Final = re.compile(rf"[\x21-\x2b\x2d-\x7e]{{1,{MAX_NONCE_BYTES}}}")
_NAME: Final = re.compile(r"(?:[^,=\0]|=2C|=3D)+")
_EXTENSION: Final = re.compile(r"[A-Za-z]=[^,\0]+")
_KEYS: Final = re.compile(
    r"SCRAM-SHA-256\$(\d{1,7}):([A-Za-z0-9+/]+={0,2})\$([A-Za-z0-9+/]+=):([A-Za-z0-9+/]+=)"
)


class ScramError(Exception):
    """A message is none of SCRAM, or asks for what is not offered."""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What is kept of a user's password (RFC 5802, 3)."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def text(self) -> str:
        """As it is stored."""
        salt, stored, server = map(_encode, (self.salt, self.stored_key, self.server_key))
        return f"{SCRAM_SHA_256}${self.iterations}:{salt}${stored}:{server}"


def make_keys(password: bytes, iterations: int, salt: bytes = b"") -> ScramKeys:
    """The keys of a password, with a new salt unless one is given; takes PBKDF2's time.

    Raises PasswordFormatError for a password that clients could not use either.
    """
    salt = salt or secrets.token_bytes(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac("sha256", prepare(password), salt, iterations)
    stored_key = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return ScramKeys(iterations, salt, stored_key, _hmac(salted, b"Server Key"))


def parse_keys(text: str) -> ScramKeys:
    """Read what ``ScramKeys.text`` made. Raises PasswordFormatError."""
    match = _KEYS.fullmatch(text)
    if match is None:
        raise PasswordFormatError("is not what trivium hash-password --scram prints")
    iterations = int(match[1])
    try:
        salt, stored_key, server_key = (_decode(part) for part in match.groups()[1:])
    except ScramError:
        raise PasswordFormatError("has salt or keys that are not base64") from None
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise PasswordFormatError(f"has not {MIN_ITERATIONS} to {MAX_ITERATIONS} iterations")
    if len(stored_key) != KEY_BYTES or len(server_key) != KEY_BYTES:
        raise PasswordFormatError(f"has keys that are not {KEY_BYTES} bytes long")
    if len(salt) > MAX_SALT_BYTES:
        raise PasswordFormatError("has a salt that is too long")
    return ScramKeys(iterations, salt, stored_key, server_key)


def prepare(password: bytes) -> bytes:
    """A password by SASLprep (RFC 4013), as one that is stored. Raises PasswordFormatError."""
    try:
        text = password.decode()
    except UnicodeDecodeError:
        raise PasswordFormatError("a password for SCRAM is UTF-8") from None
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each
        for each in text
        if not stringprep.in_table_b1(each)
    )
    normal = unicodedata.normalize("NFKC", mapped)
    if not normal or any(map(_is_prohibited, normal)):
        raise PasswordFormatError("a password for SCRAM has no control or unknown characters")
    # RFC 3454, 6.
    if any(map(stringprep.in_table_d1, normal)):
        ends = stringprep.in_table_d1(normal[0]) and stringprep.in_table_d1(normal[-1])
        if not ends or any(map(stringprep.in_table_d2, normal)):
            raise PasswordFormatError("a password for SCRAM does not mix directions of writing")
    return normal.encode()


def _is_prohibited(each: str) -> bool:
    """RFC 4013, 2.3 and 2.5."""
    return (
        stringprep.in_table_c12(each)
        or stringprep.in_table_c21_c22(each)
        or stringprep.in_table_c3(each)
        or stringprep.in_table_c4(each)
        or stringprep.in_table_c5(each)
        or stringprep.in_table_c6(each)
        or stringprep.in_table_c7(each)
        or stringprep.in_table_c8(each)
        or stringprep.in_table_c9(each)
        or stringprep.in_table_a1(each)
    )


class MadeUpKeys:
    """Keys for names without: whoever asks for a name learns nothing of whether it is known.

    The salt is the same each time, as a real one is (RFC 5802, 9). Nobody has their password.
    """

    def __init__(self, secret: bytes, iterations: int) -> None:
        self._secret = secret
        self._iterations = iterations

    def of(self, name: str, counts: list[int]) -> ScramKeys:
        """The keys of a name, with one of the numbers of iterations that users have."""
        data = name.encode()
        salt = _hmac(self._secret, b"salt\0" + data)[:SALT_BYTES]
        chosen = int.from_bytes(_hmac(self._secret, b"count\0" + data))
        iterations = counts[chosen % len(counts)] if counts else self._iterations
        return ScramKeys(iterations, salt, secrets.token_bytes(KEY_BYTES), self._secret)


@dataclass(frozen=True, slots=True)
class FirstMessage:
    """What a client says first (RFC 5802, 7, client-first-message)."""

    name: str
    nonce: str
    #: gs2-header, and what follows it
    header: bytes
    bare: bytes


def parse_first(data: bytes) -> FirstMessage:
    """Take the first message apart. Raises ScramError."""
    text = _text(data)
    parts = text.split(",", 2)
    if len(parts) != 3 or parts[0] not in ("n", "y"):
        # `p=` asks for channel binding.
        raise ScramError("no gs2 header without channel binding")
    bare = parts[2]
    fields = bare.split(",")
    if len(fields) < 2 or fields[0][:2] != "n=" or fields[1][:2] != "r=":
        # `m=` in front is an extension that is not to be passed over (RFC 5802, 5.1).
        raise ScramError("no name and nonce")
    if not all(map(_EXTENSION.fullmatch, fields[2:])):
        raise ScramError("an extension that is none")
    name, nonce = _name(fields[0][2:]), fields[1][2:]
    if parts[1] and (parts[1][:2] != "a=" or _name(parts[1][2:]) != name):
        raise ScramError("it is to act as somebody else")
    if _NONCE.fullmatch(nonce) is None:
        raise ScramError("no nonce")
    header = f"{parts[0]},{parts[1]},".encode()
    return FirstMessage(name, nonce, header, bare.encode())


class ScramExchange:
    """One exchange, behind its first message, with the keys that its user has."""

    def __init__(self, first: FirstMessage, keys: ScramKeys, server_nonce: str = "") -> None:
        self._first = first
        self._keys = keys
        self._nonce = first.nonce + (server_nonce or _encode(secrets.token_bytes(NONCE_BYTES)))
        #: server-first-message
        self.challenge = f"r={self._nonce},s={_encode(keys.salt)},i={keys.iterations}".encode()

    def finish(self, data: bytes) -> bytes | None:
        """Judge the last message of the client: the broker's answer to a proof that is right.

        None for a wrong one, and for a message that is none.
        """
        try:
            text = _text(data)
            without, _, proof = text.rpartition(",p=")
            binding, nonce, *extensions = without.split(",") if "," in without else ("", "")
            given = _decode(proof)
        except ScramError:
            return None
        is_whole = (
            binding == "c=" + _encode(self._first.header)
            and nonce[:2] == "r="
            and hmac.compare_digest(nonce[2:].encode(), self._nonce.encode())
            and all(map(_EXTENSION.fullmatch, extensions))
            and len(given) == KEY_BYTES
        )
        if not is_whole:
            return None
        signed = b",".join((self._first.bare, self.challenge, without.encode()))
        signature = _hmac(self._keys.stored_key, signed)
        client_key = bytes(one ^ other for one, other in zip(given, signature, strict=True))
        stored_key = hashlib.sha256(client_key).digest()
        if not hmac.compare_digest(stored_key, self._keys.stored_key):
            return None
        return b"v=" + _encode(_hmac(self._keys.server_key, signed)).encode()


def _text(data: bytes) -> str:
    if len(data) > MAX_MESSAGE_BYTES:
        raise ScramError("it is too long")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ScramError("it is not UTF-8") from None


def _name(text: str) -> str:
    """A `saslname`. Raises ScramError."""
    if _NAME.fullmatch(text) is None:
        raise ScramError("no name")
    return text.replace("=2C", ",").replace("=3D", "=")


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("no base64") from None
