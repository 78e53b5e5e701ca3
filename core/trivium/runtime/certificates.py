"""The TLS of one listener: its certificates as OpenSSL holds them, read anew when files change.

A connection keeps what it was accepted with. What is read anew is for those that come after, and
files that are wrong change nothing.
"""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trivium.errors import ConfigError
from trivium.listen import CertificateConfig, TlsConfig
from trivium.runtime.adapter import ClientCertificate

logger = logging.getLogger(__name__)

#: Of TLS 1.2: forward secrecy and authenticated encryption. TLS 1.3 has no others.
MODERN_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"

#: Seconds after which tickets of sessions are not taken any more where there is a list of revoked
#: certificates: OpenSSL does not look at it again when a session is resumed.
REVOCATION_SECONDS: Final = 60.0

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CLIENTS: Final = {
    "off": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

#: What tells one state of a file from another: time, size, inode.
Stamp = tuple[int, int, int]


class Certificates:
    """Those of one listener. Raises ConfigError where the files are wrong.

    ``context`` is for the next client. ``refresh`` may be called in any thread, ``take`` on the
    loop.
    """

    def __init__(self, name: str, config: TlsConfig, alpn: tuple[str, ...]) -> None:
        self._name = name
        self._config = config
        self._alpn = list(alpn)
        self._pattern = _user_pattern(config.user_from)
        self._stamps = self._look()
        self.context = self._load()
        self._loaded: ssl.SSLContext | None = None
        self._loaded_at = time.monotonic()
        # Whether it is worth a line in the log.
        self._is_news = False

    def refresh(self, is_forced: bool) -> bool:
        """Read the files again if one has changed, or in any case; whether there is something for
        ``take``.

        Files that are wrong are told of in the log, once.
        """
        now = time.monotonic()
        stamps = self._look()
        is_changed = stamps != self._stamps
        is_old = bool(self._config.crl) and now - self._loaded_at >= REVOCATION_SECONDS
        if not (is_changed or is_forced or is_old):
            return False
        self._stamps = stamps
        self._loaded_at = now
        self._is_news = is_changed or is_forced
        try:
            self._loaded = self._load()
        except ConfigError as error:
            if self._is_news:
                logger.error("%s keeps its old certificates: %s", self._name, error)
            return False
        return True

    def take(self) -> None:
        """What ``refresh`` has read is for the next client."""
        if self._loaded is not None:
            self.context = self._loaded
            self._loaded = None
            if self._is_news:
                logger.info("%s: the certificates were read again", self._name)

    def client_certificate(self, connection: ssl.SSLObject) -> ClientCertificate | None:
        """What the client has shown; None where it has shown none. Raises SSLError."""
        found = connection.getpeercert()
        if not found:
            return None
        fields: Any = found
        if connection.session_reused and ssl.cert_time_to_seconds(fields["notAfter"]) < time.time():
            # OpenSSL has looked at it when the session began.
            raise ssl.SSLError("the client's certificate: certificate has expired")
        common_names: list[str] = []
        for names in fields.get("subject", ()):
            for key, value in names:
                if key == "commonName":
                    common_names.append(value)
        others: dict[str, list[str]] = {"DNS": [], "email": [], "URI": []}
        for kind, value in fields.get("subjectAltName", ()):
            if kind in others:
                others[kind].append(value)
        values = {
            "cn": tuple(common_names),
            "san-dns": tuple(others["DNS"]),
            "san-email": tuple(others["email"]),
            "san-uri": tuple(others["URI"]),
        }
        users = self._users_of(values)
        return ClientCertificate(
            common_names[-1] if common_names else "",
            values["san-dns"],
            values["san-email"],
            values["san-uri"],
            users.pop() if len(users) == 1 else "",
            is_ambiguous=len(users) > 1,
        )

    def _users_of(self, values: dict[str, tuple[str, ...]]) -> set[str]:
        """The names that a certificate says for a user: none of several goes before."""
        source = self._config.user_from.partition(":")[0]
        matches = map(self._pattern.fullmatch, values[source])
        return {match[1] for match in matches if match is not None and match[1]}

    def _files(self) -> list[str]:
        config = self._config
        files = [config.certificate, config.key, config.ca, config.crl]
        for found in config.certificates:
            files += [found.certificate, found.key]
        return [file for file in files if file]

    def _look(self) -> list[Stamp | None]:
        stamps: list[Stamp | None] = []
        for file in self._files():
            try:
                found = Path(file).stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        return stamps

    def _load(self) -> ssl.SSLContext:
        config = self._config
        first = self._context(config.certificate, config.key)
        exact: dict[str, ssl.SSLContext] = {}
        for found in config.certificates:
            context = self._context(found.certificate, found.key)
            for host in found.hosts or hosts_of(found):
                exact.setdefault(host.lower(), context)
        if exact:
            first.sni_callback = _choice(exact)
        return first

    def _context(self, certificate: str, key: str) -> ssl.SSLContext:
        config = self._config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[config.minimum_version]
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        try:
            context.set_ciphers(config.ciphers or MODERN_CIPHERS)
        except ssl.SSLError:
            raise ConfigError(f"OpenSSL knows none of the ciphers {config.ciphers!r}") from None
        for cipher in context.get_ciphers():
            if not cipher["strength_bits"]:
                raise ConfigError(f"ciphers: {cipher['name']} does not encrypt")
            if cipher["auth"] == "auth-null":
                raise ConfigError(f"ciphers: {cipher['name']} does not authenticate the broker")
        context.set_alpn_protocols(self._alpn)
        # Each costs a tenth of a handshake; who connects again needs one (RFC 8446, 4.6.1).
        context.num_tickets = 1

        def password() -> str:
            raise ConfigError(f"the key {key} is encrypted")

        _try(lambda: context.load_cert_chain(certificate, key, password), certificate, key)
        if config.clients != "off":
            _try(lambda: context.load_verify_locations(config.ca), config.ca)
            context.verify_mode = _CLIENTS[config.clients]
            if config.crl:
                _try(lambda: context.load_verify_locations(config.crl), config.crl)
                if not context.cert_store_stats()["crl"]:
                    raise ConfigError(f"{config.crl} has no list of revoked certificates")
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return context


def _try(load: Callable[[], None], *files: str) -> None:
    """Have OpenSSL read files. Raises ConfigError, which names them."""
    for file in files:
        try:
            with Path(file).open("rb"):
                pass
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from None
    try:
        load()
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        text = str(reason).lower().replace("_", " ")
        raise ConfigError(f"{' and '.join(files)}: not usable: {text}") from None


def ends_at(path: str) -> int:
    """When the certificate in a file ends, in seconds since the epoch. Raises ConfigError."""
    return ssl.cert_time_to_seconds(_fields_of(path)["notAfter"])


def _fields_of(path: str) -> Any:
    try:
        return ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{path}: {error}") from None


def hosts_of(found: CertificateConfig) -> tuple[str, ...]:
    """The host names that a certificate is for. Raises ConfigError where it cannot be read."""
    fields = _fields_of(found.certificate)
    return tuple(value for kind, value in fields.get("subjectAltName", ()) if kind == "DNS")


def _choice(
    by_host: dict[str, ssl.SSLContext],
) -> Callable[[Any, str | None, ssl.SSLContext], None]:
    """Chooses the certificate for the host that a client asks for (RFC 6066, 3)."""

    def choose(connection: Any, host: str | None, _: ssl.SSLContext) -> None:
        name = (host or "").lower().rstrip(".")
        found = by_host.get(name)
        if found is None:
            # One label of the host, as in RFC 6125, 6.4.3.
            found = by_host.get("*." + name.partition(".")[2])
        if found is not None:
            connection.context = found

    return choose


def _user_pattern(user_from: str) -> re.Pattern[str]:
    pattern = user_from.partition(":")[2]
    return re.compile(pattern or "(.*)", re.DOTALL)
