"""Fixtures for tests of programs that speak to a broker; docs/embedding.md says how to use them.

Nothing of the broker is imported before a test asks for one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trivium.config import Config
    from trivium.testing import SharedBroker


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Have pytest import the broker as it is.

    It rewrites the assertions of all modules that a plugin comes with, which takes seconds here and
    would make the broker slower.
    """
    marked: set[str] = getattr(early_config.pluginmanager.rewrite_hook, "_must_rewrite", set())
    marked -= {name for name in marked if name.partition("_")[0] == "trivium"}


@contextmanager
def _uncollected() -> Iterator[None]:
    """What is imported stays. Meanwhile the collector of cycles does not walk all that there is,
    of pytest and of the program under test, time and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@pytest.fixture(scope="session")
def trivium_config() -> Config:
    """What the broker of all tests is configured by; a conftest.py may have another one."""
    with _uncollected():
        from trivium.config import Config, StorageConfig

    return Config(listen={}, storage=StorageConfig(mode="memory"))


@pytest.fixture(scope="session")
def trivium_broker(trivium_config: Config) -> Iterator[SharedBroker]:
    """The broker of all tests, in a thread. ``listen`` and ``client`` lead into it."""
    with _uncollected():
        from trivium.testing import SharedBroker

        broker = SharedBroker(trivium_config)
    with broker:
        yield broker


@pytest.fixture
def trivium_vhost(trivium_broker: SharedBroker) -> Iterator[str]:
    """The name of a virtual host that only this test has."""
    name = trivium_broker.make_vhost()
    yield name
    trivium_broker.delete_vhost(name)


def _place(broker: SharedBroker, protocol: str, vhost: str) -> str:
    """Where clients of a protocol reach a virtual host; the first one has the protocol loaded."""
    with _uncollected():
        return broker.listen(protocol, vhost)


@pytest.fixture
def trivium_url(trivium_broker: SharedBroker, trivium_vhost: str) -> str:
    """The virtual host of this test, for native clients."""
    return f"trivium://{_place(trivium_broker, 'native', trivium_vhost)}/{trivium_vhost}"


@pytest.fixture
def mqtt_url(trivium_broker: SharedBroker, trivium_vhost: str) -> str:
    """The same for MQTT clients: ``mqtt://host:port``. Nobody else has the port."""
    return f"mqtt://{_place(trivium_broker, 'mqtt', trivium_vhost)}"


@pytest.fixture
def amqp_url(trivium_broker: SharedBroker, trivium_vhost: str) -> str:
    """The same for AMQP clients. A client that has the port alone gets there too."""
    place = _place(trivium_broker, "amqp", trivium_vhost)
    return f"amqp://guest:guest@{place}/{trivium_vhost}"
