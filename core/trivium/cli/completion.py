"""`trivium completion`: what a shell completes, made of all commands and verbs."""

from __future__ import annotations

import argparse

import shtab

from trivium.cli import EXIT_OK, NOUNS, make_parser


def run(options: argparse.Namespace) -> int:
    """Print the script for a shell; the exit code."""
    print(shtab.complete(make_parser(NOUNS), shell=options.shell))
    return EXIT_OK
