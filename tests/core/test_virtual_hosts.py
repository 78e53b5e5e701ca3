"""Virtual hosts: what is set about them, and the type of queues that name none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.core import open_broker
from tests.support.simulated import Host
from trivium.errors import NotFound, PreconditionFailed
from trivium.messages.message import HeaderValue
from trivium.vhost.settings import (
    VirtualHostSettings,
    check_vhost_name,
    settings_of_row,
    with_default_type,
)

SETTINGS = VirtualHostSettings("of the farm", ("a", "b"), "stream")


def test_what_is_set_about_a_virtual_host_outlives_a_crash() -> None:
    host = Host()
    broker = open_broker(host.storage)
    broker.virtual_hosts.declare("farm", SETTINGS)
    broker.virtual_hosts.declare("/", VirtualHostSettings("the first"))
    broker.virtual_hosts.declare("plain")
    broker.end_turn()
    host.commit()
    again = open_broker(Host(host.disk.copy()).storage)
    assert again.vhost("farm").settings == SETTINGS
    assert again.vhost("/").settings == VirtualHostSettings("the first")
    assert again.vhost("plain").settings == VirtualHostSettings()


def test_declaring_one_that_exists_changes_what_is_given() -> None:
    broker = open_broker(Host().storage)
    made = broker.virtual_hosts.declare("farm", SETTINGS)
    assert broker.virtual_hosts.declare("farm") is made
    assert made.settings == SETTINGS
    broker.virtual_hosts.declare("farm", replace(SETTINGS, description=""))
    assert made.settings == replace(SETTINGS, description="")
    with pytest.raises(NotFound):
        broker.vhost("barn")


@pytest.mark.parametrize("name", ["", "*", "a\nb", "é" * 128])
def test_names_that_no_virtual_host_may_have(name: str) -> None:
    with pytest.raises(PreconditionFailed):
        check_vhost_name(name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"description": "x" * 1025},
        {"tags": ("t",) * 33},
        {"tags": ("",)},
        {"default_queue_type": "lazy"},
    ],
)
def test_what_cannot_be_set(wrong: dict[str, str]) -> None:
    with pytest.raises(PreconditionFailed):
        VirtualHostSettings(**wrong)  # type: ignore[arg-type]


def test_a_row_of_an_older_broker_is_empty() -> None:
    assert settings_of_row(b"") == VirtualHostSettings()
    assert settings_of_row(SETTINGS.row()) == SETTINGS


@pytest.mark.parametrize(
    ("default", "name", "properties", "expected"),
    [
        ("", "new", (True, False, False), None),
        ("classic", "new", (True, False, False), None),
        ("quorum", "new", (True, False, False), "quorum"),
        ("stream", "new", (True, False, False), "stream"),
        # What goes with its clients, or is named by the broker, is a classic queue.
        ("quorum", "new", (False, False, False), None),
        ("quorum", "new", (True, True, False), None),
        ("quorum", "new", (True, False, True), None),
        ("quorum", "", (True, False, False), None),
        # What exists keeps its type.
        ("quorum", "old", (True, False, False), None),
        ("quorum", "log", (True, False, False), "stream"),
    ],
)
def test_the_default_type_is_for_queues_that_name_none(
    default: str, name: str, properties: tuple[bool, bool, bool], expected: str | None
) -> None:
    vhost = open_broker(Host().storage).virtual_hosts.declare(
        "v", VirtualHostSettings(default_queue_type=default)
    )
    vhost.declare_queue("old", durable=True)
    vhost.declare_stream("log")
    assert with_default_type(vhost, name, {}, *properties).get("x-queue-type") == expected
    named: dict[str, HeaderValue] = {"x-queue-type": "classic"}
    assert with_default_type(vhost, name, named, *properties) is named
