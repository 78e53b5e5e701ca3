"""Scenarios of JavaScript clients, in `interop/node`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def run(script: str, *arguments: object) -> Any:
    """Run a scenario; what it printed."""
    node = shutil.which("node")
    if node is None or not (HERE / "node_modules").is_dir():
        pytest.skip("Node.js or interop/node_modules is missing (./dev test installs both)")
    result = subprocess.run(
        [node, str(HERE / "node" / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
