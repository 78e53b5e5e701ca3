"""The control socket: where it is, and who comes in by it."""

from __future__ import annotations

import base64
import json
import logging
import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from trivium.cli.configuration import load
from trivium.common.events import Events
from trivium.config import (
    AuditConfig,
    Config,
    ControlConfig,
    ListenerConfig,
    StorageConfig,
    UserConfig,
)
from trivium.errors import ConfigError, PreconditionFailed, TriviumError
from trivium.listen import ControlListener
from trivium.runtime.broker import Broker
from trivium.security.declarers import AccessDeclarers
from trivium.security.identity import OWNER
from trivium.security.permissions import Permissions
from trivium.security.users import check_name

AUTO = ControlConfig()


def memory(control: ControlConfig, **sections: Any) -> Config:
    return Config(listen={}, control=control, storage=StorageConfig(mode="memory"), **sections)


def at(path: Path, **keys: Any) -> ControlConfig:
    return ControlConfig(socket=str(path), **keys)


def client(path: Path, **keys: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        "http://control", connector=aiohttp.UnixConnector(str(path)), **keys
    )


def basic(user: str, password: str) -> dict[str, str]:
    shown = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {shown}"}


# Where


async def test_by_default_it_is_in_the_data_directory_for_its_owner_alone(tmp_path: Path) -> None:
    storage = StorageConfig(data=tmp_path / "data")
    path = tmp_path / "data/control.sock"
    async with Broker(Config(listen={}, control=AUTO, storage=storage)):
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


def test_a_file_that_says_nothing_of_it_has_it_and_an_embedded_broker_has_not() -> None:
    assert load().control == AUTO
    assert any(isinstance(each, ControlListener) for each in load().all_listeners())
    assert not any(isinstance(each, ControlListener) for each in Config().all_listeners())


def test_without_a_data_directory_it_is_nowhere() -> None:
    assert memory(AUTO).all_listeners() == ()


def test_it_can_be_switched_off() -> None:
    found = load(environment={"TRIVIUM_CONTROL__SOCKET": "off"}).all_listeners()
    assert [each.name for each in found] == ["mqtt", "amqp", "native", "http"]


async def test_it_can_be_elsewhere_with_another_mode(tmp_path: Path) -> None:
    path = tmp_path / "c"
    async with Broker(memory(at(path, mode="0660"))):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize(("key", "value"), [("mode", "rw"), ("socket", "a\0b"), ("socket", "")])
def test_what_cannot_be_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError):
        ControlConfig(**{key: value})


@pytest.mark.parametrize(("mode", "warns"), [("0600", False), ("0660", False), ("0666", True)])
async def test_a_mode_that_lets_everybody_in_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str, warns: bool
) -> None:
    async with Broker(memory(at(tmp_path / "c.sock", mode=mode))):
        found = [line for line in caplog.messages if "is an administrator" in line]
    assert len(found) == warns
    assert all(line.startswith(f"control: mode {mode}") for line in found)


async def test_a_directory_with_a_long_path_has_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = StorageConfig(data=tmp_path / ("d" * 100))
    with caplog.at_level(logging.WARNING):
        async with Broker(Config(listen={}, control=AUTO, storage=storage)):
            pass
    (line,) = caplog.messages
    assert "the path of a Unix socket has at most 107 bytes" in line


async def test_a_path_that_was_asked_for_and_is_too_long_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TriviumError, match="at most 107 bytes"):
        async with Broker(memory(at(tmp_path / ("d" * 100)))):
            pass


# Who


async def test_whoever_opens_it_may_do_everything(tmp_path: Path) -> None:
    path = tmp_path / "c"
    async with Broker(memory(at(path))), client(path) as session:
        async with session.get("/api/v1/whoami") as response:
            who = {"name": "(owner)", "tags": ["administrator"]}
            assert await response.json() == {**who, "has_own_keys": False}
        async with session.put("/api/v1/vhosts/north", json={}) as response:
            assert response.status == 201
        async with session.put("/api/v1/vhosts/north/queues/q", json={}) as response:
            assert response.status == 201
        async with session.put(
            "/api/v1/vhosts/north/policies/p",
            json={"pattern": "q", "definition": {"max-length": 1}},
        ) as response:
            assert response.status == 201
        async with session.get("/metrics") as response:
            assert response.status == 200


def test_what_the_owner_declares_passes_on_after_a_restart() -> None:
    def declarers() -> AccessDeclarers:
        return AccessDeclarers(Permissions(Events()), lambda _: frozenset(), lambda _: False)

    found = declarers().restored(declarers().of_policy(OWNER, "farm").row, "farm")
    assert found is not None
    assert found.may_pass_on("exchange", "any", "other", None)
    assert found.may_set_policies()


async def test_who_shows_credentials_is_let_in_by_these(tmp_path: Path) -> None:
    path = tmp_path / "c"
    users = {"ann": UserConfig(password="secret", tags=("monitoring",))}
    async with Broker(memory(at(path), users=users)):
        async with (
            client(path, headers=basic("ann", "secret")) as session,
            session.get("/api/v1/whoami") as response,
        ):
            who = {"name": "ann", "tags": ["monitoring"]}
            assert await response.json() == {**who, "has_own_keys": True}
        async with (
            client(path, headers=basic("ann", "wrong")) as session,
            session.get("/api/v1/whoami") as response,
        ):
            assert response.status == 401


async def test_another_socket_for_http_lets_nobody_in_without_credentials(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = ListenerConfig(protocol="http", address=f"unix:{path}", name="control")
    async with (
        Broker(memory(ControlConfig(socket="off"), listeners=(listener,))),
        client(path) as session,
        session.get("/api/v1/whoami") as response,
    ):
        assert response.status == 401


async def test_the_audit_log_names_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "c"
    audit = AuditConfig(file=str(tmp_path / "audit"))
    async with (
        Broker(memory(at(path), audit=audit)),
        client(path) as session,
        session.put("/api/v1/vhosts/%2F/queues/q", json={}) as response,
    ):
        assert response.status == 201
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    (line,) = (line for line in lines if line["event"] == "queue.created")
    assert (line["user"], line["listener"], line["protocol"]) == ("(owner)", "control", "http")


def test_no_user_is_called_as_the_owner() -> None:
    with pytest.raises(PreconditionFailed):
        check_name("(owner)")
