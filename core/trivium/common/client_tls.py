"""TLS as clients of a broker want it: whom to trust, what to show, and what went wrong in words.

The clients of this project and its commands share it. A certificate is always verified, unless the
caller has said in so many words that it is not.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_PEM: Final = "-----BEGIN "

#: Errors that may stand in each other.
_MOST_NESTED: Final = 10

#: What OpenSSL says where the other side does not speak TLS at all.
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})


class TlsError(ValueError):
    """Files or options that cannot be used; the text is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """How a client speaks TLS. The default trusts what the system trusts.

    ``ca`` (a file, or its text, PEM) has the authorities to trust instead. ``certificate`` and
    ``key`` are files, PEM, of a client certificate; the key may stand in the certificate's file.
    ``server_name`` is the name that the broker's certificate must be for, where that is not the
    host. With ``verify`` False anybody may pretend to be the broker.
    """

    ca: str = field(default="", repr=False)
    certificate: str = ""
    key: str = ""
    server_name: str = ""
    verify: bool = True

    def __post_init__(self) -> None:
        if self.key and not self.certificate:
            raise TlsError("a client key needs its certificate")
        if self.ca and not self.verify:
            raise TlsError("nothing is verified, so there is no use for an authority")

    def context(self, *applications: str) -> ssl.SSLContext:
        """What OpenSSL is to do, with the names of ALPN (RFC 7301). Reads the files.

        Raises TlsError.
        """
        context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.server_name = self.server_name
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if applications:
            context.set_alpn_protocols(list(applications))
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca:
            self._trust(context)
        else:
            context.load_default_certs()
        if self.certificate:
            self._show(context)
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        is_text = self.ca.lstrip().startswith(_PEM)
        if not is_text:
            _check_readable(self.ca)
        try:
            if is_text:
                context.load_verify_locations(cadata=self.ca)
            else:
                context.load_verify_locations(self.ca)
        except (ssl.SSLError, OSError, ValueError):
            where = "what is given" if is_text else self.ca
            raise TlsError(f"{where} has no certificate of an authority (PEM)") from None

    def _show(self, context: ssl.SSLContext) -> None:
        files = [self.certificate, *([self.key] if self.key else [])]
        for file in files:
            _check_readable(file)

        def password() -> str:
            raise TlsError(f"the key {files[-1]} is encrypted")

        try:
            context.load_cert_chain(self.certificate, self.key or None, password)
        except (ssl.SSLError, OSError) as error:
            raise TlsError(f"{' and '.join(files)}: not usable: {tls_reason(error)}") from None


class _NamedContext(ssl.SSLContext):
    """One with a server name of its own, whatever host its user connects to."""

    server_name = ""

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*arguments, **self._with_name(named))

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return super().wrap_bio(*arguments, **self._with_name(named))

    def _with_name(self, named: dict[str, Any]) -> dict[str, Any]:
        return named | {"server_hostname": self.server_name} if self.server_name else named


def _check_readable(file: str) -> None:
    """Raises TlsError where a file cannot be read."""
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise TlsError(f"{file}: {error.strerror}") from None


def tls_error_in(error: BaseException | None) -> ssl.SSLError | None:
    """The error of TLS that a library has put into one of its own; None where there is none."""
    for _ in range(_MOST_NESTED):
        if error is None or isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None


def tls_reason(error: BaseException) -> str:
    """Why there is no connection, in a few words; for other errors than TLS's their own."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate does not verify: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        if error.reason in _NOT_TLS:
            return "the other side does not speak TLS there"
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return "the other side closed the connection during the TLS handshake"
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return str(error)
