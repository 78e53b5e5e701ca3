"""The examples of docs/rest-api.md, as they stand."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from trivium.config import Config, Listen, StorageConfig
from trivium.runtime.broker import Broker

PAGE = (Path(__file__).parents[2] / "docs/rest-api.md").read_text(encoding="utf-8")


async def test_the_examples_of_the_page_work(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert blocks
    config = Config(
        listen={"http": Listen(0), "mqtt": Listen(0)},
        storage=StorageConfig(data=tmp_path / "data"),
    )
    async with Broker(config) as broker:
        url = f"http://{broker.listeners['http']}/api/v1"
        script = "set -eu\n" + "".join(blocks)
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            script,
            env={"URL": url, "PATH": "/usr/bin:/bin"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate()
    assert process.returncode == 0, (out, errors)
    assert b"no stream 'none' in vhost '/'" in out
