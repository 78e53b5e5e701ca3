"""The client's side of SCRAM-SHA-256, straight from RFC 5802, 3 and 5."""

from __future__ import annotations

import base64
import hashlib
import hmac

#: the least that the broker takes, so that tests are quick
ITERATIONS = 4096


def digest(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


class ScramClient:
    """One exchange."""

    def __init__(
        self, name: str, password: str, nonce: str = "rOprNGfwEbeRWgbNEkqO", header: str = "n,,"
    ) -> None:
        self.bare = f"n={name},r={nonce}"
        self.header = header
        self.first = (header + self.bare).encode()
        self.password = password
        self.signature = b""

    def final(self, challenge: bytes, **changed: str) -> bytes:
        """The answer to a challenge; ``changed`` are attributes to send in place of the right."""
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        salt = base64.b64decode(fields["s"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, int(fields["i"]))
        client_key = digest(salted, b"Client Key")
        sent = {"c": base64.b64encode(self.header.encode()).decode(), "r": fields["r"]} | changed
        proof = sent.pop("p", None)
        without = ",".join(f"{name}={value}" for name, value in sent.items())
        signed = b",".join((self.bare.encode(), challenge, without.encode()))
        signature = digest(hashlib.sha256(client_key).digest(), signed)
        self.signature = b"v=" + base64.b64encode(digest(digest(salted, b"Server Key"), signed))
        if proof is None:
            mixed = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
            proof = base64.b64encode(mixed).decode()
        return f"{without},p={proof}".encode()
