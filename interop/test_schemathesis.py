"""Trivium's own HTTP API under schemathesis: what its document allows, and what it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from interop.brokers import LOOPBACK, TriviumProcess

#: Seconds for it all.
SECONDS = 60
SEED = os.environ.get("TRIVIUM_API_SEED", "1")
#: Requests that take as long as they should: events go on, and who waits for messages waits.
SLOW = "^/api/v1/live$|/subscribe$"

#: Wrong passwords slow down all of their address, and with them this. That each operation wants
#: credentials is tested in tests/core/test_rest.py. And not all that a document allows can be had:
#: numbers in tables have 64 bits, patterns are ours, and arguments are those that there are.
UNCHECKED = "ignored_auth,positive_data_acceptance"
#: How what is wrong may be answered: as Schemathesis expects by default, and by the statuses for
#: conditions that do not hold and for bodies, lines and headers that are too large.
REFUSALS = """
[checks.negative_data_rejection]
expected-statuses = [
    400, 401, 403, 404, 405, 406, 409, 412, 413, 414, 415, 422, 428, 429, 431, "5xx"
]
"""


@pytest.mark.long
def test_answers_are_what_the_document_says(tmp_path: Path) -> None:
    everything = '{"*" = {configure = ".*", write = ".*", read = ".*"}}'
    configuration = tmp_path / "trivium.toml"
    configuration.write_text(
        f'[users.root]\npassword = "p"\ntags = ["administrator"]\npermissions = {everything}\n'
    )
    broker = TriviumProcess(
        tmp_path,
        protocols=("mqtt", "http"),
        arguments=("--config", str(configuration)),
    )
    (tmp_path / "schemathesis.toml").write_text(REFUSALS)
    broker.start()
    try:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run"),
                f"http://{LOOPBACK}:{broker.ports['http']}/api/v1/openapi.json",
                *("--auth", "root:p", "--exclude-checks", UNCHECKED, "--seed", SEED),
                *("--phases", "fuzzing,stateful"),
                # Of several threads that build syntax trees CPython 3.11 fails one (gh-106905).
                *("--max-examples", "3", "--max-time", str(SECONDS), "--workers", "1"),
                *("--continue-on-failure", "--no-shrink", "--warnings", "off", "--no-color"),
                *("--exclude-path-regex", SLOW, "--request-timeout", "40"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS * 4,
            check=False,
        )
        # Lines with what was asked may have 30,000 characters.
        told = [line[:400] for line in (run.stdout + run.stderr).splitlines()]
        assert run.returncode == 0, "\n".join(told)
    finally:
        broker.stop()
    assert "internal error" not in broker.log.read_text()
