"""Certificates of a test's own authority, made with another implementation than the broker's."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


def _name(*texts: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text) for text in texts])


def replace_file(file: Path, data: bytes) -> None:
    """As careful programs do: the new file is whole before it has the name."""
    new = file.with_suffix(".new")
    new.write_bytes(data)
    new.replace(file)


class Pair:
    """Files with a certificate and its key."""

    def __init__(self, folder: Path, name: str) -> None:
        self.certificate = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        self.number = 0


class Authority:
    """Signs certificates and lists of revoked ones into files of ``folder``."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.ca = folder / f"{name}.pem"
        self._write(self.ca, self._certificate(self._name, self._key, [], 10))

    def pair(
        self,
        name: str,
        *alternatives: str,
        common_name: str | None = None,
        days: float = 10,
        second: tuple[str, ...] = (),
    ) -> Pair:
        """A certificate for hosts, IP addresses, ``mail:`` and ``uri:`` names; ``second`` are more
        common names."""
        pair = Pair(self.folder, name)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name if common_name is None else common_name, *second)
        certificate = self._certificate(subject, key, [_general(a) for a in alternatives], days)
        pair.number = certificate.serial_number
        self._write(pair.certificate, certificate)
        replace_file(
            pair.key,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        return pair

    def revoke(self, *pairs: Pair, days: float = 5) -> Path:
        """A list with these certificates that holds for so many days more."""
        now = datetime.datetime.now(datetime.UTC)
        built = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - 10 * DAY)
            .next_update(now + days * DAY)
        )
        for pair in pairs:
            built = built.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(pair.number)
                .revocation_date(now - DAY)
                .build()
            )
        found = self.folder / "crl.pem"
        signed = built.sign(self._key, hashes.SHA256())
        replace_file(found, signed.public_bytes(serialization.Encoding.PEM))
        return found

    def _write(self, file: Path, certificate: x509.Certificate) -> None:
        replace_file(file, certificate.public_bytes(serialization.Encoding.PEM))

    def _certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        alternatives: list[x509.GeneralName],
        days: float,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 20 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.BasicConstraints(key is self._key, None), critical=True)
        )
        if alternatives:
            built = built.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return built.sign(self._key, hashes.SHA256())


def _general(text: str) -> x509.GeneralName:
    kind, colon, rest = text.partition(":")
    if kind == "mail" and colon:
        return x509.RFC822Name(rest)
    if kind == "uri" and colon:
        return x509.UniformResourceIdentifier(rest)
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
