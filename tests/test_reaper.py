"""What tests started does not outlive them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATIENCE_MS = 30_000

ENDLESS = """
import subprocess, sys, threading
import pytest

@pytest.mark.timeout(1)
def test_it():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(child.pid, flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize("ending", ["timeout", "kill"])
def test_a_child_ends_with_its_tests(tmp_path: Path, ending: str) -> None:
    """When a test takes too long, and when the process of the tests is killed."""
    module = tmp_path / "test_endless.py"
    module.write_text(ENDLESS if ending == "timeout" else ENDLESS.replace("(1)", "(600)"))
    command = [sys.executable, "-m", "pytest", "-sq", "-c", "pyproject.toml"]
    command += ["-p", "tests.conftest", "-p", "no:cacheprovider", str(module)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        while not (line := tests.stdout.readline()).strip().isdigit():
            assert line, "the tests ended"
        child = os.pidfd_open(int(line))
        if ending == "kill":
            tests.kill()
        try:
            poll = select.poll()
            poll.register(child, select.POLLIN)
            assert poll.poll(PATIENCE_MS), "it goes on"
        except BaseException:
            signal.pidfd_send_signal(child, signal.SIGKILL)
            raise
        finally:
            os.close(child)
            tests.stdout.read()
