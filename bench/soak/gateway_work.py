"""Messages over HTTP: published with a key of idempotence, lent, accepted, put back, rejected."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

import aiohttp

from bench.soak.accounts import Account
from bench.soak.site import HEADERS, PATIENCE, Site
from bench.soak.works import AGAIN_SECONDS, GONE, Work, pause
from trivium.cli.network import LOOPBACK

_QUEUE: Final = "soak-gateway"
_VHOST: Final = "/api/v1/vhosts/%2F"
_TOGETHER: Final = 5
_WAIT_MS: Final = 500
_LEASE_MS: Final = 3000
_REQUEUED: Final = 0.1
#: Of requests, those with a key: the broker remembers each of 65,536, which takes memory.
_KEYED: Final = 0.1


class Gateway(Work):
    """A publisher that repeats what was not answered, and a consumer that borrows."""

    def __init__(self, site: Site, draw: random.Random, rate: float) -> None:
        super().__init__(site, draw, rate)
        # A copy of a message that was lent before says so; the publisher makes none.
        self._account = Account("gateway")
        self.accounts = [self._account]
        self._session: aiohttp.ClientSession | None = None

    async def prepare(self) -> None:
        self._session = aiohttp.ClientSession(
            f"http://{LOOPBACK}:{self.site.ports['http']}",
            headers=HEADERS,
            timeout=aiohttp.ClientTimeout(PATIENCE),
        )
        await self.site.ask("PUT", f"{_VHOST}/queues/{_QUEUE}", {})
        self.keep(self._borrow)

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._publish()
            await pause(stop, _TOGETHER / self.rate)

    async def close(self) -> None:
        await super().close()
        if self._session is not None:
            await self._session.close()
        await self.site.ask("DELETE", f"{_VHOST}/queues/{_QUEUE}")

    async def _post(self, path: str, body: object, **headers: str) -> Any:
        assert self._session is not None
        sent = self._session.post(_VHOST + path, json=body, headers=headers, raise_for_status=True)
        async with sent as answer:
            return await answer.json()

    async def _publish(self) -> None:
        """With a key until it is answered: it is the same request each time. Else once."""
        numbers = [self._account.begin() for _ in range(_TOGETHER)]
        messages = [
            {"key": _QUEUE, "payload": self._account.payload(number).decode()} for number in numbers
        ]
        is_keyed = self.draw.random() < _KEYED
        key = {"Idempotency-Key": f"{self._account.name}-{numbers[0]}"} if is_keyed else {}
        while True:
            try:
                await self._post("/exchanges/amq.default/messages", {"messages": messages}, **key)
                break
            except GONE:
                if not is_keyed:
                    return
                await asyncio.sleep(AGAIN_SECONDS)
        for number in numbers:
            self._account.acknowledged.add(number)

    async def _borrow(self) -> None:
        found = await self._post(
            f"/queues/{_QUEUE}/leases",
            {"count": 100, "wait_ms": _WAIT_MS, "lease_ms": _LEASE_MS},
        )
        leases: dict[str, list[str]] = {"accept": [], "requeue": []}
        for message in found["messages"]:
            is_redelivered = message["redelivered"]
            if not is_redelivered and self.draw.random() < _REQUEUED:
                leases["requeue"].append(message["lease"])
            else:
                leases["accept"].append(message["lease"])
                self._account.take(message["payload"].encode(), is_redelivered=is_redelivered)
        for outcome, lent in leases.items():
            if lent:
                body = {"leases": lent, "outcome": outcome}
                await self._post(f"/queues/{_QUEUE}/leases/settle", body)
