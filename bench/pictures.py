"""The pictures of the README, of a broker at work: ``./dev pictures``.

`trivium top` is drawn by rich, which takes no terminal, the dashboard by headless Chromium.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.servers import REPOSITORY
from bench.soak.site import Site
from bench.soak.watchers import sign_in
from bench.soak.works import RoadWork
from interop.chromium import page
from trivium.cli import make_parser
from trivium.cli.control import find_api
from trivium.cli.network import LOOPBACK
from trivium.cli.status import look
from trivium.cli.top import screen
from trivium.runtime.server import loop_factory

FOLDER: Final = REPOSITORY / "docs" / "pictures"
#: Seconds for which the dashboard draws its lines, and between two looks of `trivium top`.
SECONDS: Final = 200.0
LOOK_SECONDS: Final = 2.0
COLUMNS: Final = 100
SIZE: Final = (1280, 850)
#: The fonts that rich would have a browser load from elsewhere.
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def _works(site: Site) -> list[RoadWork]:
    return [
        RoadWork(site, 900, "mqtt", "mqtt", name="sensors", qos=0, consumers=3),
        RoadWork(site, 400, "mqtt", "mqtts", name="alarms", qos=2),
        RoadWork(site, 600, "amqp", "amqp", name="orders", consumers=2),
        RoadWork(site, 100, "amqp", "amqps", name="invoices", transaction=4),
        RoadWork(site, 20, "amqp", "amqp", name="archive", consumers=0),
        RoadWork(site, 300, "trivium", "native", name="jobs"),
        RoadWork(site, 700, "trivium", "natives", name="readings", is_stream=True, consumers=2),
    ]


async def take(folder: Path) -> None:
    """Start a broker, put work on it, and take the pictures."""
    async with Site() as site:
        works = _works(site)
        for work in works:
            await work.prepare()
        is_over = asyncio.Event()
        running = [asyncio.create_task(work.run(is_over)) for work in works]
        place = f"{LOOPBACK}:{site.broker.ports['http']}"
        if shutil.which("chromium"):
            await asyncio.to_thread(_draw_dashboard, f"http://{place}/", folder)
        await asyncio.to_thread(_draw_top, f"http://guest:guest@{place}", folder / "top.svg")
        is_over.set()
        await asyncio.gather(*running)
        for work in works:
            await work.settle()
            await work.close()


def _draw_top(url: str, file: Path) -> None:
    api = find_api(make_parser(()).parse_args(["top", "--url", url]))
    before = look(api)
    time.sleep(LOOK_SECONDS)
    now = look(api)
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(screen(before, now))
        drawn = console.export_svg(title="trivium top", unique_id="top")
    file.write_text(_FONTS.sub("", drawn), encoding="utf-8")


def _draw_dashboard(url: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as profile, page(Path(profile)) as tab:
        tab.look(*SIZE)
        sign_in(tab, url)
        tab.run(f"new Promise((done) => setTimeout(done, {SECONDS * 1000}))")
        for scheme in ("light", "dark"):
            tab.look(*SIZE, scheme)
            tab.run("new Promise((done) => setTimeout(done, 1500))")
            tab.picture(folder / f"dashboard-{scheme}.webp")


def main() -> int:
    """Take the pictures; the exit code."""
    FOLDER.mkdir(exist_ok=True)
    logging.disable()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(take(FOLDER))
    for file in sorted(FOLDER.iterdir()):
        print(f"{file.relative_to(REPOSITORY)}: {file.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
