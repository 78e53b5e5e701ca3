"""Tools for RabbitMQ's management API, as they are, and their requests where they are no Python."""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urljoin
from uuid import uuid4

import pika
import pika.exceptions
import pytest

from bench.servers import ServerError, free_port
from interop.brokers import LOOPBACK, TriviumProcess
from interop.management import Api, ManagedRabbitMq
from interop.mqtt import eventually

#: Debian's package has it; it is of no other.
RABBITMQADMIN: Final = Path("/usr/bin/rabbitmqadmin")


@pytest.fixture(scope="module")
def trivium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TriviumProcess]:
    process = TriviumProcess(tmp_path_factory.mktemp("broker"), protocols=("amqp", "http", "mqtt"))
    process.start()
    yield process
    process.stop()


@pytest.fixture
def api(trivium: TriviumProcess) -> Api:
    return Api(trivium.ports["http"])


@pytest.fixture
def name() -> str:
    return f"n{uuid4().hex}"


@pytest.fixture
def connection(trivium: TriviumProcess) -> Iterator[pika.BlockingConnection]:
    parameters = pika.ConnectionParameters(
        LOOPBACK, trivium.ports["amqp"], client_properties={"connection_name": "here"}
    )
    made = pika.BlockingConnection(parameters)
    yield made
    if made.is_open:
        made.close()


# rabbitmqadmin, the one in Python


class Admin:
    """Runs rabbitmqadmin against a broker."""

    def __init__(self, port: int) -> None:
        self._port = port

    def run(self, *words: str, status: int = 0) -> str:
        done = subprocess.run(
            [str(RABBITMQADMIN), "-P", str(self._port), "-f", "raw_json", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return done.stdout

    def rows(self, *words: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run(*words))
        return rows


@pytest.fixture
def admin(trivium: TriviumProcess) -> Admin:
    if not RABBITMQADMIN.exists():
        pytest.skip("rabbitmqadmin is not installed (rabbitmq-server)")
    return Admin(trivium.ports["http"])


def test_rabbitmqadmin_declares_lists_and_deletes(admin: Admin, name: str) -> None:
    admin.run("declare", "vhost", f"name={name}")
    admin.run("declare", "user", f"name={name}", "password=secret", "tags=management")
    admin.run(
        *("declare", "permission", f"vhost={name}", f"user={name}"),
        *("configure=.*", "write=.*", "read=.*"),
    )
    # Who is asking has it by the configuration.
    admin.run(
        *("declare", "permission", f"vhost={name}", "user=guest"),
        *("configure=.*", "write=.*", "read=.*"),
    )
    admin.run("declare", "policy", f"name={name}", "pattern=^q", 'definition={"max-length":7}')
    admin.run("declare", "exchange", f"name={name}", "type=topic")
    admin.run("declare", "queue", f"name={name}", "durable=true", 'arguments={"x-max-priority":3}')
    admin.run("declare", "queue", f"name=s{name}", "queue_type=stream", "durable=true")
    admin.run(
        *("declare", "binding", f"source={name}", f"destination={name}"),
        *("destination_type=queue", "routing_key=a.*"),
    )
    assert name in [row["name"] for row in admin.rows("list", "vhosts")]
    assert name in [row["name"] for row in admin.rows("list", "users")]
    assert name in [row["user"] for row in admin.rows("list", "permissions")]
    assert name in [row["name"] for row in admin.rows("list", "policies")]
    assert name in [row["name"] for row in admin.rows("list", "exchanges")]
    (queue,) = [row for row in admin.rows("list", "queues") if row["name"] == name]
    assert (queue["type"], queue["arguments"], queue["messages"]) == (
        "classic",
        {"x-max-priority": 3},
        0,
    )
    assert admin.run("-f", "tsv", "list", "exchanges").splitlines()[1:]
    bound = [row for row in admin.rows("list", "bindings") if row["source"] == name]
    assert [(row["destination"], row["routing_key"]) for row in bound] == [(name, "a.*")]
    admin.run(
        *("delete", "binding", f"source={name}", "destination_type=queue", f"destination={name}"),
        f"properties_key={bound[0]['properties_key']}",
    )
    for kind in ("queue", "exchange", "policy", "user", "vhost"):
        admin.run("delete", kind, f"name={name}")
    admin.run("delete", "queue", f"name=s{name}")
    admin.run("delete", "queue", f"name={name}", status=1)


def test_rabbitmqadmin_publishes_gets_and_purges(admin: Admin, name: str) -> None:
    admin.run("declare", "queue", f"name={name}", "durable=true")
    admin.run("publish", "exchange=amq.default", f"routing_key={name}", "payload=hello")
    admin.run(
        *("publish", "exchange=amq.default", f"routing_key={name}", "payload=there"),
        'properties={"delivery_mode":2,"headers":{"a":1}}',
    )
    first, second = admin.rows("get", f"queue={name}", "count=2", "ackmode=ack_requeue_true")
    assert (first["payload"], second["payload"]) == ("hello", "there")
    assert second["properties"] == {"delivery_mode": 2, "headers": {"a": 1}}
    (first,) = admin.rows("get", f"queue={name}", "ackmode=ack_requeue_false")
    assert (first["payload"], first["redelivered"]) == ("hello", True)
    admin.run("purge", "queue", f"name={name}")
    assert admin.rows("get", f"queue={name}") == []
    admin.run("delete", "queue", f"name={name}")


def test_rabbitmqadmin_sees_and_closes_connections(
    admin: Admin, connection: pika.BlockingConnection, name: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume(name, lambda *_: None, consumer_tag="tag")
    (row,) = admin.rows("list", "connections")
    assert (row["user"], row["protocol"], row["channels"]) == ("guest", "AMQP 0-9-1", 1)
    assert row["client_properties"]["connection_name"] == "here"
    (of_channel,) = admin.rows("list", "channels")
    assert (of_channel["name"], of_channel["consumer_count"]) == (f"{row['name']} (1)", 1)
    (consumer,) = admin.rows("list", "consumers")
    assert (consumer["queue"]["name"], consumer["consumer_tag"]) == (name, "tag")
    assert consumer["channel_details"]["connection_name"] == row["name"]
    assert admin.rows("show", "overview")[0]["object_totals"]["connections"] == 1
    assert admin.rows("list", "nodes")[0]["running"] is True
    admin.run("close", "connection", f"name={row['name']}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        channel.start_consuming()
    assert closed.value.reply_code == 320
    assert "Closed via management plugin" in closed.value.reply_text


def test_rabbitmqadmin_shows_mqtt_clients_in_a_table(
    admin: Admin, trivium: TriviumProcess, name: str
) -> None:
    """It cannot show null, which RabbitMQ says of AMQP without TLS, and leaves out for MQTT."""
    body = b"\x00\x04MQTT\x04\x02\x00\x3c" + len(name).to_bytes(2, "big") + name.encode()
    with socket.create_connection((LOOPBACK, trivium.ports["mqtt"])) as client:
        client.sendall(bytes((0x10, len(body))) + body)
        assert client.recv(4) == b"\x20\x02\x00\x00"
        assert name in admin.run("-f", "table", "-d", "3", "list", "connections")
    eventually(lambda: admin.rows("list", "connections") == [], "the client to leave", 30)


def test_rabbitmqadmin_exports_and_imports(admin: Admin, name: str, tmp_path: Path) -> None:
    admin.run("declare", "queue", f"name={name}", "durable=true")
    file = tmp_path / "definitions.json"
    admin.run("export", str(file))
    assert name in [queue["name"] for queue in json.loads(file.read_text())["queues"]]
    admin.run("delete", "queue", f"name={name}")
    admin.run("import", str(file))
    assert name in [row["name"] for row in admin.rows("list", "queues")]
    admin.run("delete", "queue", f"name={name}")


# pyrabbit2


def test_pyrabbit2(trivium: TriviumProcess, name: str) -> None:
    from pyrabbit2.api import Client

    client = Client(f"{LOOPBACK}:{trivium.ports['http']}", "guest", "guest")
    assert client.is_alive()
    assert client.get_whoami()["name"] == "guest"
    assert client.get_overview()["rabbitmq_version"]
    client.create_vhost(name)
    assert name in client.get_vhost_names()
    client.delete_vhost(name)
    client.create_queue("/", name, durable=True)
    client.create_exchange("/", name, "topic")
    client.create_binding("/", name, name, "a.#")
    assert client.publish("/", name, "a.b", "hello") is True
    assert client.get_queue_depth("/", name) == 1
    (message,) = client.get_messages("/", name, count=1, requeue=False)
    assert message["payload"] == "hello"
    assert len(client.get_queue_bindings("/", name)) == 2
    client.purge_queue("/", name)
    client.delete_queue("/", name)
    client.delete_exchange("/", name)
    client.create_user(name, "secret")
    client.set_vhost_permissions("/", name, ".*", ".*", ".*")
    assert client.get_permission("/", name)["read"] == ".*"
    client.delete_user(name)
    assert client.get_connections() == []
    assert client.get_channels() == []
    assert [node["running"] for node in client.get_nodes()] == [True]


# What other tools ask, and what they read of the answers


def test_flower_lists_the_queues_of_a_virtual_host(api: Api, name: str) -> None:
    """``flower.utils.broker.RabbitMQ.queues``: a URL joined to that of the API."""
    api.put(f"queues/%2F/{name}")
    url = urljoin(api.url, "queues/" + quote("/", ""))
    (found,) = [each for each in api.get(url.removeprefix(api.url)) if each["name"] == name]
    for key in ("messages", "messages_ready", "messages_unacknowledged", "consumers"):
        assert found[key] == 0
    assert found["state"] == "running"
    api.ask("DELETE", f"queues/%2F/{name}")


def test_flower_shows_queues_and_their_messages(
    api: Api, trivium: TriviumProcess, tmp_path: Path
) -> None:
    """The program itself, whose page of the broker asks both ports: for Celery's own queue, where
    there are no workers that have others."""
    name = "celery"
    pytest.importorskip("flower", reason="flower is not installed (extra dev)")
    api.put(f"queues/%2F/{name}", {"durable": True})
    body = {"routing_key": name, "payload": "x", "payload_encoding": "string", "properties": {}}
    assert api.ask("POST", "exchanges/%2F/amq.default/publish", body) == (200, {"routed": True})
    port = free_port()
    log = tmp_path / "flower.log"
    with log.open("wb") as output:
        flower = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery"),
                f"--broker=amqp://guest:guest@{LOOPBACK}:{trivium.ports['amqp']}//",
                *("flower", f"--address={LOOPBACK}", f"--port={port}"),
                f"--broker-api={api.url.replace('//', '//guest:guest@', 1)}",
            ],
            stdout=output,
            stderr=output,
            cwd=tmp_path,
        )
    try:
        eventually(lambda: b"Visit me" in log.read_bytes(), "flower", 60)
        url = f"http://{LOOPBACK}:{port}/broker"
        page = urllib.request.urlopen(url, timeout=60).read().decode()
        (row,) = re.findall(rf'<tr id="{name}">(.*?)</tr>', page, re.DOTALL)
        # Messages, unacknowledged, ready, consumers.
        assert re.findall(r"<td[^>]*>(\d+)</td>", row) == ["1", "0", "1", "0"]
    finally:
        flower.terminate()
        flower.wait(30)
    api.ask("DELETE", f"queues/%2F/{name}")


def test_keda_reads_lengths_and_rates(api: Api, name: str) -> None:
    """``rabbitmq_scaler.go``: one queue by its name, or a page of those that match."""
    api.put(f"queues/%2F/{name}")
    body = {"routing_key": name, "payload": "x", "payload_encoding": "string", "properties": {}}
    assert api.ask("POST", "exchanges/%2F/amq.default/publish", body) == (200, {"routed": True})
    one = api.get(f"queues/%2F/{name}")
    pattern = quote(f"^{name}$", safe="")
    page = api.get(
        f"queues/%2F?page=1&use_regex=true&pagination=false&name={pattern}&page_size=100"
    )
    assert page["page_count"] == 1
    for found in (one, *page["items"]):
        assert (found["name"], found["messages"], found["messages_ready"]) == (name, 1, 1)
        assert found["messages_unacknowledged"] == 0
        for key in ("publish_details", "deliver_get_details"):
            assert isinstance(found["message_stats"][key]["rate"], float)
    api.ask("DELETE", f"queues/%2F/{name}")


def test_rabbitmq_exporter_finds_its_figures(api: Api, name: str) -> None:
    """``rabbitmq_exporter``: lists without an order (``?sort=``), numbers by their paths."""
    api.put(f"queues/%2F/{name}", {"arguments": {"x-max-length": 9}})
    overview = api.get("overview?sort=")
    for key in ("node", "erlang_version", "rabbitmq_version", "cluster_name"):
        assert isinstance(overview[key], str)
    for key in ("channels", "connections", "consumers", "queues", "exchanges"):
        assert isinstance(overview["object_totals"][key], int)
    for key in ("messages", "messages_ready", "messages_unacknowledged"):
        assert isinstance(overview["queue_totals"][key], int)
    (queue,) = [each for each in api.get("queues?sort=") if each["name"] == name]
    for key in ("vhost", "state", "node"):
        assert isinstance(queue[key], str)
    assert queue["arguments"] == {"x-max-length": 9}
    for key in ("messages", "messages_ready", "message_bytes_ready", "consumers"):
        assert queue[key] == 0
    (node,) = api.get("nodes?sort=")
    for key in (
        *("fd_used", "fd_total", "sockets_used", "sockets_total", "mem_used", "mem_limit"),
        *("disk_free", "disk_free_limit", "uptime", "run_queue"),
    ):
        assert isinstance(node[key], int), key
    for key in ("running", "mem_alarm", "disk_free_alarm"):
        assert isinstance(node[key], bool), key
    assert node["partitions"] == []
    assert api.get("exchanges?sort=") != []
    assert api.get("connections?sort=") == []
    assert api.get("aliveness-test/%2F") == {"status": "ok"}
    api.ask("DELETE", f"queues/%2F/{name}")


#: What the client of rabbitmqadmin v2 takes no answer without (its Rust types), by path.
NEEDED: Final[dict[str, dict[str, Any]]] = {
    "overview": {
        **dict.fromkeys(("cluster_name", "node", "erlang_full_version", "erlang_version"), str),
        **dict.fromkeys(("rabbitmq_version", "product_name", "product_version"), str),
        "statistics_db_event_queue": int,
        **dict.fromkeys(("churn_rates", "queue_totals", "object_totals", "message_stats"), dict),
        "listeners": list,
    },
    "nodes": {
        **dict.fromkeys(("uptime", "run_queue", "processors", "fd_total", "proc_total"), int),
        **dict.fromkeys(("mem_limit", "disk_free_limit"), int),
        **dict.fromkeys(("mem_alarm", "disk_free_alarm", "being_drained"), bool),
        **dict.fromkeys(("name", "os_pid", "rates_mode"), str),
        "enabled_plugins": list,
    },
    "connections": {
        **dict.fromkeys(("name", "node", "protocol", "user", "state"), str),
        **dict.fromkeys(("connected_at", "channels", "peer_port"), int),
        "client_properties": dict,
    },
    "channels": {
        **dict.fromkeys(("name", "vhost", "state"), str),
        **dict.fromkeys(("number", "consumer_count", "prefetch_count"), int),
        **dict.fromkeys(("messages_unacknowledged", "messages_unconfirmed"), int),
        "confirm": bool,
        "connection_details": dict,
    },
    "consumers": {
        **dict.fromkeys(("active", "ack_required", "exclusive"), bool),
        **dict.fromkeys(("prefetch_count", "consumer_timeout"), int),
        **dict.fromkeys(("arguments", "queue", "channel_details"), dict),
        "consumer_tag": str,
    },
    "queues": {
        **dict.fromkeys(("name", "vhost", "type", "node", "state"), str),
        **dict.fromkeys(("durable", "auto_delete", "exclusive"), bool),
        "arguments": dict,
    },
    "exchanges": {
        **dict.fromkeys(("name", "vhost", "type"), str),
        **dict.fromkeys(("durable", "auto_delete"), bool),
        "arguments": dict,
    },
    "bindings": {
        **dict.fromkeys(("source", "vhost", "destination", "destination_type"), str),
        **dict.fromkeys(("routing_key", "properties_key"), str),
        "arguments": dict,
    },
    "users": {"name": str, "tags": list, "password_hash": str},
    "vhosts": {"name": str, "tags": list, "description": str, "metadata": dict},
    "permissions": dict.fromkeys(("user", "vhost", "configure", "read", "write"), str),
    "health/checks/alarms": {"status": str},
}


def test_rabbitmqadmin_v2_can_read_the_answers(
    api: Api, connection: pika.BlockingConnection, name: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(name)
    channel.basic_consume(name, lambda *_: None)
    for path, needed in NEEDED.items():
        found = api.get(path)
        for one in found if isinstance(found, list) else [found]:
            for key, kind in needed.items():
                assert type(one[key]) is kind, (path, key, one.get(key))
    for path in (
        *("feature-flags", "deprecated-features/used", "vhost-limits", "user-limits"),
        *("policies", "operator-policies", "parameters", "global-parameters"),
    ):
        assert isinstance(api.get(path), list)
    (node,) = api.get("nodes")
    assert api.get(f"nodes/{node['name']}/memory") == {"memory": "not_available"}
    channel.queue_delete(name)


# RabbitMQ itself


@pytest.fixture(scope="module")
def one_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedRabbitMq]:
    server = ManagedRabbitMq(tmp_path_factory.mktemp("rabbitmq"))
    try:
        server.version()
    except ServerError as error:
        pytest.skip(str(error))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def rabbitmq(one_rabbitmq: ManagedRabbitMq) -> ManagedRabbitMq:
    """Without what tests before have made."""
    api = one_rabbitmq.api
    for vhost in api.get("vhosts"):
        if vhost["name"] != "/":
            api.ask("DELETE", f"vhosts/{quote(vhost['name'], safe='')}")
    for kind in ("queues", "exchanges", "policies", "operator-policies"):
        for found in api.get(f"{kind}/%2F"):
            if found["name"] and not found["name"].startswith("amq."):
                api.ask("DELETE", f"{kind}/%2F/{quote(found['name'], safe='')}")
    for user in api.get("users"):
        if user["name"] != "guest":
            api.ask("DELETE", f"users/{user['name']}")
    return one_rabbitmq


def populate(api: Api, amqp_port: int) -> pika.BlockingConnection:
    """Make one of each thing; the connection of a consumer."""
    api.put("vhosts/other", {"description": "d", "tags": "a,b"})
    api.put("users/ann", {"password": "secret", "tags": "management"})
    api.put("permissions/%2F/ann", {"configure": "c", "write": "w", "read": "r"})
    topic = {"exchange": "amq.topic", "write": "w", "read": "r"}
    api.put("topic-permissions/%2F/ann", topic)
    api.put("user-limits/ann/max-channels", {"value": 9})
    api.put("vhost-limits/other/max-connections", {"value": 9})
    api.put("global-parameters/g", {"value": {"a": [1]}})
    policy = {"pattern": "^q", "definition": {"max-length": 50}, "apply-to": "queues"}
    api.put("policies/%2F/p", policy)
    bound = {"pattern": "^q", "definition": {"max-length": 40}, "apply-to": "queues"}
    api.put("operator-policies/%2F/o", bound)
    api.put("exchanges/%2F/ex", {"type": "topic", "durable": True})
    api.put("exchanges/%2F/he", {"type": "headers", "durable": True})
    api.put("queues/%2F/q", {"durable": True, "arguments": {"x-max-priority": 3}})
    api.put("queues/%2F/qq", {"durable": True, "arguments": {"x-queue-type": "quorum"}})
    api.put("queues/%2F/st", {"durable": True, "arguments": {"x-queue-type": "stream"}})
    api.ask("POST", "bindings/%2F/e/ex/q/q", {"routing_key": "a.*"})
    headers = {"x-match": "any", "a": 1, "b": "x"}
    api.ask("POST", "bindings/%2F/e/he/q/qq", {"routing_key": "", "arguments": headers})
    api.ask("POST", "bindings/%2F/e/ex/e/he", {"routing_key": "#"})
    connection = pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("ex", "a.b", b"x")
    channel.basic_consume("q", lambda *_: None, consumer_tag="tag")
    connection.process_data_events(0)
    return connection


def _trace(api: Api, amqp_port: int) -> list[tuple[str, bytes, dict[str, Any]]]:
    """What the firehose says of some messages, without what differs from one run to another."""
    api.put("vhosts/%2F", {"tracing": True})
    assert api.get("vhosts/%2F")["tracing"] is True
    connection = pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, amqp_port))
    own, channel = connection.channel(), connection.channel()
    for queue in ("trace", "traced", "dead"):
        own.queue_delete(queue)
    own.queue_declare("trace")
    own.queue_bind("trace", "amq.rabbitmq.trace", "#")
    channel.queue_declare("traced", arguments={"x-dead-letter-exchange": "amq.fanout"})
    channel.queue_bind("traced", "amq.topic", "a.b")
    channel.queue_declare("dead")
    channel.queue_bind("dead", "amq.fanout", "")
    properties = pika.BasicProperties(
        content_type="t/p",
        content_encoding="ce",
        headers={"h": 1, "CC": ["x.y"]},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="rt",
        expiration="100000",
        message_id="m",
        timestamp=5,
        type="ty",
        user_id="guest",
        app_id="app",
    )
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "a.b", b"body", properties)
    channel.basic_publish("", "traced", b"plain")
    channel.basic_publish("amq.topic", "nobody", b"lost")
    for requeue in (True, False):
        taken, _, _ = channel.basic_get("traced")
        assert taken is not None
        channel.basic_nack(taken.delivery_tag or 0, requeue=requeue)
    for queue in ("traced", "dead"):
        for _ in channel.consume(queue, auto_ack=True):
            channel.cancel()
            break
    found: list[tuple[str, bytes, dict[str, Any]]] = []
    while len(found) < 7:
        for method, shown, body in own.consume("trace", auto_ack=True):
            headers: dict[str, Any] = dict(shown.headers or {})
            assert headers.pop("node")
            assert " -> " in headers.pop("connection")
            for death in headers["properties"].get("headers", {}).get("x-death", ()):
                del death["time"]
            found.append((str(method.routing_key), body, headers))
            if len(found) == 7:
                own.cancel()
                break
    for queue in ("trace", "traced", "dead"):
        own.queue_delete(queue)
    connection.close()
    api.put("vhosts/%2F", {"tracing": False})
    return sorted(found, key=lambda each: (each[0], each[1], each[2].get("redelivered", 0)))


def test_the_firehose_says_what_rabbitmqs_says(
    api: Api, trivium: TriviumProcess, rabbitmq: ManagedRabbitMq
) -> None:
    theirs = _trace(rabbitmq.api, rabbitmq.addresses["amqp"].port)
    ours = _trace(api, trivium.ports["amqp"])
    for own, other in zip(ours, theirs, strict=True):
        # Versions since have these too.
        for headers in (own[2]["properties"].get("headers", {}),):
            for name in ("x-last-death-exchange", "x-last-death-queue", "x-last-death-reason"):
                if name not in other[2]["properties"].get("headers", {}):
                    headers.pop(name, None)
        assert own == other


#: What both are asked.
PATHS: Final = (
    *("overview", "whoami", "nodes", "vhosts", "users", "users/ann", "permissions"),
    *("topic-permissions", "user-limits", "vhost-limits", "global-parameters/g", "policies"),
    *("operator-policies", "operator-policies/%2F/o", "parameters/operator_policy/%2F/o"),
    *("parameters", "exchanges", "exchanges/%2F/ex", "queues", "queues/%2F/q", "bindings"),
    *("bindings/%2F/e/ex/q/q", "connections", "channels", "consumers", "definitions"),
    *("definitions/%2F", "cluster-name", "aliveness-test/%2F", "health/checks/alarms"),
    *("health/checks/virtual-hosts", "queues?page=1&page_size=2", "auth", "extensions"),
    *("health/checks/port-listener/1", "queues/%2F/no", "users/ann/permissions"),
    *("vhosts/%2F", "queues/%2F", "queues/%2F/qq", "queues/%2F/st", "consumers/%2F"),
)
#: What is asked about the connection that there is.
NAMED: Final = ("connections/{name}", "connections/{name}/channels", "channels/{name}%20%281%29")
#: Where both say the same, whatever it is.
COLUMNS: Final = (
    # The policy of a stream comes late there.
    *("queues/%2F/q?columns=name,policy,nothing", "queues/%2F/st?columns=name"),
    *("connections?columns=ssl_cipher,ssl", "vhosts?columns=name,tracing", "users?columns=name"),
    *("queues/%2F/st?columns=effective_policy_definition.max-length", "whoami?columns=name"),
)
#: Of what only its own machinery has: Erlang's processes and memory, Mnesia, Raft, files of its
#: message store and queue index, messages that are in memory or not, its web server.
_OWN: Final = (
    *("garbage_collection", "reductions", "memory", "context_switches", "gc_bytes_reclaimed"),
    *("gc_num", "metrics_gc_queue_length", "mnesia_disk_tx_count", "mnesia_ram_tx_count"),
    *("msg_store_read_count", "msg_store_write_count", "queue_index_read_count"),
    *("queue_index_write_count", "ra_open_file_metrics", "pending_raft_commands", "open_files"),
    *("backing_queue_status", "recoverable_slaves", "readers", "cowboy_opts", "ssl_opts"),
    *("message_bytes_paged_out", "message_bytes_ram", "messages_paged_out", "messages_ram"),
    *("messages_ready_ram", "messages_unacknowledged_ram", "disk_reads", "disk_writes"),
    *("io_read_avg_time", "io_read_bytes", "io_read_count", "io_reopen_count", "io_seek_count"),
    *("io_seek_avg_time", "io_sync_avg_time", "io_sync_count", "io_write_avg_time"),
    *("io_write_bytes", "io_write_count", "proc_used_details"),
)
#: What of RabbitMQ's fields is not here, by the first part of the path, and why.
ABSENT: Final[dict[str, tuple[str, ...]]] = {
    "overview": (
        *_OWN,
        # Options of sockets are in the configuration; figures are kept for ten minutes alone.
        *("backlog", "exit_on_close", "ip", "linger", "nodelay", "port"),
        *("basic/", "detailed/", "global/"),
    ),
    "nodes": (
        *_OWN,
        # There are none.
        *("config_files/", "log_files/", "enabled_plugins/"),
        # Rates of what the system tells, which nobody looks at between two requests.
        *("disk_free_details", "fd_used_details", "mem_used_details", "sockets_used_details"),
    ),
    "vhosts": (),
    # Who declared it is not kept.
    "exchanges": ("user_who_performed_action",),
    "queues": (
        *_OWN,
        # It is not counted how long consumers are ready for more, nor what is durable of the
        # messages that there are, nor the bytes of those that consumers have.
        *("consumer_capacity", "consumer_utilisation", "messages_persistent"),
        *("message_bytes", "message_bytes_persistent", "message_bytes_unacknowledged"),
        # Messages are not opened for what their publishers say.
        "head_message_timestamp",
        # Dead letters on their way are among the unacknowledged.
        *("messages_dlx", "message_bytes_dlx"),
        # Another name of ``single_active_consumer_tag``, of quorum queues alone.
        "single_active_consumer_ctag",
        # There only while nothing moves.
        "idle_since",
    ),
    "connections": _OWN,
    "channels": (*_OWN, "idle_since"),
    # There are none.
    "extensions": ("extensions/",),
}


def kinds(value: Any, path: str, found: dict[str, set[str]]) -> None:
    """The kinds of values by their paths, of the items of lists together."""
    if isinstance(value, dict):
        found.setdefault(path, set()).add("object")
        for key, item in value.items():
            kinds(item, f"{path}/{key}", found)
    elif isinstance(value, list):
        found.setdefault(path, set()).add("list")
        for item in value:
            kinds(item, path + "/", found)
    else:
        names = {bool: "boolean", int: "number", float: "number", str: "text"}
        found.setdefault(path, set()).add(names.get(type(value), "null"))


@pytest.mark.one_build
def test_answers_have_the_fields_and_types_of_rabbitmq(
    rabbitmq: ManagedRabbitMq, tmp_path: Path
) -> None:
    """Where both have a field it has the same type, and none is missing without a reason."""
    ours = TriviumProcess(tmp_path, protocols=("amqp", "http"))
    ours.start()
    answers: list[dict[str, tuple[int, Any]]] = []
    try:
        for api, port in (
            (rabbitmq.api, rabbitmq.addresses["amqp"].port),
            (Api(ours.ports["http"]), ours.ports["amqp"]),
        ):
            connection = populate(api, port)
            api.wait_for("connections", "state")
            api.wait_for("channels", "consumer_count")
            api.wait_for("queues/%2F/q", "messages")
            name = quote(api.get("connections")[0]["name"], safe="")
            asked = {path: path.format(name=name) for path in (*PATHS, *NAMED, *COLUMNS)}
            answers.append({path: api.ask("GET", each) for path, each in asked.items()})
            connection.close()
    finally:
        ours.stop()
    theirs, mine = answers
    wrong: list[tuple[object, ...]] = []
    shown: set[str] = set()
    for path in (*PATHS, *NAMED):
        if theirs[path][0] != mine[path][0]:
            wrong.append((path, "status", theirs[path][0], mine[path][0]))
            continue
        there: dict[str, set[str]] = {}
        here: dict[str, set[str]] = {}
        kinds(theirs[path][1], path, there)
        kinds(mine[path][1], path, here)
        for place, found in here.items():
            expected = there.get(place)
            if expected and not (found - {"null"}) <= expected | {"null"} and expected != {"null"}:
                wrong.append((place, "type", expected, found))
        kind = "channels" if path.endswith("/channels") else path.partition("/")[0]
        kind = kind.partition("?")[0]
        if kind == "queues":
            shown |= {place.rpartition("/")[2] for place in here}
        for place in there.keys() - here.keys():
            # What is missing as a whole is named once, and names of nodes are no fields.
            parent = place[:-1] if place.endswith("/") else place.rpartition("/")[0]
            if parent not in here or parent.endswith("cluster_state"):
                continue
            field = place[len(parent) + 1 :]
            if not field:
                # Items of a list.
                field = parent.rpartition("/")[2] + "/"
            if not {field, field.removesuffix("_details")} & {*ABSENT.get(kind, ())}:
                wrong.append((place, "missing"))
    assert wrong == []
    # What is here by now is not said to be absent.
    assert not shown & {*ABSENT["queues"]} - {"idle_since"}
    for path in COLUMNS:
        assert mine[path] == theirs[path], path


#: What users are asked who may not enter the virtual host ``hidden``. What differs is left out:
#: limits of users, which RabbitMQ shows to everybody.
SEEN_PATHS: Final = (
    *("consumers", "consumers/hidden", "channels", "connections", "queues", "queues/hidden"),
    *("vhosts", "vhosts/hidden", "vhosts/hidden/connections", "vhosts/hidden/channels"),
    *("vhost-limits", "vhost-limits/hidden", "exchanges/hidden", "bindings/hidden", "nodes"),
    *("policies", "policies/hidden", "permissions", "users", "parameters", "global-parameters"),
)
ASKING_TAGS: Final = ("monitoring", "policymaker", "management")


def seen(api: Api, amqp_port: int) -> dict[tuple[str, str], tuple[int, bool]]:
    """The status of each answer, and whether it tells of what is hidden, by user and path."""
    api.put("vhosts/hidden")
    api.put("vhost-limits/hidden/max-queues", {"value": 9})
    for tag in ASKING_TAGS:
        api.put(f"users/{tag}", {"password": "p", "tags": tag})
        api.put(f"permissions/%2F/{tag}", {"configure": "^x$", "write": "", "read": ""})
    parameters = pika.ConnectionParameters(LOOPBACK, amqp_port, "hidden")
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("hidden")
    channel.basic_consume("hidden", lambda *_: None)
    api.wait_for("connections", "state")
    api.wait_for("channels", "consumer_count")
    found: dict[tuple[str, str], tuple[int, bool]] = {}
    for tag in ASKING_TAGS:
        asks = Api(api.port, f"{tag}:p")
        for path in SEEN_PATHS:
            status, answer = asks.ask("GET", path)
            found[tag, path] = (status, status == 200 and "hidden" in json.dumps(answer))
    connection.close()
    # Others use the broker too.
    for path in ("vhosts/hidden", *(f"users/{tag}" for tag in ASKING_TAGS)):
        assert api.ask("DELETE", path)[0] == 204
    return found


@pytest.mark.one_build
def test_who_sees_what_is_as_with_rabbitmq(rabbitmq: ManagedRabbitMq, tmp_path: Path) -> None:
    ours = TriviumProcess(tmp_path, protocols=("amqp", "http"))
    ours.start()
    try:
        mine = seen(Api(ours.ports["http"]), ours.ports["amqp"])
    finally:
        ours.stop()
    theirs = seen(rabbitmq.api, rabbitmq.addresses["amqp"].port)
    assert mine == theirs


#: Of definitions, what is the same again after it has been here.
SECTIONS: Final = (
    *("queues", "exchanges", "bindings", "policies", "permissions", "topic_permissions"),
    *("parameters", "users", "vhosts", "global_parameters"),
)


def in_order(entries: list[dict[str, Any]]) -> list[str]:
    """Entries as they can be compared, in whatever order they come."""
    return sorted(json.dumps(entry, sort_keys=True) for entry in entries)


@pytest.mark.one_build
def test_definitions_go_from_rabbitmq_to_here_and_back(
    rabbitmq: ManagedRabbitMq, tmp_path: Path
) -> None:
    ours = TriviumProcess(tmp_path, protocols=("amqp", "http"))
    ours.start()
    try:
        here = Api(ours.ports["http"])
        populate(rabbitmq.api, rabbitmq.addresses["amqp"].port).close()
        document = rabbitmq.api.get("definitions")
        assert here.ask("POST", "definitions", document) == (204, None)
        exported = here.get("definitions")
        for section, keys in (
            ("queues", ("vhost", "name", "durable", "auto_delete", "arguments")),
            ("exchanges", ("vhost", "name", "type", "durable", "internal", "arguments")),
            ("bindings", ("vhost", "source", "destination", "routing_key", "arguments")),
            ("policies", ("vhost", "name", "pattern", "apply-to", "definition", "priority")),
            ("permissions", ("user", "vhost", "configure", "write", "read")),
            ("topic_permissions", ("user", "vhost", "exchange", "write", "read")),
            ("parameters", ("vhost", "component", "name", "value")),
            ("users", ("name", "password_hash", "hashing_algorithm", "tags", "limits")),
        ):
            wanted = [
                {key: entry[key] for key in keys}
                for entry in document[section]
                # Those who stand in the configuration stay as they are there.
                if "guest" not in (entry.get("user"), entry.get("name"))
            ]
            found = [{key: entry[key] for key in keys} for entry in exported[section]]
            assert in_order(found) == in_order(wanted), section
        # What both policies come to is the same.
        names = ("policy", "operator_policy", "effective_policy_definition")
        ours_found, theirs = (
            api.wait_for("queues/%2F/q", "operator_policy") for api in (here, rabbitmq.api)
        )
        assert {key: ours_found[key] for key in names} == {key: theirs[key] for key in names}
        # Whoever came along logs in, and messages go where they went.
        assert Api(ours.ports["http"], "ann:secret").get("whoami")["name"] == "ann"
        routed = {"payload": "x", "payload_encoding": "string"}
        for exchange, key, headers, queue in (
            ("ex", "a.b", {}, "q"),
            ("ex", "other", {"a": 1}, "qq"),
            ("he", "", {"b": "x"}, "qq"),
            ("ex", "other", {"c": 1}, None),
        ):
            properties = {"headers": headers}
            message = {**routed, "routing_key": key, "properties": properties}
            for api in (rabbitmq.api, here):
                path = f"exchanges/%2F/{exchange}/publish"
                assert api.ask("POST", path, message) == (200, {"routed": queue is not None})
        assert rabbitmq.api.ask("POST", "definitions", exported)[0] == 204
        again = rabbitmq.api.get("definitions")
        for section in SECTIONS:
            assert in_order(again[section]) == in_order(document[section]), section
    finally:
        ours.stop()


@pytest.mark.one_build
def test_rabbitmq_takes_documents_that_say_more_than_it_knows(
    rabbitmq: ManagedRabbitMq, tmp_path: Path
) -> None:
    """A policy that is narrowed here (3.10 knows no ``classic_queues``), and bytes beside what JSON
    has words for."""
    classic: dict[str, Any] = {"pattern": "^h", "definition": {"ha-mode": "all", "expires": 100000}}
    classic |= {"apply-to": "queues", "priority": 0}
    rabbitmq.api.put("policies/%2F/ha", classic)
    ours = TriviumProcess(tmp_path, protocols=("amqp", "http"))
    ours.start()
    try:
        here = Api(ours.ports["http"])
        assert here.ask("POST", "definitions", rabbitmq.api.get("definitions")) == (204, None)
        (found,) = here.get("policies/%2F")
        assert found["apply-to"] == "classic_queues"
        value = {"pattern": "^h", "definition": {"ha-mode": "all", "expires": 5}}
        operators = {"component": "operator_policy", "vhost": "/", "name": "o", "value": value}
        assert here.ask("POST", "definitions", {"parameters": [operators]}) == (204, None)
        here.put("queues/%2F/q", {"durable": True})
        packed = base64.b64encode(b"\x81\xa1b\xc4\x01\xff").decode()
        binding: dict[str, Any] = {"vhost": "/", "source": "amq.topic", "destination": "q"}
        binding["routing_key"] = "\ufffd"
        binding |= {"destination_type": "queue", "arguments": {"b": "/w=="}}
        binding |= {"routing_key_base64": "/w==", "arguments_base64": packed}
        assert here.ask("POST", "definitions", {"bindings": [binding]}) == (204, None)
        exported = here.get("definitions")
        assert binding in exported["bindings"]
        assert rabbitmq.api.ask("POST", "definitions", exported) == (204, None)
        (policy,) = rabbitmq.api.get("policies/%2F")
        assert (policy["apply-to"], policy["definition"]) == ("queues", {"expires": 100000})
        (policy,) = rabbitmq.api.get("operator-policies/%2F")
        assert (policy["apply-to"], policy["definition"]) == ("all", {"expires": 5})
        assert rabbitmq.api.get("bindings/%2F/e/amq.topic/q/q")
    finally:
        ours.stop()


@pytest.mark.one_build
def test_the_command_takes_over_what_rabbitmq_exports_and_names_what_has_no_counterpart(
    rabbitmq: ManagedRabbitMq, tmp_path: Path
) -> None:
    populate(rabbitmq.api, rabbitmq.addresses["amqp"].port).close()
    rabbitmq.api.put("queues/%2F/lazy", {"arguments": {"x-queue-mode": "lazy"}, "durable": True})
    ha = {"pattern": "^ha", "definition": {"ha-mode": "all", "max-length": 7}, "apply-to": "queues"}
    rabbitmq.api.put("policies/%2F/ha", ha)
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(rabbitmq.api.get("definitions")))
    rabbitmq.api.ask("DELETE", "policies/%2F/ha")
    rabbitmq.api.ask("DELETE", "queues/%2F/lazy")
    ours = TriviumProcess(tmp_path, protocols=("amqp", "http"))
    ours.start()
    try:
        url = f"http://guest:guest@{LOOPBACK}:{ours.ports['http']}"
        command = [sys.executable, "-m", "trivium", "import", "rabbitmq", str(file), "--url", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "")
        assert sorted(done.stderr.splitlines()) == [
            "policy 'ha' in '/': 'ha-mode' means nothing here",
            "policy 'ha' in '/': it holds for classic queues alone, as what was left out did",
            "queue 'lazy' in '/': 'x-queue-mode' means nothing here",
            "user 'guest': it stands in the configuration, and stays as it is there",
        ]
        here = Api(ours.ports["http"])
        assert {queue["name"] for queue in here.get("queues")} >= {"q", "qq", "st", "lazy"}
        assert here.get("policies/%2F/ha")["definition"] == {"max-length": 7}
        assert Api(ours.ports["http"], "ann:secret").get("whoami")["name"] == "ann"
    finally:
        ours.stop()
