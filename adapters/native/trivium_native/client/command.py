"""`trivium://` for `trivium pub` and `trivium sub`, by the project's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from trivium.cli.clients import (
    Client,
    ClientError,
    Handler,
    Publication,
    Server,
    Subscription,
    UsageError,
)
from trivium.common.client_tls import TlsError
from trivium_native.client import client as native
from trivium_native.client.url import DEFAULT_TLS_PORT, Target
from trivium_native.client.values import StreamInfo
from trivium_native.wire.errors import InvalidArgument, NativeError
from trivium_native.wire.frames import DEFAULT_PORT


class NativeClient:
    """A native client for the command line."""

    def __init__(self, client: native.Client) -> None:
        self._client = client

    async def publish(self, publication: Publication, payload: bytes) -> None:
        """Publish; the delivery modes are numbered as MQTT's qualities of service."""
        await self._client.publish(
            payload,
            routing_key=publication.address,
            exchange=publication.exchange,
            mode=publication.qos,
            retain=publication.retain,
        )

    async def subscribe(
        self, subscription: Subscription, subscribed: Callable[[], None], handle: Handler
    ) -> None:
        """A pattern on the exchange, or a queue, or all partitions of a stream from an offset."""
        if subscription.offset is not None:
            offset = parse_offset(subscription.offset)
            (stream,) = await self._client.metadata([subscription.address])
            await self._read(stream, offset, subscription.topic_filter, subscribed, handle)
        elif subscription.is_queue:
            async with self._client.consume(subscription.address) as deliveries:
                subscribed()
                async for delivery in deliveries:
                    goes_on = handle(as_text(delivery.routing_key), delivery.payload)
                    await deliveries.ack(delivery, wait=not goes_on)
                    if not goes_on:
                        return
        else:
            pattern, exchange = subscription.address, subscription.exchange
            async with self._client.subscribe(pattern, exchange=exchange) as messages:
                subscribed()
                async for message in messages:
                    if not handle(as_text(message.routing_key), message.payload):
                        return

    async def _read(
        self,
        stream: StreamInfo,
        offset: int | str,
        topic_filter: str | None,
        subscribed: Callable[[], None],
        handle: Handler,
    ) -> None:
        finished = asyncio.Event()
        starting = len(stream.partitions)

        async def read(partition: int) -> None:
            nonlocal starting
            incarnation = stream.incarnation
            async with self._client.read(
                stream.name,
                partition,
                offset,
                incarnation=incarnation,
                topic_filter=topic_filter,
            ) as batches:
                starting -= 1
                if starting == 0:
                    subscribed()
                async for batch in batches:
                    for record in batch.records():
                        if finished.is_set():
                            return
                        if not handle(as_text(record.routing_key), record.payload):
                            finished.set()

        readers = [asyncio.create_task(read(number)) for number in range(starting)]
        stop = asyncio.create_task(finished.wait())
        try:
            done, _ = await asyncio.wait([stop, *readers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stop, *readers):
                task.cancel()
            await asyncio.gather(stop, *readers, return_exceptions=True)
        for task in done:
            task.result()


def parse_offset(text: str) -> int | str:
    """`first`, `next`, or a number. Raises UsageError."""
    if text in ("first", "next"):
        return text
    if text.isdecimal() and int(text) < 1 << 63:
        return int(text)
    raise UsageError(f"--from {text!r} is not an offset, first or next")


def as_text(routing_key: bytes) -> str:
    """The address as the terminal shows it; bytes that are no UTF-8 pass through."""
    return routing_key.decode(errors="surrogateescape")


def target_of(server: Server) -> Target:
    """Where the command's URL leads."""
    default_port = DEFAULT_PORT if server.tls is None else DEFAULT_TLS_PORT
    return Target(
        server.host,
        default_port if server.port is None else server.port,
        server.path or "/",
        server.username,
        server.password or "",
        server.tls,
    )


@asynccontextmanager
async def connect(server: Server) -> AsyncIterator[Client]:
    """A connected client, anonymous unless the URL names a user."""
    try:
        async with native.connect(target_of(server), reconnect=False) as client:
            yield NativeClient(client)
    except (TlsError, InvalidArgument) as error:
        raise UsageError(str(error)) from None
    except NativeError as error:
        raise ClientError(error.text) from None
