"""The broker under soak: all its doors, networks before them, and what it is measured by."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from bench.servers import COMPILED, REPOSITORY
from bench.soak.serve import HEAP
from trivium.cli.clients import Server
from trivium.cli.network import LOOPBACK, Network
from trivium.cli.own_broker import OwnBroker

#: Each has a network of its own, but HTTP, by which it is measured as well.
DOORS: Final = ("mqtt", "amqp", "native", "http", "mqtts", "amqps", "natives", "ws", "wss")
#: Seconds in which the broker tells what it has in memory, and answers a request.
PATIENCE: Final = 30.0
LOOK_SECONDS: Final = 0.05
#: Who asks: an administrator, from this machine.
HEADERS: Final = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


async def until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait for something that nobody tells; whether it came in time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True


class Site:
    """A broker on disk, to be entered and left. Clients come through the network of a door."""

    def __init__(self, *, counts_objects: bool = False) -> None:
        # ./dev leaves it out where it runs interpreted.
        found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        self.is_compiled = COMPILED in [Path(path).absolute() for path in found]
        paths = [str(COMPILED), str(REPOSITORY)] if self.is_compiled else [str(REPOSITORY)]
        environment = {"PYTHONPATH": os.pathsep.join(paths)}
        if counts_objects:
            environment["SOAK_OBJECTS"] = "1"
        command = (sys.executable, "-m", "bench.soak.serve", "serve")
        self.broker = OwnBroker(DOORS, environment=environment, command=command)
        self.networks = {door: Network() for door in DOORS}
        #: of the networks
        self.ports: dict[str, int] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Site:
        try:
            await self.broker.start()
            for door, network in self.networks.items():
                network.broker_port = self.broker.ports[door]
                self.ports[door] = await network.start()
        except BaseException:
            await self.__aexit__()
            raise
        self._session = aiohttp.ClientSession(
            f"http://{LOOPBACK}:{self.broker.ports['http']}",
            headers=HEADERS,
            timeout=aiohttp.ClientTimeout(PATIENCE),
            connector=aiohttp.TCPConnector(force_close=True),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
        for network in self.networks.values():
            await network.close()
        await self.broker.close()

    def server(self, door: str) -> Server:
        """A door for loads, behind its network."""
        tls = self.broker.client_tls if door in ("mqtts", "amqps", "natives") else None
        return Server(LOOPBACK, self.ports[door], None, None, "", tls)

    def disturb(self, draw: random.Random) -> None:
        """Reset all connections of one door."""
        self.networks[draw.choice(DOORS)].cut()

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """What the HTTP API answers, read whole; None where that is nothing.

        Raises ``aiohttp.ClientError``.
        """
        assert self._session is not None
        asked = self._session.request(method, path, json=body, raise_for_status=True)
        async with asked as answer:
            data = await answer.read()
            is_json = answer.content_type.endswith("json")
        return json.loads(data) if data and is_json else None

    async def counts(self) -> dict[str, int]:
        """How much there is of what must be gone again after a load."""
        about = await self.ask("GET", "/api/v1/overview")
        sessions = await self.ask("GET", "/api/v1/sessions")
        found = {
            what: int(about[what])
            for what in ("connections", "consumers", "exchanges", "queues", "streams", "groups")
        }
        found["sessions"] = int(sessions["total_count"])
        found["retained"] = int(about["retained_messages"])
        found["messages"] = int(about["messages_ready"] + about["messages_unsettled"])
        return found | self.descriptors()

    def descriptors(self) -> dict[str, int]:
        """File descriptors of the broker: sockets, and those of anything but its data."""
        folder = Path(f"/proc/{self.broker.pid}/fd")
        names = [str(each.readlink()) for each in folder.iterdir() if os.path.lexists(each)]
        data = str(self.broker.directory)
        sockets = sum(name.startswith("socket:") for name in names)
        files = sum(name.startswith(data) for name in names)
        return {"sockets": sockets, "other descriptors": len(names) - sockets - files}

    def resident_bytes(self) -> int:
        """Of the broker's process."""
        statm = Path(f"/proc/{self.broker.pid}/statm").read_text()
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def disk_bytes(self) -> int:
        """What its files take; one may be removed meanwhile."""
        total = 0
        for folder, _, names in os.walk(self.broker.directory / "data"):
            for name in names:
                try:
                    total += os.lstat(f"{folder}/{name}").st_size
                except FileNotFoundError:
                    continue
        return total

    async def heap(self) -> dict[str, Any]:
        """What the broker has in memory after it has given back what is free."""
        place = self.broker.directory / HEAP
        place.unlink(missing_ok=True)
        self.broker.signal(signal.SIGUSR1)
        if not await until(place.exists, PATIENCE):
            raise TimeoutError("the broker does not say what it has in memory")
        found: dict[str, Any] = json.loads(place.read_text())
        return found

    async def remove_leftovers(self) -> None:
        """End the sessions, and remove the messages, that clients leave behind by design."""
        for name in await self._names("sessions", "client_id"):
            await self.ask("DELETE", f"/api/v1/vhosts/%2F/sessions/{quote(name, safe='')}")
        while True:
            kept = (await self.ask("GET", "/api/v1/vhosts/%2F/retained?filter=soak/%23"))["items"]
            if not kept:
                return
            for one in kept:
                topic = quote(one["topic"], safe="")
                await self.ask("DELETE", f"/api/v1/vhosts/%2F/retained/{topic}")

    async def _names(self, kind: str, field: str) -> list[str]:
        found = await self.ask("GET", f"/api/v1/vhosts/%2F/{kind}?page_size=500")
        return [one[field] for one in found["items"]]
