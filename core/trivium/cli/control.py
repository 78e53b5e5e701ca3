"""Asks a broker's HTTP API for a command: by the control socket, or by a URL."""

from __future__ import annotations

import argparse
import base64
import errno
import http.client
import json
import os
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from trivium.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from trivium.cli.clients import ClientError, UsageError, speaks_tls, tls_of
from trivium.cli.server_options import URL_VARIABLE, url_password
from trivium.cli.tables import printable
from trivium.common.client_tls import TlsError, tls_error_in, tls_reason
from trivium.config import DEFAULT_PORTS, ControlConfig, StorageConfig
from trivium.errors import ConfigError
from trivium.listen import UNIX, ControlListener, join_address
from trivium.observability.api import PROBLEM

#: Time in which the broker answers.
TIMEOUT_SECONDS: Final = 60.0
#: Of lists: the most that the broker gives at a time.
PAGE_SIZE: Final = 500
_HTTPS_PORT: Final = 15671
_API: Final = "/api/v1/"


class Refused(ClientError):
    """The broker has answered no; ``kind`` is that of the problem, "" where it is none."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class _UnixConnection(http.client.HTTPConnection):
    """HTTP by a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_SECONDS)
        self.sock.connect(self._path)


class Api:
    """Trivium's own HTTP API of one broker."""

    def __init__(
        self,
        place: str,
        host: str = "",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        authorization: str = "",
    ) -> None:
        #: in words: where the broker is; without a host the path of its socket
        self.place = place
        self._host = host
        self._port = port
        self._tls = tls
        self._headers = {"Authorization": authorization} if authorization else {}

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """What is answered, None for nothing. Raises ClientError, Refused."""
        headers = {**self._headers, **(headers or {})}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        target = _API + path + (f"?{urlencode(query)}" if query else "")
        connection = self._connection()
        try:
            connection.request(method, target, data, headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ClientError(self._reason(error)) from None
        finally:
            connection.close()
        if response.status >= 300:
            raise _refused(self.place, response.status, response.reason, text)
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise ClientError(f"{self.place} does not answer as a broker does") from None

    def pages(self, path: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """The items of a list, page by page. Raises ClientError."""
        number = 0
        while True:
            number += 1
            asked = {**query, "page": str(number), "page_size": str(PAGE_SIZE)}
            try:
                page = self.ask("GET", path, asked)
            except Refused as refused:
                if number > 1 and refused.kind == "page-out-of-range":
                    # Items have gone meanwhile, and the last page with them.
                    return
                raise
            yield from page["items"]
            if number >= page["page_count"]:
                return

    def _connection(self) -> http.client.HTTPConnection:
        if not self._host:
            return _UnixConnection(self.place)
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=TIMEOUT_SECONDS, context=self._tls
        )

    def _reason(self, error: Exception) -> str:
        number = error.errno if isinstance(error, OSError) else None
        if not self._host and number in (errno.ENOENT, errno.ECONNREFUSED):
            return (
                f"no broker listens on {self.place}: give its --data directory, its --config file"
                " or a --url"
            )
        tls_error = tls_error_in(error)
        if tls_error is not None:
            reason = tls_reason(tls_error)
        elif isinstance(error, TimeoutError):
            reason = f"no answer within {TIMEOUT_SECONDS:g} seconds"
        elif number is not None and number in errno.errorcode:
            reason = os.strerror(number)
        elif self._host and self._tls is None and speaks_tls(self._host, self._port):
            reason = "TLS is spoken there, so the URL begins with https://"
        elif isinstance(error, http.client.HTTPException | ConnectionError):
            reason = "it does not answer as a broker does"
        else:
            reason = str(error).partition("] ")[2] or str(error)
        return f"cannot ask {self.place}: {reason}"


def _refused(place: str, status: int, phrase: str, text: bytes) -> Refused:
    """The detail of a problem (RFC 9457), or the status."""
    try:
        found = json.loads(text)
        if isinstance(found, dict) and isinstance(found.get("detail"), str):
            return Refused(found["detail"], str(found.get("type")).removeprefix(PROBLEM))
    except ValueError:
        pass
    return Refused(f"{place} answers {status} {phrase}", "")


def run_command(options: argparse.Namespace, work: Callable[[argparse.Namespace], None]) -> int:
    """Do the work of a command that asks a broker; the exit code."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        work(options)
    except UsageError as error:
        return _fail(options, EXIT_USAGE, error)
    except ClientError as error:
        return _fail(options, EXIT_FAILED, error)
    except KeyboardInterrupt:
        return EXIT_FAILED
    return EXIT_OK


def _fail(options: argparse.Namespace, code: int, error: Exception) -> int:
    sys.stdout.flush()
    text = printable(" ".join(str(error).split()))
    print(f"trivium {options.command}: {text}", file=sys.stderr)
    return code


def find_api(options: argparse.Namespace) -> Api:
    """The broker that the options, or the environment, say. Raises UsageError."""
    url = options.url
    if url is None and options.data is None and options.config is None:
        url = os.environ.get(URL_VARIABLE) or None
    if url is not None and not url.startswith(UNIX):
        return _api_of(url, options)
    tls_of(options, "http", False)
    if options.password_file is not None:
        raise UsageError("--password-file is for a --url: the control socket asks for no password")
    return Api(_socket_path(options) if url is None else url.removeprefix(UNIX))


def _api_of(url: str, options: argparse.Namespace) -> Api:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{url!r}: {error}") from None
    is_url = parts.scheme in ("http", "https") and parts.hostname
    if not is_url or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise UsageError("a URL is http:// or https:// and [USER:PASSWORD@]HOST[:PORT]")
    assert parts.hostname is not None
    tls = tls_of(options, "http", parts.scheme == "https")
    try:
        context = None if tls is None else tls.context()
    except TlsError as error:
        raise UsageError(str(error)) from None
    if port is None:
        port = DEFAULT_PORTS["http"] if context is None else _HTTPS_PORT
    place = join_address(parts.hostname, port)
    return Api(place, parts.hostname, port, context, _authorization(parts, options))


def _authorization(parts: SplitResult, options: argparse.Namespace) -> str:
    """The header with what the URL, a file or the environment have. Raises UsageError."""
    try:
        secret = None if parts.password is not None else url_password(options)
    except (OSError, ValueError) as error:
        raise UsageError(f"--password-file: {error}") from None
    if parts.username is None:
        return "" if secret is None else f"Bearer {secret}"
    password = unquote(parts.password) if parts.password is not None else secret or ""
    shown = f"{unquote(parts.username)}:{password}".encode(errors="surrogateescape")
    return f"Basic {base64.b64encode(shown).decode()}"


def _socket_path(options: argparse.Namespace) -> str:
    """That of the control socket. Raises UsageError."""
    try:
        listener = _configured(options)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if listener is None:
        raise UsageError("the broker has no control socket by its configuration: give a --url")
    return listener.path


def _configured(options: argparse.Namespace) -> ControlListener | None:
    storage = {} if options.data is None else {"mode": "disk", "data": options.data}
    if options.config is None and not any("__" in name for name in os.environ if _is_ours(name)):
        data = StorageConfig() if options.data is None else StorageConfig(data=Path(options.data))
        return ControlConfig().listener(data)
    from trivium.cli.configuration import load
    from trivium.cli.serve import options_of_protocols, protocols

    config = load(
        None if options.config is None else Path(options.config),
        os.environ,
        {"storage": storage},
        protocols(),
        options_of_protocols(),
    )
    return config.control.listener(config.storage)


def _is_ours(name: str) -> bool:
    return name.startswith("TRIVIUM_")
