"""Encryption at rest: AES-256-GCM, a key of its own for each file.

The keys that are given never encrypt anything themselves. A file's key is derived from one of them
with 32 random bytes in the file's header, and the header as associated text; within the file each
write batch or block has a number that is used once. So no nonce repeats, whatever crash or restored
backup, and no part can be moved to another place or file unnoticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trivium.storage.errors import StorageKeyError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_SIZE: Final = 32
SALT_SIZE: Final = 32
KEY_ID_SIZE: Final = 8
#: what encryption adds to a text
TAG_SIZE: Final = 16
#: the key id of what is not encrypted
PLAIN: Final = bytes(KEY_ID_SIZE)


def key_id(key: bytes) -> bytes:
    """Tells keys apart, and nothing about them."""
    return hashlib.sha256(b"trivium key id" + key).digest()[:KEY_ID_SIZE]


class FileCipher:
    """Encrypts and decrypts the parts of one file, or of one transaction of the catalog."""

    def __init__(self, aead: AESGCM) -> None:
        self._aead = aead

    def seal(self, number: int, text: bytes, associated: bytes) -> bytes:
        """``text`` encrypted, with its tag. Each ``number`` may be used once."""
        return self._aead.encrypt(number.to_bytes(12, "little"), text, associated)

    def unseal(self, number: int, sealed: bytes, associated: bytes) -> bytes | None:
        """What ``seal`` encrypted; None when anything differs."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._aead.decrypt(number.to_bytes(12, "little"), sealed, associated)
        except InvalidTag:
            return None


class Keys:
    """The key for what is written, none for plain text, and those for what is read."""

    def __init__(self, current: bytes | None = None, others: tuple[bytes, ...] = ()) -> None:
        self._keys: dict[bytes, bytes] = {key_id(key): key for key in others}
        #: of the key for what is written; ``PLAIN`` for none
        self.current = PLAIN
        if current is not None:
            self.current = key_id(current)
            self._keys[self.current] = current

    def cipher(self, id_: bytes, salt: bytes, context: bytes, where: str) -> FileCipher:
        """For the file with this header. Raises StorageKeyError when its key was not given."""
        key = self._keys.get(id_)
        if key is None:
            raise StorageKeyError(
                f"{where} is encrypted with the key {id_.hex()}, which is not among those given"
                " ([storage] key_file, key_env)"
            )
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return FileCipher(AESGCM(HKDF(SHA256(), KEY_SIZE, salt, context).derive(key)))


def find_keys(file: str, variable: str, environment: Mapping[str, str]) -> Keys:
    """The keys in a file or in an environment variable, none where neither is named.

    Raises ValueError that says which is wrong.
    """
    if not file and not variable:
        return Keys()
    if file and variable:
        raise ValueError("key_file and key_env exclude each other")
    try:
        if file:
            return read_keys(Path(file).read_text(encoding="ascii"))
        return read_keys(environment[variable])
    except KeyError:
        raise ValueError(f"key_env: {variable} is not set") from None
    except OSError as error:
        raise ValueError(f"key_file: {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"key_file: {file}: a key is 64 hexadecimal digits") from None
    except ValueError as error:
        where = f"key_file: {file}" if file else f"key_env: {variable}"
        raise ValueError(f"{where}: {error}") from None


def read_keys(text: str) -> Keys:
    """Keys as a file or a variable holds them: words of 64 hexadecimal digits.

    The first is for what is written (``none``: plain text), all are for what is read. Raises
    ValueError.
    """
    keys: list[bytes | None] = []
    for word in text.split():
        if word == "none":
            if keys:
                raise ValueError("none can only be the first key")
            keys.append(None)
            continue
        try:
            key = bytes.fromhex(word)
        except ValueError:
            key = b""
        if len(key) != KEY_SIZE or len(word) != 2 * KEY_SIZE:
            raise ValueError("a key is 64 hexadecimal digits")
        keys.append(key)
    if not keys:
        raise ValueError("there is no key")
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ValueError("encryption needs the extra: pip install 'trivium[encryption]'") from None
    return Keys(keys[0], tuple(key for key in keys[1:] if key is not None))
