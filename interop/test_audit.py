"""The audit log of a broker that off-the-shelf clients use by every road."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ProbableAuthenticationError

from interop.brokers import LOOPBACK, TriviumProcess, compiled_build
from interop.mqtt import Mqtt
from trivium_native.sync import connect

WHO = ("event", "user", "protocol", "client_id")


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def amqp(port: int, password: str) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials("ann", password)
    return pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, port, "/", credentials))


@pytest.mark.parametrize("is_compiled", [False, True])
def test_who_did_what_by_which_road(tmp_path: Path, is_compiled: bool) -> None:
    if is_compiled and (why := compiled_build()):
        pytest.skip(why)
    file = tmp_path / "audit.json"
    patterns = {"/": {"configure": "^(q|mqtt)", "write": "", "read": ".*"}}
    broker = TriviumProcess(
        tmp_path,
        is_compiled=is_compiled,
        environment={
            "TRIVIUM_AUDIT__FILE": str(file),
            "TRIVIUM_USERS__ann__PASSWORD": "secret",
            "TRIVIUM_USERS__ann__PERMISSIONS": json.dumps(patterns),
        },
    )
    broker.start()
    try:
        with pytest.raises(ProbableAuthenticationError):
            amqp(broker.ports["amqp"], "wrong")
        with amqp(broker.ports["amqp"], "secret") as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            with pytest.raises(ChannelClosedByBroker):
                channel.queue_declare("other")
        phone = Mqtt(broker.ports["mqtt"], "phone", session=60, connects=False)
        phone.client.username_pw_set("ann", "secret")
        phone.connect()
        phone.publish("a/b", b"x", qos=1)
        phone.close()
        url = f"{LOOPBACK}:{broker.ports['native']}"
        with connect(f"trivium://guest:guest@{url}") as administrator:
            administrator.add_user("bob", "hidden")
            assert broker.process is not None
            moved = file.rename(tmp_path / "moved")
            os.kill(broker.process.pid, signal.SIGHUP)
            # The answers come behind the signal: what it does is done then.
            while not file.exists():
                administrator.set_user_tags("bob", ["monitoring"])
            administrator.delete_user("bob")
    finally:
        broker.stop()
    told = [tuple(line.get(key) for key in WHO) for line in lines(moved)]
    for expected in [
        ("user.authentication.failure", "ann", "amqp", ""),
        ("user.authentication.success", "ann", "amqp", ""),
        ("queue.created", "ann", "amqp", ""),
        ("permission.denied", "ann", "amqp", ""),
        ("user.authentication.success", "ann", "mqtt", "phone"),
        ("permission.denied", "ann", "mqtt", "phone"),
        ("user.created", "guest", "native", ""),
    ]:
        assert expected in told
    assert lines(file)[-1]["event"] == "user.deleted"
    text = moved.read_text() + file.read_text()
    assert not [word for word in ("secret", "wrong", "hidden") if word in text]
