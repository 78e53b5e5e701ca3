"""`trivium tls self-signed`: certificates to try TLS with, of an authority that is made for it."""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
import sys
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trivium.cli import EXIT_FAILED, EXIT_OK
from trivium.cli.tables import print_json

#: How long they are valid, from a day ago, so that clocks that differ are no matter.
VALID_DAYS: Final = 825
#: Who the client is.
CLIENT: Final = "client"

FILES: Final = ("ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key")


def run(options: argparse.Namespace) -> int:
    """Do as the options say; the exit code."""
    directory = Path(options.directory)
    try:
        there = [name for name in FILES if (directory / name).exists()]
        if there:
            print(f"trivium tls: {directory / there[0]} exists already", file=sys.stderr)
            return EXIT_FAILED
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in make_certificates(options.hosts or []).items():
            _write(directory / name, data)
    except (OSError, ValueError) as error:
        print(f"trivium tls: {error}", file=sys.stderr)
        return EXIT_FAILED
    files = [str(directory / name) for name in FILES]
    if options.json:
        print_json({"files": files})
    else:
        print(*files, sep="\n")
    return EXIT_OK


def _write(file: Path, data: bytes) -> None:
    mode = 0o600 if file.suffix == ".key" else 0o644
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        out.write(data)


class _Authority:
    """Signs certificates; its own too."""

    def __init__(self) -> None:
        self.name = _name("Trivium self-signed authority")
        self.key = ec.generate_private_key(ec.SECP256R1())
        self._begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)

    def sign(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *extensions: x509.ExtensionType,
    ) -> bytes:
        """A certificate, PEM; of an authority where ``key`` is its own."""
        is_authority = key is self.key
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            encipher_only=False,
            decipher_only=False,
        )
        public = key.public_key()
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._begin)
            .not_valid_after(self._begin + datetime.timedelta(days=VALID_DAYS))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(authority_id, critical=False)
        )
        for extension in extensions:
            built = built.add_extension(extension, critical=False)
        return built.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def make_certificates(hosts: list[str]) -> dict[str, bytes]:
    """The content of each of ``FILES``: an authority, and what it has signed for the server on
    this machine and on ``hosts``, and for a client.
    """
    authority = _Authority()
    server = ec.generate_private_key(ec.SECP256R1())
    client = ec.generate_private_key(ec.SECP256R1())
    names = [_general_name(host) for host in ("localhost", "127.0.0.1", "::1", *hosts)]
    return {
        "ca.pem": authority.sign(authority.name, authority.key),
        "ca.key": _private_bytes(authority.key),
        "server.pem": authority.sign(
            _name("localhost"),
            server,
            x509.SubjectAlternativeName(names),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        ),
        "server.key": _private_bytes(server),
        "client.pem": authority.sign(
            _name(CLIENT), client, x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        ),
        "client.key": _private_bytes(client),
    }


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
