"""``$SYS/broker``: what ours is called, and how it is written, is as with Mosquitto."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.brokers import LOOPBACK, TriviumProcess, release, reserve_restart_ports
from interop.mqtt import Mqtt, eventually

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")

#: looks at the figures, one in each second
LOOKS = 4
#: how the values are written
FORMS = {
    "text": re.compile(r"[a-z]+ version \S+"),
    "seconds": re.compile(r"\d+ seconds"),
    "average": re.compile(r"\d+\.\d\d"),
    "count": re.compile(r"\d+"),
}


def form_of(value: str) -> str:
    return next(name for name, form in FORMS.items() if form.fullmatch(value))


@pytest.fixture
def trivium(tmp_path: Path) -> Iterator[int]:
    broker = TriviumProcess(tmp_path, environment={"TRIVIUM_MQTT__SYS_INTERVAL_SECONDS": "1"})
    broker.start()
    yield broker.ports["mqtt"]
    assert broker.stop() == 0
    broker.check_log()


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[int]:
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    reserved = reserve_restart_ports(1)
    port = int(reserved[0].getsockname()[1])
    file = tmp_path / "mosquitto.conf"
    file.write_text(f"allow_anonymous true\nlistener {port} {LOOPBACK}\nsys_interval 1\n")
    process = subprocess.Popen([MOSQUITTO, "-c", file], stderr=subprocess.DEVNULL)
    eventually(lambda: accepts(port), "mosquitto")
    yield port
    process.terminate()
    process.wait()
    release(reserved)


def accepts(port: int) -> bool:
    made = Mqtt(port, connects=False)
    try:
        made.connect()
    except OSError:
        return False
    made.close()
    return True


def told(port: int) -> dict[str, str]:
    """What a broker says of itself. Of some Mosquitto speaks only once they have changed."""
    found: dict[str, str] = {}
    looks = 0
    with Mqtt(port) as client, Mqtt(port) as other:
        other.subscribe("t", 0)
        client.subscribe("$SYS/broker/#", 0)
        while looks < LOOKS:
            other.publish("t", b"x", 0)
            message = client.receive()
            assert message.topic.startswith("$SYS/broker/")
            topic = message.topic.removeprefix("$SYS/broker/")
            found[topic] = message.payload.decode()
            looks += topic == "uptime"
    return found


def test_names_and_values_are_as_mosquitto_has_them(trivium: int, mosquitto: int) -> None:
    ours, theirs = told(trivium), told(mosquitto)
    assert len(ours) > 30
    assert ours.keys() - theirs.keys() == set()
    forms = {topic: (form_of(ours[topic]), form_of(theirs[topic])) for topic in ours}
    assert {topic: each for topic, each in forms.items() if each[0] != each[1]} == {}
    assert ours["clients/connected"] == theirs["clients/connected"]
    assert theirs.keys() - ours.keys() == set()
