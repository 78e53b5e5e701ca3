"""The delivery modes as a native publisher and subscriber meet them, set at each level."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.support.native import Client, Server, deliveries, entry, publish
from tests.support.simulated import Host
from trivium.config import Config, DeliveryConfig, Listen
from trivium.routing.exchanges import Binding
from trivium.vhost.policies import Policy
from trivium_native.wire import frames

LEVELS = ["broker", "policy", "queue", "message"]


def headers(*pairs: tuple[str, object]) -> bytes:
    """Properties with nothing but headers."""
    packed: bytes = msgpack.packb({14: [list(pair) for pair in pairs]})
    return packed


class Setting:
    """A durable queue bound to ``k`` whose messages have a mode by one of the levels."""

    def __init__(self, level: str, mode: str) -> None:
        self.host = Host()
        default: Any = mode if level == "broker" else "as-published"
        self.config = Config(listen={"native": Listen(0)}, delivery=DeliveryConfig(mode=default))
        self.server = Server(self.host.storage, self.config)
        vhost = self.server.vhost
        if level == "policy":
            vhost.set_policy(Policy("p", "q", {"delivery": mode}))
        arguments: dict[str, object] = {"x-delivery": mode} if level == "queue" else {}
        self.queue = vhost.declare_queue("q", durable=True, arguments=arguments)
        vhost.bind(vhost.exchange("amq.topic"), Binding(self.queue, b"k"))
        self.sync()
        self.sender = self.server.open()
        self.receiver = self.server.open()
        self.properties = headers(("x-delivery", mode)) if level == "message" else b""

    def sync(self) -> None:
        self.server.settle()
        self.host.commit()
        self.server.settle()

    def subscribe(self) -> None:
        fields = {"subscription": 1, "mode": "queue", "queue": "q", "credit": 9}
        assert self.receiver.send(frames.SUBSCRIBE, 3, fields)[0] == (frames.OK, 3, b"\x80")

    def publish(self, flags: int) -> list[int]:
        """Publish with a mode field that says something else; the answers before the disk's."""
        body = publish(entry(b"m", flags=flags, properties=self.properties))
        return [kind for kind, _, _ in self.sender.send(frames.PUBLISH, 5, body)]

    def confirmed(self) -> list[int]:
        return [kind for kind, _, _ in self.sender.take()]

    def after_crash(self) -> int:
        host = Host(self.host.disk.power_cut(None))
        return len(Server(host.storage, self.config).vhost.queues["q"])


@pytest.mark.parametrize("level", LEVELS)
def test_at_most_once(level: str) -> None:
    setting = Setting(level, "at-most-once")
    assert setting.publish(1 | 4) == [frames.CONFIRM]
    setting.subscribe()
    assert setting.queue.unsettled == 0
    assert len(setting.queue) == 0
    setting.receiver.lose()
    setting.publish(1 | 4)
    setting.sync()
    assert setting.after_crash() == 0


@pytest.mark.parametrize("level", LEVELS)
def test_at_least_once(level: str) -> None:
    setting = Setting(level, "at-least-once")
    assert setting.publish(0) == []
    setting.subscribe()
    assert setting.queue.unsettled == 1
    setting.sync()
    assert setting.confirmed() == [frames.CONFIRM]
    assert setting.after_crash() == 1


@pytest.mark.parametrize("level", LEVELS)
def test_exactly_once(level: str) -> None:
    setting = Setting(level, "exactly-once")
    setting.subscribe()
    assert setting.publish(0) == []
    assert setting.receiver.take() == [], "the publisher might have to send it again"
    setting.sync()
    assert setting.confirmed() == [frames.CONFIRM]
    assert [one.payload for one in deliveries(setting.receiver.take())] == [b"m"]
    assert setting.after_crash() == 1


@pytest.mark.parametrize(("flags", "kept"), [(0, 0), (1, 0), (1 | 4, 1), (2 | 4, 1)])
def test_mode_and_persistence_hold_where_no_level_says_otherwise(flags: int, kept: int) -> None:
    setting = Setting("none", "")
    setting.publish(flags)
    setting.sync()
    assert setting.after_crash() == kept


def test_the_mode_reaches_the_subscriber() -> None:
    setting = Setting("message", "exactly-once")
    setting.subscribe()
    setting.publish(0)
    setting.sync()
    (delivered,) = deliveries(setting.receiver.take())
    assert (delivered.message_flags, delivered.properties) == (2 | 4, setting.properties)


@pytest.mark.parametrize("value", ["twice", 1, True, b"at-most-once"])
def test_a_word_that_is_no_mode_is_an_invalid_argument(value: object) -> None:
    server = Server()
    client: Client = server.open()
    body = publish(entry(properties=headers(("x-delivery", value))))
    ((kind, _, answer),) = client.send(frames.PUBLISH, 5, body)
    assert (kind, msgpack.unpackb(answer)[0]) == (frames.ERROR, 300)
