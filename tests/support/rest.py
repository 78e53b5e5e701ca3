"""A client of Trivium's own HTTP API that holds each answer against the document."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
from jsonschema import Draft202012Validator
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from yarl import URL

from trivium.config import AuditConfig, Config, Listen, StorageConfig, UserConfig
from trivium.management.rest import ENDPOINTS
from trivium.management.rest.document import document
from trivium.management.rest.operations import Operation
from trivium.runtime.broker import Broker

EVERYTHING = {"*": {"configure": ".*", "write": ".*", "read": ".*"}}
USERS = {
    "root": UserConfig(password="p", tags=("administrator",), permissions=EVERYTHING),
    "ann": UserConfig(password="p", tags=("monitoring",)),
    "pol": UserConfig(password="p", tags=("policymaker",), permissions=EVERYTHING),
    "man": UserConfig(password="p", tags=("management",), permissions=EVERYTHING),
    "joe": UserConfig(password="p"),
}
DOCUMENT = json.loads(b"".join(document(ENDPOINTS)))


def authorization(user: str) -> dict[str, str]:
    """What a user shows."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:p".encode()).decode()}


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0)


class Site:
    """A broker and a client of its HTTP port. Each answer is held against the document."""

    def __init__(self, broker: Broker, client: aiohttp.ClientSession) -> None:
        self.broker = broker
        self.client = client

    async def ask(
        self, method: str, path: str, user: str = "root", **options: Any
    ) -> tuple[int, Any]:
        headers = dict(options.pop("headers", {}))
        if user:
            headers |= authorization(user)
        url = URL(f"http://{self.broker.listeners['http']}/api/v1/{path}", encoded=True)
        async with self.client.request(method, url, headers=headers, **options) as answer:
            text = await answer.text()
            if answer.content_type == "text/event-stream":
                return answer.status, events_in(text)
            assert not any(name.startswith("Access-Control") for name in answer.headers)
            assert (answer.status == 401) is ("WWW-Authenticate" in answer.headers)
            found = json.loads(text) if text else None
            check(method, path, answer.status, answer.content_type, found)
            return answer.status, found

    def open(self, path: str, shown: dict[str, str] | None = None) -> Any:
        """An answer that goes on, to a client that shows this."""
        url = f"http://{self.broker.listeners['http']}/api/v1/{path}"
        return self.client.get(url, headers=shown or authorization("root"))

    @contextlib.asynccontextmanager
    async def events(
        self, path: str, user: str = "root", **headers: str
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """The events of a feed, each as the document says, as they come."""
        url = URL(f"http://{self.broker.listeners['http']}/api/v1/{path}", encoded=True)
        shown = {**authorization(user), **{k.replace("_", "-"): v for k, v in headers.items()}}
        async with self.client.get(url, headers=shown) as answer:
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
            assert await answer.content.readuntil(b"\n\n") == b":\n\n"
            yield _events(answer)

    def socket(self, path: str, user: str = "root", **options: Any) -> Any:
        """A WebSocket, as a context manager."""
        url = URL(f"http://{self.broker.listeners['http']}/api/v1/{path}", encoded=True)
        return self.client.ws_connect(url, headers=authorization(user), **options)

    async def names(self, path: str, user: str = "root") -> list[str]:
        status, found = await self.ask("GET", path, user)
        assert status == 200, found
        return [item["name"] for item in found["items"]]


Event = tuple[str, str, Any]


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    """Name, identity and data of each; comments are passed over."""
    unread = b""
    async for data in answer.content.iter_any():
        *texts, unread = (unread + data).split(b"\n\n")
        for text in texts:
            lines = [line.partition(": ") for line in text.decode().splitlines() if line]
            fields = {name: value for name, _, value in lines}
            if "event" in fields:
                yield fields["event"], fields.get("id", ""), json.loads(fields["data"])


def events_in(text: str) -> list[Any]:
    """The data of events, each of which is as the document says."""
    found: list[Any] = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        assert event.startswith("event: figures\ndata: ")
        found.append(json.loads(event.partition("data: ")[2]))
        schema = {"$ref": "#/components/schemas/Live", "components": DOCUMENT["components"]}
        Draft202012Validator(schema).validate(found[-1])
    return found


def check(method: str, path: str, status: int, kind: str, body: Any) -> None:
    """Hold an answer against the document."""
    segments = path.partition("?")[0].split("/")
    methods: dict[str, Any] = {}
    for pattern, found in DOCUMENT["paths"].items():
        wanted = pattern.split("/")[3:]
        if len(wanted) == len(segments) and all(
            one.startswith("{") or one == other for one, other in zip(wanted, segments, strict=True)
        ):
            methods = found
            break
    operation = methods.get(method.lower(), {"responses": {}})
    said = operation["responses"].get(str(status), operation["responses"].get("default"))
    if said is None:
        assert status in (404, 405)
        said = {"content": {"application/problem+json": PROBLEM}}
    if "content" not in said:
        assert body is None
        return
    ((media, content),) = said["content"].items()
    if method != "HEAD":
        assert kind == media or (media == "application/json" and kind.startswith("application/"))
        schema = {**content["schema"], "components": DOCUMENT["components"]}
        Draft202012Validator(schema).validate(body)
    if status >= 400:
        assert body["status"] == status
        assert body["type"].startswith("urn:trivium:problem:")


PROBLEM = {"schema": {"$ref": "#/components/schemas/Problem"}}


@contextlib.asynccontextmanager
async def serve(directory: Path, **keys: Any) -> AsyncIterator[Site]:
    listen = {"http": Listen(0), **{name: Listen(0) for name in keys.pop("protocols", ())}}
    config = Config(
        listen=listen,
        storage=StorageConfig(data=directory / "data"),
        users=USERS,
        audit=AuditConfig(file=str(directory / "audit.log")),
        **keys,
    )
    async with Broker(config) as broker, aiohttp.ClientSession() as client:
        yield Site(broker, client)


def filled(path: str) -> str:
    """A path of an operation, with names of what there is not; the virtual host is there."""
    segments = path.split("/")[1:]
    return "/".join(
        "%2F" if each == "{vhost}" else "nothing" if each.startswith("{") else each
        for each in segments
    )


def said(operation: Operation) -> dict[str, str]:
    """What a request of an operation says of its body."""
    kind = "application/octet-stream" if operation.is_raw else "application/json"
    return {"Content-Type": kind} if operation.method == "POST" else {}


def expiring(seconds: int) -> Properties:
    """What a client asks for whose session outlives its connection."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = seconds
    return properties
