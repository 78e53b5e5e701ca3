"""The fixtures for tests of other programs, with the clients that such programs have."""

from __future__ import annotations

import asyncio
import json
import queue
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import aio_pika
import aiomqtt
import pika
import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook
from celery import Celery
from celery.contrib.testing.worker import start_worker
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from trivium import pytest_plugin
from trivium_native import connect as connect_async
from trivium_native import errors
from trivium_native.sync import connect
from trivium_native.values import Publication

if TYPE_CHECKING:
    from trivium.testing import SharedBroker

PATIENCE = 20


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def paho_client(url: str) -> tuple[paho.Client, queue.Queue[tuple[str, bytes]]]:
    """A client that has subscribed to everything, and what it gets."""
    got: queue.Queue[tuple[str, bytes]] = queue.Queue()
    subscribed: queue.Queue[int] = queue.Queue()
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda _, __, message: got.put((message.topic, bytes(message.payload)))
    client.on_connect = lambda client, *_: client.subscribe("#", 1)
    client.on_subscribe = lambda *_: subscribed.put(1)
    client.connect(*address(url))
    client.loop_start()
    subscribed.get(timeout=PATIENCE)
    return client, got


# Clients


def test_paho(mqtt_url: str) -> None:
    client, got = paho_client(mqtt_url)
    client.publish("a/b", b"1", 1)
    assert got.get(timeout=PATIENCE) == ("a/b", b"1")
    client.disconnect()
    client.loop_stop()


async def test_aiomqtt(mqtt_url: str) -> None:
    host, port = address(mqtt_url)
    async with asyncio.timeout(PATIENCE), aiomqtt.Client(host, port) as client:
        await client.subscribe("a/#")
        await client.publish("a/b", b"1", 1)
        assert (await anext(client.messages)).payload == b"1"


def test_pika(amqp_url: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"1")
    method, _, body = next(channel.consume("q", inactivity_timeout=PATIENCE))
    assert body == b"1"
    assert method is not None
    assert method.delivery_tag is not None
    channel.basic_ack(method.delivery_tag)
    connection.close()


async def test_aio_pika(amqp_url: str) -> None:
    async with asyncio.timeout(PATIENCE), await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        declared = await channel.declare_queue("q")
        await channel.default_exchange.publish(aio_pika.Message(b"1"), "q")
        found = await declared.get(timeout=PATIENCE)
        assert found.body == b"1"
        await found.ack()


async def test_native(trivium_url: str) -> None:
    async with asyncio.timeout(PATIENCE), connect_async(trivium_url) as client:
        await client.declare_queue("q")
        await client.publish(b"1", exchange="", routing_key="q")
        async with client.consume("q") as deliveries:
            assert (await anext(deliveries)).payload == b"1"


def test_a_test_looks_on_without_a_socket(
    trivium_broker: SharedBroker, trivium_vhost: str, mqtt_url: str, amqp_url: str
) -> None:
    """All roads of a test lead into the same virtual host."""
    with trivium_broker.client(vhost=trivium_vhost) as client:
        client.declare_queue("q")
        client.bind("queue", "q", pattern="sensors.#")
        device, got = paho_client(mqtt_url)
        device.publish("sensors/kitchen", b"21.5", 1).wait_for_publish(PATIENCE)
        assert got.get(timeout=PATIENCE) == ("sensors/kitchen", b"21.5")
        connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
        _, _, body = connection.channel().basic_get("q", auto_ack=True)
        assert body == b"21.5"
        connection.close()
        device.disconnect()
        device.loop_stop()
        assert client.declare_queue("q").messages == 0


# Isolation


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_begins_with_nothing(number: int, mqtt_url: str, trivium_url: str) -> None:
    with connect(trivium_url) as client:
        assert client.declare_queue("q").messages == 0
        client.publish_batch(
            [
                Publication(payload=b"1", exchange="", routing_key="q"),
                Publication(payload=b"kept", routing_key="topic", retain=True),
            ]
        )
    device, got = paho_client(mqtt_url)
    assert got.get(timeout=PATIENCE) == ("topic", b"kept")
    assert got.empty()
    device.disconnect()
    device.loop_stop()


def test_who_has_the_port_alone_is_there_as_well(amqp_url: str) -> None:
    host, port = address(amqp_url)
    mine = pika.BlockingConnection(pika.URLParameters(amqp_url))
    mine.channel().queue_declare("q")
    other = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    other.channel().queue_declare("q", passive=True)
    other.close()
    mine.close()


def test_what_a_test_leaves_behind_is_ended(trivium_broker: SharedBroker) -> None:
    vhost = trivium_broker.make_vhost()
    place = trivium_broker.listen("native", vhost)
    with connect(f"trivium://{place}") as client:
        client.declare_queue("q")
        trivium_broker.delete_vhost(vhost)
        with pytest.raises((errors.NotFound, errors.ConnectionFailed)):
            client.purge("q")
        with pytest.raises(errors.ConnectionFailed):
            connect(f"trivium://{place}")
    assert place not in trivium_broker.listeners.values()


def test_a_test_may_delete_its_virtual_host_itself(trivium_broker: SharedBroker) -> None:
    vhost = trivium_broker.make_vhost()
    trivium_broker.listen("native", vhost)

    async def delete() -> None:
        trivium_broker.broker.virtual_hosts.delete(vhost, lambda: None)

    trivium_broker.call(delete())
    trivium_broker.delete_vhost(vhost)
    assert trivium_broker.is_running


def test_several_tests_can_share_a_listener(trivium_broker: SharedBroker) -> None:
    place = trivium_broker.listen("native")
    assert trivium_broker.listen("native") == place
    with connect(f"trivium://{place}") as client, trivium_broker.client() as inside:
        inside.declare_queue("shared")
        client.purge("shared")
        inside.delete("queue", "shared")


# Other runs


def run_pytest(folder: Path, text: str, *arguments: str, conftest: str = "") -> dict[str, Any]:
    """Run tests in a process of their own; what they have put into ``found.json``."""
    (folder / "test_it.py").write_text(text)
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        # Plugins that take seconds to import are not what is tested.
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-p", "no:schemathesis", "-p", "no:hypothesispytest", *arguments),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    file = folder / "found.json"
    return json.loads(file.read_text()) if file.exists() else {}


def test_a_run_without_the_fixtures_pays_nothing(tmp_path: Path) -> None:
    found = run_pytest(
        tmp_path,
        "import json, sys, threading\n"
        "def test_it():\n"
        "    ours = sorted(name for name in sys.modules if name.startswith('trivium'))\n"
        "    threads = [each.name for each in threading.enumerate()]\n"
        "    with open('found.json', 'w') as file:\n"
        "        json.dump({'modules': ours, 'threads': threads}, file)\n",
    )
    # The entry point of pytest is imported, and says what there is.
    assert found["modules"] == ["trivium", "trivium.pytest_plugin"]
    assert "trivium-broker" not in found["threads"]


def test_with_xdist_and_asyncio_in_strict_mode_and_a_configuration(tmp_path: Path) -> None:
    """Each process has a broker of its own."""
    run_pytest(
        tmp_path,
        "import pytest, aio_pika\n"
        "pytestmark = pytest.mark.asyncio\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "async def test_it(number, amqp_url):\n"
        "    url = amqp_url.replace('guest:guest', 'app:secret')\n"
        "    async with await aio_pika.connect(url) as connection:\n"
        "        channel = await connection.channel()\n"
        "        queue = await channel.declare_queue('q')\n"
        "        assert queue.declaration_result.message_count == 0\n"
        "        await channel.default_exchange.publish(aio_pika.Message(b'x'), 'q')\n",
        *("-n", "2"),
        conftest=(
            "import pytest\n"
            "from trivium import Config\n"
            "from trivium.config import EVERYTHING, StorageConfig, UserConfig\n"
            "@pytest.fixture(scope='session')\n"
            "def trivium_config():\n"
            "    user = UserConfig(password='secret', permissions=EVERYTHING)\n"
            "    storage = StorageConfig(mode='memory')\n"
            "    return Config(listen={}, storage=storage, users={'app': user})\n"
        ),
    )


def test_assertions_of_the_broker_are_not_rewritten(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pytest would, by all that a distribution with a plugin has."""
    hook = AssertionRewritingHook(pytestconfig)
    config = SimpleNamespace(pluginmanager=SimpleNamespace(rewrite_hook=hook))
    hook.mark_rewrite("trivium_of_nobody", "of_nobody")
    for name in ("trivium_of_nobody", "of_nobody"):
        (tmp_path / f"{name}.py").write_text("assert True\n")
    monkeypatch.syspath_prepend(tmp_path)
    pytest_plugin.pytest_load_initial_conftests(cast("pytest.Config", config))
    assert hook.find_spec("trivium_of_nobody") is None
    assert hook.find_spec("of_nobody") is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_celery(amqp_url: str) -> None:
    app = Celery("app", broker=amqp_url, backend="rpc://")
    app.conf.broker_heartbeat = 0

    @app.task  # type: ignore[untyped-decorator]
    def double(number: int) -> int:
        return 2 * number

    with start_worker(app, perform_ping_check=False, shutdown_timeout=PATIENCE):
        assert double.delay(4).get(timeout=PATIENCE) == 8
    app.close()
