"""Fixtures of the interop tests: a running broker, and names that no other test uses.

By default every test runs against both builds of the broker, interpreted and compiled. With
``--against mosquitto`` or ``--against rabbitmq`` the tests of a single protocol run against that
broker instead, which shows that the tests themselves are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from bench.servers import Mosquitto, RabbitMq, Server
from interop.brokers import TriviumProcess, compiled_build
from tests.support.reaper import start_reaper

BUILDS = ("interpreted", "compiled")

#: what is known to fail: ours, and other brokers in the versions that Debian has
KNOWN: dict[str, dict[str, str]] = {
    "mosquitto": {
        "second_connection_of_an_id_ends_the_first[mosquitto-v5]": "2.0.11 sends no DISCONNECT"
    },
    "rabbitmq": {
        "test_delayed_exchange_routes_later": "it needs a plugin",
        "test_repetitions_are_confirmed_and_dropped": "it needs a plugin",
    },
}


class Ports(Protocol):
    """Where a running broker listens."""

    @property
    def ports(self) -> dict[str, int]: ...


class Peer:
    """Another broker, for checking the tests."""

    def __init__(self, server: Server) -> None:
        self.ports = {name: address.port for name, address in server.addresses.items()}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--against", choices=("trivium", "mosquitto", "rabbitmq"), default="trivium")


def pytest_configure(config: pytest.Config) -> None:
    start_reaper()
    config.addinivalue_line("markers", "one_build: slow, so not repeated with the compiled broker")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what uses a broker against each of its builds, or against one other broker."""
    if "broker" not in metafunc.fixturenames:
        return
    against: str = metafunc.config.getoption("--against")
    if against != "trivium":
        builds: tuple[str, ...] = (against,)
    elif metafunc.definition.get_closest_marker("one_build"):
        builds = BUILDS[:1]
    else:
        builds = BUILDS
    metafunc.parametrize("broker", builds, indirect=True, scope="module")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known: dict[str, str] = KNOWN.get(config.getoption("--against"), {})
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            # The clients are not ours: paho, for one, leaves its wake-up sockets open.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
            )
        for part, reason in known.items():
            if part in item.name:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ports]:
    """A running broker with a data directory; the tests of a module share it."""
    build: str = request.param
    directory = tmp_path_factory.mktemp(build)
    if build in ("mosquitto", "rabbitmq"):
        server = (Mosquitto if build == "mosquitto" else RabbitMq)(directory)
        server.start()
        yield Peer(server)
        server.stop()
        return
    if build == "compiled" and (reason := compiled_build()) is not None:
        pytest.skip(reason)
    process = TriviumProcess(directory, is_compiled=build == "compiled")
    process.start()
    yield process
    assert process.is_running, f"the broker ended\n{process.log_tail()}"
    assert process.stop() == 0
    process.check_log()


@pytest.fixture
def mqtt_port(broker: Ports) -> int:
    if "mqtt" not in broker.ports:
        pytest.skip("this broker has no MQTT")
    return broker.ports["mqtt"]


@pytest.fixture
def amqp_port(broker: Ports) -> int:
    if "amqp" not in broker.ports:
        pytest.skip("this broker has no AMQP")
    return broker.ports["amqp"]


@pytest.fixture
def native_port(broker: Ports) -> int:
    if "native" not in broker.ports:
        pytest.skip("this broker has no native protocol")
    return broker.ports["native"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A word that no other test uses, for topics, queues and client ids."""
    return f"t{uuid4().hex[:10]}"
