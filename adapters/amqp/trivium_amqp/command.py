"""`amqp://` for `trivium pub` and `trivium sub`, by the aio-pika client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractExchange

from trivium.cli.clients import (
    Client,
    ClientError,
    Handler,
    Publication,
    Server,
    Subscription,
    UsageError,
)

DEFAULT_PORT = 5672
DEFAULT_TLS_PORT = 5671
ALPN = "amqp"
DEFAULT_USER = "guest"
#: messages that wait for their acknowledgement in the terminal's process
PREFETCH = 256


class AmqpClient:
    """An AMQP client for the command line."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._exchange: AbstractExchange | None = None
        self._opening = asyncio.Lock()

    async def publish(self, publication: Publication, payload: bytes) -> None:
        """Publish: transient without confirmation at QoS 0, else persistent and confirmed."""
        if publication.qos == 2 or publication.retain:
            raise UsageError("amqp:// has neither --qos 2 nor --retain")
        async with self._opening:
            if self._exchange is None:
                channel = await self._connection.channel(publisher_confirms=publication.qos > 0)
                self._exchange = (
                    await channel.get_exchange(publication.exchange)
                    if publication.exchange
                    else channel.default_exchange
                )
        message = aio_pika.Message(payload, delivery_mode=2 if publication.qos else 1)
        await self._exchange.publish(message, publication.address, mandatory=False)

    async def subscribe(
        self, subscription: Subscription, subscribed: Callable[[], None], handle: Handler
    ) -> None:
        """Consume a queue, or an exclusive one that is bound to the exchange with the address."""
        if subscription.offset is not None:
            raise UsageError("amqp:// has no --from")
        channel = await self._connection.channel()
        await channel.set_qos(PREFETCH)
        if subscription.is_queue:
            queue = await channel.get_queue(subscription.address)
        else:
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(subscription.exchange, subscription.address)
        async with queue.iterator() as messages:
            subscribed()
            async for message in messages:
                goes_on = handle(message.routing_key or "", message.body)
                await message.ack()
                if not goes_on:
                    return
        raise ClientError("the server cancelled the consumer")


@asynccontextmanager
async def connect(server: Server) -> AsyncIterator[Client]:
    """A connected client; guest with password guest unless the URL names a user."""
    default_port = DEFAULT_PORT if server.tls is None else DEFAULT_TLS_PORT
    user = server.username or DEFAULT_USER
    # A certificate says who the client is, unless the URL does.
    shows_certificate = (
        server.tls is not None and bool(server.tls.certificate) and server.password is None
    )
    vhost = server.path or "/"
    try:
        connection = await aio_pika.connect(
            host=server.host,
            port=default_port if server.port is None else server.port,
            login=user,
            password=DEFAULT_USER if server.password is None else server.password,
            virtualhost=vhost,
            auth="external" if shows_certificate else "plain",
            ssl=server.tls is not None,
            ssl_context=server.tls_context(ALPN),
        )
    except (aio_pika.exceptions.AMQPError, OSError) as error:
        if "Connection.OpenOk" in str(error) and "Connection.Close " in str(error):
            # The library keeps what the server said to itself.
            who = "the owner of the certificate" if shows_certificate else user
            error = OSError(f"the server does not let {who} into vhost {vhost!r}")
        raise server.cannot_connect(default_port, error) from None
    try:
        async with connection:
            yield AmqpClient(connection)
    except (aio_pika.exceptions.AMQPError, OSError) as error:
        raise ClientError(str(error)) from None
