"""The keys that tokens are signed with: of a file, or of a JSON Web Key Set (RFC 7517).

Each key has one algorithm, by its type: a token cannot choose another for it, so a public key is
never taken for the secret of an HMAC.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trivium.errors import ConfigError
from trivium.security.watched_files import read_bytes

HS256: Final = "HS256"
RS256: Final = "RS256"
ES256: Final = "ES256"
EDDSA: Final = "EdDSA"
ALGORITHMS: Final = (RS256, ES256, EDDSA, HS256)

#: RFC 7518, 3.2: as long as the hash
MIN_SECRET_BYTES: Final = 32
#: RFC 7518, 3.3
MIN_RSA_BITS: Final = 2048
#: of one set: each may be tried
MAX_KEYS: Final = 64


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key, and the only algorithm that it is used with."""

    id: str | None
    algorithm: str
    key: Any = field(repr=False)


def read_key_file(path: Path) -> list[TokenKey]:
    """The key of a file: a public key or certificate in PEM, or else the secret of an HMAC.

    Raises ConfigError.
    """
    data = read_bytes(path, "key file")
    try:
        if b"-----BEGIN" in data:
            return [_of_public_key(None, _load_pem(data))]
        secret = data.strip()
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"a secret has at least {MIN_SECRET_BYTES} bytes")
        return [TokenKey(None, HS256, secret)]
    except ValueError as error:
        raise ConfigError(f"key file {path}: {error}") from None


def read_key_set_file(path: Path) -> list[TokenKey]:
    """The keys of a file with a key set. Raises ConfigError."""
    try:
        return parse_key_set(read_bytes(path, "key set"), takes_secrets=True)
    except ValueError as error:
        raise ConfigError(f"key set {path}: {error}") from None


def parse_key_set(data: bytes, takes_secrets: bool) -> list[TokenKey]:
    """The keys of a set that this understands; those for other uses are passed over.

    What is served to everybody has no secrets. Raises ValueError, without what is in the set.
    """
    try:
        found = json.loads(data)
        rows = found["keys"]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("it is not a JSON object with an array of keys") from None
    keys = [key for row in rows[:MAX_KEYS] if (key := _of_row(row, takes_secrets)) is not None]
    if not keys:
        raise ValueError("it has no key that can be used")
    return keys


def _of_row(row: dict[str, Any], takes_secrets: bool) -> TokenKey | None:
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    if row.get("use", "sig") != "sig":
        return None
    kind = (row.get("kty"), row.get("crv"))
    number = row.get("kid")
    algorithm = {
        ("RSA", None): RS256,
        ("EC", "P-256"): ES256,
        ("OKP", "Ed25519"): EDDSA,
        ("oct", None): HS256 if takes_secrets else None,
    }.get(kind)  # type: ignore[arg-type]
    if algorithm is None or row.get("alg", algorithm) != algorithm:
        return None
    try:
        key = PyJWK(row, algorithm).key
        if algorithm == HS256:
            if len(key) < MIN_SECRET_BYTES:
                return None
            return TokenKey(number if isinstance(number, str) else None, HS256, key)
        return _of_public_key(number if isinstance(number, str) else None, key)
    except (PyJWTError, ValueError, TypeError):
        return None


def _of_public_key(number: str | None, key: Any) -> TokenKey:
    """A public key with its algorithm. Raises ValueError for one that is none, or too weak."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < MIN_RSA_BITS:
            raise ValueError(f"an RSA key has at least {MIN_RSA_BITS} bits")
        return TokenKey(number, RS256, key)
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1":
        return TokenKey(number, ES256, key)
    if isinstance(key, ed25519.Ed25519PublicKey):
        return TokenKey(number, EDDSA, key)
    raise ValueError("it is no public key of RSA, P-256 or Ed25519")


def _load_pem(data: bytes) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        if b"-----BEGIN CERTIFICATE" in data:
            return x509.load_pem_x509_certificate(data).public_key()
        return load_pem_public_key(data)
    except Exception:
        # Whatever it says may quote the key.
        raise ValueError("it is no public key or certificate in PEM") from None


def usable(keys: Iterable[TokenKey], algorithm: str, number: object) -> list[TokenKey]:
    """The keys that a token with this header may be signed with."""
    return [
        key
        for key in keys
        if key.algorithm == algorithm and (number is None or key.id is None or key.id == number)
    ]
