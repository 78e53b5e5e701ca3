"""`trivium hash-password`: what the configuration has in place of a password."""

from __future__ import annotations

import argparse
import json
import sys

from trivium.cli import EXIT_OK, EXIT_USAGE
from trivium.security.passwords import MAX_ITERATIONS, PasswordFormatError, hash_password
from trivium.security.scram import DEFAULT_ITERATIONS, MIN_ITERATIONS, make_keys


def run(options: argparse.Namespace) -> int:
    """Print the hash, or the SCRAM keys, of the password on standard input; the exit code."""
    password = sys.stdin.readline().rstrip("\r\n")
    iterations = DEFAULT_ITERATIONS if options.iterations is None else options.iterations
    try:
        if not password:
            raise PasswordFormatError("the password must not be empty")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise PasswordFormatError(f"--iterations is from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        if options.scram:
            name, found = "scram", make_keys(password.encode(), iterations).text()
        else:
            name, found = "password", hash_password(password.encode())
        print(json.dumps({name: found}) if options.json else found)
    except PasswordFormatError as error:
        print(f"trivium hash-password: {error}", file=sys.stderr)
        return EXIT_USAGE
    return EXIT_OK
