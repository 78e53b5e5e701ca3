"""A configuration of Mosquitto that was converted lets the same clients do the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interop.brokers import LOOPBACK, TriviumProcess, release, reserve_restart_ports
from interop.mqtt import PATIENCE, V311, Mqtt, eventually

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
TOPICS = ("open/x", "ann/x", "own/ann/x", "own/bob/x", "secret/x")
ACL = """\
topic read open/#
user reader
topic readwrite #
user ann
topic readwrite ann/#
topic write secret/#
pattern readwrite own/%u/#
pattern read open/end
"""
#: who comes, and by which password
CLIENTS = {
    "ann": ("ann", "one"),
    "wrong": ("ann", "two"),
    "bob": ("bob", "three"),
    "nobody": None,
}

#: Everybody may read it.
END = "open/end"

#: topics that reached another client, and that reached this one
Verdict = dict[str, list[str]]


def client_of(port: int, name: str) -> Mqtt:
    made = Mqtt(port, name, version=V311, connects=False)
    credentials = {**CLIENTS, "reader": ("reader", "all")}[name]
    if credentials is not None:
        made.client.username_pw_set(*credentials)
    return made


def verdict(port: int, name: str) -> Verdict | str:
    """What a client may do, as it and another client see it."""
    client = client_of(port, name)
    try:
        connack = client.connect()
    except OSError:
        return "refused"
    if connack.reason.is_failure:
        return "refused"
    # Mosquitto grants what it does not deliver.
    client.subscribe("#", 1)
    reader = client_of(port, "reader")
    reader.connect()
    reader.subscribe("#", 1)
    for topic in TOPICS:
        client.client.publish(topic, b"", 1).wait_for_publish(PATIENCE)
    reader.publish(END, b"", qos=1)
    written = until_end(reader)
    until_end(client)
    for topic in (*TOPICS, END):
        reader.publish(topic, b"", qos=1)
    found: Verdict = {"written": written, "read": until_end(client)}
    for each in (client, reader):
        each.close()
    return found


def until_end(client: Mqtt) -> list[str]:
    """Topics of what a client gets, until the message that all may read."""
    found: list[str] = []
    while (topic := client.receive().topic) != END:
        found.append(topic)
    return found


def verdicts(port: int) -> dict[str, Verdict | str]:
    return {name: verdict(port, name) for name in CLIENTS}


@contextmanager
def mosquitto(file: Path, port: int) -> Iterator[None]:
    assert MOSQUITTO is not None
    process = subprocess.Popen([MOSQUITTO, "-c", file], stderr=subprocess.DEVNULL)

    def answers() -> bool:
        try:
            Mqtt(port, version=V311, connects=False).connect()
        except OSError:
            return False
        return True

    try:
        eventually(answers, "mosquitto")
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
@pytest.mark.parametrize("allows", ["true", "false"])
@pytest.mark.parametrize("has_acl", [True, False])
def test_clients_may_do_the_same_as_before(allows: str, has_acl: bool, tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch(mode=0o600)
    for user, password in (("ann", "one"), ("bob", "three"), ("reader", "all")):
        subprocess.run(["mosquitto_passwd", "-b", passwords, user, password], check=True)
    reserved = reserve_restart_ports(1)
    port = int(reserved[0].getsockname()[1])
    lines = [f"listener {port} {LOOPBACK}", f"allow_anonymous {allows}", "user root"]
    lines.append(f"password_file {passwords}")
    if has_acl:
        acl = tmp_path / "acl"
        acl.write_text(ACL)
        acl.chmod(0o600)
        lines.append(f"acl_file {acl}")
    file = tmp_path / "mosquitto.conf"
    file.write_text("\n".join(lines))
    with mosquitto(file, port):
        expected = verdicts(port)
    made = tmp_path / "converted"
    command = [sys.executable, "-m", "trivium", "import", "mosquitto", str(file)]
    subprocess.run([*command, "--output", str(made)], check=True)
    broker = TriviumProcess(tmp_path, protocols=(), arguments=("--config", str(made)))
    broker.start()
    try:
        assert verdicts(port) == expected
    finally:
        broker.stop()
        release(reserved)
    assert expected["wrong"] == "refused"
    assert (expected["nobody"] == "refused") == (allows == "false")
