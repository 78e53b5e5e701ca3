"""Mount points: the same clients see the same behind those of Mosquitto, as far as it has them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.brokers import LOOPBACK, TriviumProcess, release, reserve_restart_ports
from interop.mqtt import Mqtt, eventually

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")

#: ports of a listener without a mount point, and of one with ``in/a/``; what clients behind that
#: are sent before each topic: Mosquitto 2.0.11 does not take the prefix away
Ports = tuple[int, int, str]


def accepts(port: int) -> bool:
    made = Mqtt(port, connects=False)
    try:
        made.connect()
    except OSError:
        return False
    made.close()
    return True


@pytest.fixture(params=["trivium", "mosquitto"])
def ports(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ports]:
    if request.param == "trivium":
        broker = TriviumProcess(
            tmp_path,
            environment={
                "TRIVIUM_LISTENERS__mounted__PROTOCOL": "mqtt",
                "TRIVIUM_LISTENERS__mounted__ADDRESS": f"{LOOPBACK}:0",
                "TRIVIUM_LISTENERS__mounted__MOUNT_POINT": "in/a/",
            },
        )
        broker.start()
        yield broker.ports["mqtt"], broker.ports["mounted"], ""
        broker.stop()
        return
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    reserved = reserve_restart_ports(2)
    first, second = (int(each.getsockname()[1]) for each in reserved)
    file = tmp_path / "mosquitto.conf"
    file.write_text(
        f"allow_anonymous true\nlistener {first} {LOOPBACK}\n"
        f"listener {second} {LOOPBACK}\nmount_point in/a/\n",
        encoding="utf-8",
    )
    process = subprocess.Popen([MOSQUITTO, "-c", file], stderr=subprocess.DEVNULL)
    eventually(lambda: accepts(first) and accepts(second), "mosquitto")
    yield first, second, "in/a/"
    process.terminate()
    process.wait()
    release(reserved)


def test_clients_see_what_is_below_the_mount_point(ports: Ports) -> None:
    plain, mounted, before = ports
    outside, inside, member = Mqtt(plain), Mqtt(mounted), Mqtt(mounted)
    outside.publish("in/a/kept", b"1", retain=True)
    outside.publish("in/b/kept", b"2", retain=True)
    outside.subscribe("in/#", 1)
    assert {outside.receive().topic, outside.receive().topic} == {"in/a/kept", "in/b/kept"}
    inside.subscribe("#", 1)
    assert inside.receive().topic == f"{before}kept"
    member.subscribe("$share/g/t/+", 1)
    for qos in (0, 1, 2):
        inside.client.publish("t/x", b"m", qos)
        assert outside.receive().topic == "in/a/t/x"
        assert inside.receive().topic == f"{before}t/x"
        if not before:
            # Mosquitto has the prefix before $share.
            assert member.receive().topic == "t/x"
    outside.publish("t/y", b"not below")
    outside.publish("in/a/t/z", b"below")
    assert inside.receive().topic == f"{before}t/z"
    Mqtt(mounted, will=("w", b"gone", 1, False)).drop()
    assert [outside.receive().topic, inside.receive().topic] == ["in/a/t/z", f"{before}w"]
    assert outside.receive().topic == "in/a/w"
    for client in (outside, inside, member):
        client.close()
