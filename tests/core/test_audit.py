"""The audit log: what it tells, and what bounds it."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from trivium import Broker, Config
from trivium.cli.configuration import load
from trivium.config import AUDIT_EVENTS, EVERYTHING, AuditConfig, Listen, StorageConfig, UserConfig
from trivium.errors import ConfigError
from trivium.observability.audit import KINDS, MAX_OF_HOST, MAX_REFUSALS, MINUTE_MS, AuditLog
from trivium.security import hash_queue
from trivium.security.passwords import hash_password
from trivium_native import connect
from trivium_native.errors import AccessRefused, AuthenticationFailed


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@contextmanager
def audit_log(file: Path, **options: Any) -> Iterator[AuditLog]:
    """A log that is closed, and so written, at the end of the block."""
    log = AuditLog(AuditConfig(file=str(file), **options))
    try:
        yield log
    finally:
        log.close()


def test_a_line_has_time_event_and_facts(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    with audit_log(file) as log:
        log.write(1_000_000_000_123, "queue.created", {"queue": "q", "user": "ann"})
    assert file.read_text() == (
        '{"time": "2001-09-09T01:46:40.123+00:00", "event": "queue.created",'
        ' "queue": "q", "user": "ann"}\n'
    )


def test_a_text_of_a_client_cannot_make_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    with audit_log(file) as log:
        log.write(1, "queue.created", {"queue": 'q\n{"event": "x"}'})
        log.write(1, "queue.created", {"queue": "\ud800" + "q" * 5000})
    first, second = lines(file)
    assert first["queue"] == 'q\n{"event": "x"}'
    assert len(second["queue"]) == 1024 + len("...")


def test_only_the_owner_reads_the_file(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    with audit_log(file):
        pass
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_events_that_are_not_named_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    with audit_log(file, events=("refusals", "policies")) as log:
        for event in ("user.authentication.success", "queue.created", "policy.set"):
            log.write(1, event, {})
        log.write(1, "user.authentication.failure", {})
    assert [line["event"] for line in lines(file)] == ["policy.set", "user.authentication.failure"]


def test_names_of_events_are_those_of_the_configuration() -> None:
    assert set(KINDS) == set(AUDIT_EVENTS)


def test_a_refusal_is_written_once_in_a_minute_and_the_rest_counted(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    with audit_log(file) as log:
        for second in range(60):
            log.write(second * 1000, "permission.denied", {"user": "ann", "reason": "no"})
        log.write(0, "permission.denied", {"user": "bob", "reason": "no"})
        log.begin_minute(MINUTE_MS)
        log.write(MINUTE_MS, "permission.denied", {"user": "ann", "reason": "no"})
    found = [(line["event"], line.get("user"), line.get("refusals")) for line in lines(file)]
    assert found == [
        ("permission.denied", "ann", None),
        ("permission.denied", "bob", None),
        ("audit.left_out", None, 59),
        ("permission.denied", "ann", None),
    ]


def test_different_refusals_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    with audit_log(file) as log:
        for number in range(MAX_REFUSALS + 5):
            host = f"192.0.2.{number // MAX_OF_HOST}"
            log.write(1, "user.authentication.failure", {"user": str(number)}, host)
        log.begin_minute(MINUTE_MS)
    found = lines(file)
    assert len(found) == MAX_REFUSALS + 1
    assert found[-1]["refusals"] == 5


@pytest.mark.parametrize("place", ["file", "log", ""])
async def test_events_that_are_named_go_somewhere(tmp_path: Path, place: str) -> None:
    text = "[listen]\nmqtt = 'off'\namqp = 'off'\nnative = 'off'\nhttp = 'off'\n"
    text += "[storage]\nmode = 'memory'\n[audit]\nevents = ['logins']\n"
    text += {"file": f"file = '{tmp_path / 'audit'}'", "log": "log = true", "": ""}[place]
    (tmp_path / "trivium.toml").write_text(text)
    config = load(tmp_path / "trivium.toml")
    refusal = nullcontext() if place else pytest.raises(ConfigError, match="go nowhere")
    with refusal:
        async with Broker(config):
            pass


def test_a_kind_of_refusals_does_not_silence_another(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    with audit_log(file) as log:
        for number in range(MAX_REFUSALS + MAX_OF_HOST):
            host = "192.0.2.1" if number < MAX_OF_HOST else f"198.51.100.{number // MAX_OF_HOST}"
            log.write(1, "permission.denied", {"reason": str(number)}, host)
        log.write(1, "user.authentication.failure", {"user": "root"}, "192.0.2.1")
        log.write(1, "user.authentication.slowed", {"by": "address"}, "192.0.2.1")
    assert [found["event"] for found in lines(file)[-2:]] == [
        "user.authentication.failure",
        "user.authentication.slowed",
    ]


def test_a_host_does_not_silence_what_another_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    with audit_log(file) as log:
        for number in range(2 * MAX_OF_HOST):
            log.write(1, "permission.denied", {"reason": str(number)}, "192.0.2.1")
        log.write(1, "user.authentication.failure", {"user": "root"}, "192.0.2.2")
        log.begin_minute(MINUTE_MS)
    found = lines(file)
    assert len(found) == MAX_OF_HOST + 2
    assert found[-2]["user"] == "root"
    assert found[-1]["refusals"] == MAX_OF_HOST


def test_a_full_file_is_numbered(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    with audit_log(file, max_file_bytes=1000, files=2) as log:
        for number in range(50):
            log.write(1, "queue.created", {"queue": str(number)})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "audit.json",
        "audit.json.1",
        "audit.json.2",
    ]
    newest = [line["queue"] for path in (".2", ".1", "") for line in lines(Path(f"{file}{path}"))]
    assert newest == [str(number) for number in range(50 - len(newest), 50)]


def test_a_file_that_was_moved_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    with audit_log(file) as log:
        log.write(1, "queue.created", {"queue": "before"})
    with audit_log(file) as log:
        moved = file.rename(tmp_path / "moved")
        log.reopen()
        log.write(1, "queue.created", {"queue": "behind"})
    assert [line["queue"] for line in lines(moved)] == ["before"]
    assert [line["queue"] for line in lines(file)] == ["behind"]


def test_lines_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    log = AuditLog(AuditConfig(file=str(folder / "audit.json")))
    (folder / "audit.json").unlink()
    folder.rmdir()
    log.reopen()
    for number in range(3):
        log.write(1, "queue.created", {"queue": number})
    log.close()
    assert log.lost == 3


def test_a_file_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[audit\] file .*: No such file or directory"):
        AuditLog(AuditConfig(file=str(tmp_path / "none" / "audit.json")))


@pytest.mark.parametrize(
    "options", [{"events": ("weather",)}, {"max_file_bytes": -1}, {"files": 0}]
)
def test_wrong_values_are_told(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        AuditConfig(**options)


def configured(file: Path) -> Config:
    return Config(
        listen={"native": Listen(0)},
        storage=StorageConfig(mode="memory"),
        audit=AuditConfig(file=str(file)),
        users={
            "root": UserConfig(password="p", tags=("administrator",), permissions=EVERYTHING),
            "ann": UserConfig(password="p", permissions={"/": {"configure": "^a", "read": "^a"}}),
        },
    )


async def test_changes_name_who_made_them_and_from_where(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    async with Broker(configured(file)) as broker:
        url = broker.listeners["native"]
        async with connect(f"trivium://root:p@{url}") as root:
            await root.declare_queue("q")
            await root.declare_queue("q")
            await root.declare_exchange("x", "topic")
            await root.bind("queue", "q", exchange="x", pattern="#")
            await root.declare_stream("s", partitions=2)
            # A thread hashes the password: the answer comes in another turn.
            await root.add_user("bob", "secret")
            patterns = {"configure": "", "write": "", "read": ".*"}
            await root.manage_permissions("set", {"user": "bob", "vhost": "/", **patterns})
            await root.delete_user("bob")
            await root.delete("queue", "q")
            await root.manage_permissions("create-vhost", {"name": "farm"})
    found = lines(file)
    assert all(line["address"].startswith("127.0.0.1:") for line in found[1:])
    assert {(line["user"], line["protocol"], line["listener"]) for line in found[1:]} == {
        ("root", "native", "native")
    }
    what = ("vhost", "queue", "exchange", "key", "stream", "name", "destination")
    told = [(line["event"], *(line[key] for key in what if key in line)) for line in found]
    assert told == [
        ("user.authentication.success", "/"),
        ("queue.created", "/", "q"),
        ("exchange.created", "/", "x"),
        ("binding.created", "/", "x", "#", "q"),
        ("stream.created", "/", "s"),
        ("user.created", "/", "bob"),
        ("permission.set", "/", "bob"),
        ("user.deleted", "/", "bob"),
        ("permission.deleted", "/", "bob"),
        ("queue.deleted", "/", "q"),
        # It is that which is told of, not that of who did it.
        ("vhost.created", "farm"),
    ]
    assert "secret" not in file.read_text()


async def test_refusals_are_told(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    async with Broker(configured(file)) as broker:
        url = broker.listeners["native"]
        with pytest.raises(AuthenticationFailed):
            async with connect(f"trivium://ann:wrong@{url}"):
                pass
        async with connect(f"trivium://ann:p@{url}") as ann:
            with pytest.raises(AccessRefused):
                await ann.declare_queue("other")
            with pytest.raises(AccessRefused):
                await ann.add_user("bob", "secret")
    found = [(line["event"], line["user"]) for line in lines(file)]
    assert found == [
        ("user.authentication.failure", "ann"),
        ("user.authentication.success", "ann"),
        ("permission.denied", "ann"),
        ("permission.denied", "ann"),
    ]
    assert "wrong" not in file.read_text()


async def test_logins_over_http_name_their_listener(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    config = replace(configured(file), listen={"http": Listen(0)})
    async with Broker(config) as broker, aiohttp.ClientSession() as session:
        url = f"http://{broker.listeners['http']}/metrics"
        for password in ("wrong", "p"):
            shown = base64.b64encode(f"root:{password}".encode()).decode()
            async with session.get(url, headers={"Authorization": f"Basic {shown}"}):
                pass
    told = [
        (line["event"], line["user"], line["listener"], line["address"]) for line in lines(file)
    ]
    assert told == [
        ("user.authentication.failure", "root", "http", "127.0.0.1"),
        ("user.authentication.success", "root", "http", "127.0.0.1"),
    ]


async def test_a_login_that_nobody_could_look_at_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused in the form of the API that is asked."""
    monkeypatch.setattr(hash_queue, "MAX_PER_ADDRESS", 0)
    file = tmp_path / "audit.json"
    users = {"bob": UserConfig(password=hash_password(b"x"), tags=("monitoring",))}
    config = replace(configured(file), listen={"http": Listen(0)}, users=users)
    shown = "Basic " + base64.b64encode(b"bob:x").decode()
    async with Broker(config) as broker, aiohttp.ClientSession() as session:
        for path, kind, key, value in (
            ("api", "application/json", "error", "service_unavailable"),
            ("api/v1", "application/problem+json", "status", 503),
        ):
            url = f"http://{broker.listeners['http']}/{path}/whoami"
            async with session.get(url, headers={"Authorization": shown}) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert answer.content_type == kind
                assert (await answer.json(content_type=kind))[key] == value
    told = [(line["event"], line["user"], line["reason"]) for line in lines(file)]
    assert told == [("user.authentication.failure", "bob", "too many others want to come in")]


async def test_what_goes_with_its_connection_is_told_as_its_doing(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    async with (
        Broker(configured(file)) as broker,
        connect(f"trivium://root:p@{broker.listeners['native']}") as root,
    ):
        await root.declare_queue("mine", exclusive=True)
    last = lines(file)[-1]
    assert (last["event"], last["queue"], last["user"]) == ("queue.deleted", "mine", "root")
