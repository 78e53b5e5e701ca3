"""All protocols over one broker."""

from __future__ import annotations

from typing import Any

import trivium_amqp
from tests.support import amqp, mqtt
from tests.support import native as native_support
from tests.support.server import Server as BaseServer
from trivium.runtime.adapter import Adapter
from trivium.vhost.virtual_host import VirtualHost
from trivium_mqtt.mqtt_adapter import MqttAdapter
from trivium_mqtt.options import MqttOptions
from trivium_native.server.adapter import NativeAdapter
from trivium_native.wire import frames


class Server(BaseServer):
    """A broker that speaks them all; its users have the password ``p``."""

    #: the virtual host in which everything is done
    home = "/"

    @property
    def vhost(self) -> VirtualHost:
        return self.broker.vhosts[self.home]

    def make_adapters(self) -> list[Adapter]:
        return [MqttAdapter(MqttOptions()), trivium_amqp.adapter(None), NativeAdapter(None)]

    def password(self, user: str) -> bytes:
        return b"p"

    def mqtt(self, user: str, client_id: str = "c", version: int = 5, **fields: Any) -> mqtt.Client:
        client = mqtt.Client(self)
        username = user if self.home == "/" else f"{self.home}:{user}"
        client.open(client_id, version, username=username, password=self.password(user), **fields)
        return client

    def amqp(self, user: str) -> amqp.Client:
        return amqp.Client(self).handshake(user.encode(), self.password(user), self.home)

    def native(self, user: str) -> native_support.Client:
        client = native_support.Client(self).greet()
        fields = {"username": user, "password": self.password(user), "vhost": self.home}
        assert client.send(frames.AUTH, 2, fields) == [(frames.OK, 2, b"\x80")]
        return client

    def administrator(self) -> native_support.Client:
        client = native_support.Client(self).greet()
        fields = {"username": "guest", "password": b"guest"}
        assert client.send(frames.AUTH, 2, fields) == [(frames.OK, 2, b"\x80")]
        return client

    def adapter_of(self, protocol: str) -> Adapter:
        return self.broker.adapters[protocol]
