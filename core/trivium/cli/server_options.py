"""The options of every command that is a client of a broker: where it is, TLS, the password.

Apart from what uses them, so that `trivium --help` imports nothing heavy.
"""

from __future__ import annotations

import argparse
import os
from typing import Final

from trivium.common.secrets import read_secret

#: The variable with the password, token or API key of the URL's user.
SECRET_VARIABLE: Final = "TRIVIUM_PASSWORD"  # noqa: S105

TLS_EPILOG: Final = f"""\
A scheme with an s behind it is the same protocol by TLS. The broker's certificate is verified.

What is secret need not stand in the URL, where others see it in the list of processes: the password
of the URL's user, or without a user a token or API key, is read from --password-file, or else is in
the environment variable {SECRET_VARIABLE}.
"""


#: The variable with the URL of the broker's HTTP API.
URL_VARIABLE: Final = "TRIVIUM_URL"

CONTROL_EPILOG: Final = f"""\
The broker is found by its control socket: that of the data directory or configuration that is
named, or else as `trivium serve` without options has it. Or URL is http:// or https:// followed by
[USER:PASSWORD@]HOST[:PORT], or unix: and the path of a socket; it may be in the environment
variable {URL_VARIABLE}. {TLS_EPILOG.partition(". ")[2]}"""


def add_server(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """The URL, and what is said beside it."""
    parser.add_argument("url", metavar="URL", nargs="?" if is_optional else None)
    _add_secrets(parser.add_argument_group("connection"))


def add_control(parser: argparse.ArgumentParser) -> None:
    """Where the broker is whose HTTP API is asked, and what is said beside it."""
    beside = parser.add_argument_group("connection")
    place = beside.add_mutually_exclusive_group()
    place.add_argument("--data", metavar="DIR", help="the broker's data directory")
    place.add_argument("--config", metavar="FILE", help="its configuration")
    place.add_argument("--url", metavar="URL", help="http(s)://[USER:PASSWORD@]HOST[:PORT]")
    _add_secrets(beside)


def _add_secrets(beside: argparse._ArgumentGroup) -> None:
    for name, what in (
        ("ca", "authorities to trust instead of the system's, PEM"),
        ("certificate", "of the client, PEM"),
        ("key", "of that certificate, PEM"),
    ):
        beside.add_argument(f"--tls-{name}", default="", metavar="FILE", help=what)
    beside.add_argument(
        "--tls-server-name", default="", metavar="NAME", help="of the broker, if not the URL's host"
    )
    beside.add_argument(
        "--tls-insecure", action="store_true", help="verify nothing: anybody may be the broker"
    )
    beside.add_argument(
        "--password-file", metavar="FILE", help="its first line is the URL's password, or a token"
    )


def url_password(options: argparse.Namespace) -> str | None:
    """The password that is not in the URL. Raises OSError, ValueError."""
    if options.password_file is None:
        return os.environ.get(SECRET_VARIABLE) or None
    return read_secret(options.password_file)
