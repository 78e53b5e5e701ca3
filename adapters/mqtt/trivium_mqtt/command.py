"""`mqtt://` for `trivium pub` and `trivium sub`, by the aiomqtt client (MQTT 3.1.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiomqtt

from trivium.cli.clients import (
    Client,
    ClientError,
    Handler,
    Publication,
    Server,
    Subscription,
    UsageError,
)

DEFAULT_PORT = 1883
DEFAULT_TLS_PORT = 8883
ALPN = "mqtt"
#: SUBACK return code of a refused filter [MQTT-3.9.3-2]
REFUSED = 0x80


class MqttClient:
    """An MQTT client for the command line."""

    def __init__(self, client: aiomqtt.Client) -> None:
        self._client = client

    async def publish(self, publication: Publication, payload: bytes) -> None:
        """Publish and wait: nothing at QoS 0, PUBACK at 1, PUBCOMP at 2."""
        await self._client.publish(
            publication.address, payload, publication.qos, publication.retain
        )

    async def subscribe(
        self, subscription: Subscription, subscribed: Callable[[], None], handle: Handler
    ) -> None:
        """Subscribe to a topic filter."""
        if subscription.is_queue or subscription.offset is not None:
            raise UsageError("mqtt:// has neither --queue nor --from")
        granted = await self._client.subscribe(subscription.address, subscription.qos)
        if granted[0] == REFUSED:
            raise ClientError(f"the server refused the filter {subscription.address!r}")
        subscribed()
        async for message in self._client.messages:
            payload = message.payload if isinstance(message.payload, bytes) else b""
            if not handle(message.topic.value, payload):
                return


@asynccontextmanager
async def connect(server: Server) -> AsyncIterator[Client]:
    """A connected client with a clean session."""
    if server.path:
        raise UsageError("an mqtt:// URL ends after the port")
    default_port = DEFAULT_PORT if server.tls is None else DEFAULT_TLS_PORT
    client = aiomqtt.Client(
        server.host,
        default_port if server.port is None else server.port,
        username=server.username,
        password=server.password,
        protocol=aiomqtt.ProtocolVersion.V311,
        tls_context=server.tls_context(ALPN),
    )
    is_connected = False
    try:
        async with client:
            is_connected = True
            yield MqttClient(client)
    except aiomqtt.MqttError as error:
        if not is_connected:
            raise server.cannot_connect(default_port, error) from None
        raise ClientError(str(error)) from None
    except ValueError as error:
        # paho-mqtt's way to say that a topic or filter is not valid
        raise UsageError(str(error)) from None
