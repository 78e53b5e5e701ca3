"""`trivium import mosquitto` converts what there is here, and names each line that is not."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run
from trivium.errors import ConfigError
from trivium_mqtt.mosquitto import convert

HASH = "$7$101$+KKpDLCr+Y4w4FJM$odBLxWpX1DS6Q+BE/7xKvU4PCnahR9NWknHW/76VPop" + (
    "gn/4S65vX9JChgg503Bt+qxrlq3h5yVty+u2CRPzwQQ=="
)


def converted(folder: Path, text: str) -> tuple[dict[str, Any], list[str]]:
    """The configuration that is made, and the notes without the folder."""
    file = folder / "mosquitto.conf"
    file.write_text(text)
    found, notes = convert(file)
    return tomllib.loads(found), [note.removeprefix(f"{folder}/") for note in notes]


def test_without_a_listener_this_machine_alone_is_served(tmp_path: Path) -> None:
    tree, notes = converted(tmp_path, "")
    assert (tree, notes) == ({"auth": {"guest": False}}, [])
    tree, _ = converted(tmp_path, "allow_anonymous false")
    assert tree["auth"]["anonymous"] == "never"


def test_listeners_keep_their_place_limits_and_mount_points(tmp_path: Path) -> None:
    tree, notes = converted(
        tmp_path,
        "port 1883\nbind_address 127.0.0.1\nmax_connections 5\n"
        "listener 1884\nmount_point in/\nlistener 9001 ::1\nprotocol websockets\n"
        "listener 0 /run/mqtt.sock\n",
    )
    denied = {"protocol": "mqtt", "anonymous": "never"}
    assert tree["listeners"] == [
        {"address": "127.0.0.1:1883", "max_connections": 5, **denied},
        {"address": "0.0.0.0:1884", "mount_point": "in/", **denied},
        {"address": "[::1]:9001", "websocket": "/mqtt", **denied},
        {"address": "unix:/run/mqtt.sock", **denied},
    ]
    assert notes == [
        "mosquitto.conf:4: listener: at all IPv4 addresses; IPv6 is a listener of its own ([::])",
        "mosquitto.conf:7: protocol: WebSockets are at the path /mqtt, and nowhere else",
    ]


def test_tls_and_owners_of_certificates_are_those_of_the_listener(tmp_path: Path) -> None:
    tree, notes = converted(
        tmp_path,
        "listener 8883 127.0.0.1\ncertfile c.pem\nkeyfile k.pem\ncafile a.pem\ncrlfile r.pem\n"
        "tls_version tlsv1.3\nrequire_certificate true\nuse_identity_as_username true\n"
        "listener 8884 127.0.0.1\ncertfile c.pem\nkeyfile k.pem\ntls_version tlsv1.1\n",
    )
    first, second = tree["listeners"]
    assert first["tls"] == {
        "certificate": "c.pem",
        "key": "k.pem",
        "ca": "a.pem",
        "crl": "r.pem",
        "minimum_version": "1.3",
        "client_certificates": "required",
    }
    assert first["methods"] == ["certificate"]
    assert second["tls"]["client_certificates"] == "off"
    assert "methods" not in second
    assert notes == [
        "mosquitto.conf:1: listener: owners of certificates may do nothing yet:"
        " see `trivium permission`",
        "mosquitto.conf:12: tls_version: 1.2 is the lowest that there is",
    ]


def test_without_an_acl_file_users_may_do_everything(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text(f"ann:{HASH}\n")
    tree, _ = converted(tmp_path, f"password_file {passwords}\nlistener 1883 127.0.0.1")
    assert tree["users"]["ann"]["password"] == HASH
    assert tree["users"]["ann"]["acl"] == ["topic readwrite #", "topic read $SYS/#"]
    assert "password_files" not in tree["auth"]


def test_with_an_acl_file_both_files_are_read_as_they_are(tmp_path: Path) -> None:
    acl, passwords = tmp_path / "acl", tmp_path / "passwords"
    acl.write_text("topic read open/#\n")
    text = f"password_file {passwords}\nacl_file {acl}\nlistener 1883 127.0.0.1"
    tree, _ = converted(tmp_path, text)
    files = {"password_files": [str(passwords)], "acl_file": str(acl)}
    assert tree["auth"] == {"guest": False, **files}
    assert "users" not in tree


def test_with_settings_per_listener_each_has_its_own(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic read open/#\n")
    tree, _ = converted(
        tmp_path,
        "per_listener_settings true\n"
        f"listener 1883 127.0.0.1\nallow_anonymous true\nacl_file {acl}\n"
        f"listener 1884 127.0.0.1\npassword_file /p\nacl_file {acl}\n",
    )
    first, second = tree["listeners"]
    assert (first["anonymous"], first["methods"]) == ("always", ["api-key"])
    assert second["anonymous"] == "never"
    assert "methods" not in second


def test_what_is_in_a_file_that_is_no_configuration_is_not_told(tmp_path: Path) -> None:
    _, notes = converted(tmp_path, "ann:$7$101$SECRET\nlistener 1883\n")
    assert "mosquitto.conf:1: ...: no counterpart" in notes
    assert not any("SECRET" in note for note in notes)


@pytest.mark.parametrize("key", ["password_file", "acl_file"])
def test_files_that_differ_between_listeners_are_not_mixed(key: str, tmp_path: Path) -> None:
    text = f"per_listener_settings true\nlistener 1\n{key} /a\nlistener 2\n{key} /b\n"
    with pytest.raises(ConfigError, match="make one file of each"):
        converted(tmp_path, text)


def test_limits_and_storage_have_their_keys(tmp_path: Path) -> None:
    tree, notes = converted(
        tmp_path,
        "max_inflight_messages 20\nmax_queued_messages 0\nmax_queued_bytes 5\n"
        "max_packet_size 100000\nmessage_size_limit 0\nmax_keepalive 60\nmax_topic_alias 3\n"
        "memory_limit 50000000\nsys_interval 3\npersistent_client_expiration 2w\n"
        "clientid_prefixes a.\n"
        "persistence true\npersistence_location /var/lib/mosquitto/\n",
    )
    assert tree["mqtt"] == {
        "maximum_inflight": 20,
        "maximum_queued_bytes": 5,
        "maximum_packet_bytes": 100000,
        "server_keep_alive": 60,
        "topic_alias_maximum": 3,
        "maximum_session_expiry": 1209600,
        "sys_interval_seconds": 3,
    }
    assert tree["limits"] == {"memory_high_bytes": 50_000_000 + (128 << 20)}
    assert tree["auth"]["client_id_pattern"] == r"^a\."
    assert tree["storage"] == {"mode": "disk", "data": "/var/lib/mosquitto/trivium"}
    keys = ("max_queued_messages", "message_size_limit", "memory_limit")
    kept = ("persistence", "persistence_location")
    assert [note.split(": ")[1] for note in notes] == [*keys, *kept]


def test_each_line_about_what_is_kept_says_that_messages_stay_behind(tmp_path: Path) -> None:
    text = "persistence true\npersistence_location /var/lib/\npersistence_file store.db\n"
    _, notes = converted(tmp_path, text)
    assert [note.split(": ")[1] for note in notes] == [
        "persistence",
        "persistence_location",
        "persistence_file",
    ]
    assert all("retained messages" in note and "sessions" in note for note in notes)
    # There is nothing to be left behind.
    assert converted(tmp_path, "persistence false\n")[1] == []


def test_a_listener_whose_mount_point_cannot_be_is_left_out(tmp_path: Path) -> None:
    odd = "listener 1883 127.0.0.1\nmount_point in\n"
    tree, notes = converted(tmp_path, f"{odd}listener 1884 127.0.0.1\n")
    assert [table["address"] for table in tree["listeners"]] == ["127.0.0.1:1884"]
    assert notes == [
        "mosquitto.conf:2: mount_point: a mount point ends with a /: the listener is left out"
    ]
    with pytest.raises(ConfigError, match="no listener is left"):
        converted(tmp_path, odd)


def test_each_line_without_a_counterpart_is_named(tmp_path: Path) -> None:
    text = (
        "# nothing\n\nautosave_interval 5\nunheard_of 1\nconnection b\naddress h\ntopic # in\n"
        "queue_qos0_messages true\nmemory_limit 0\n"
    )
    _, notes = converted(tmp_path, text)
    assert [note.split(": ")[:2] for note in notes] == [
        ["mosquitto.conf:3", "autosave_interval"],
        ["mosquitto.conf:4", "unheard_of"],
        ["mosquitto.conf:5", "connection"],
        ["mosquitto.conf:6", "address"],
        ["mosquitto.conf:7", "topic"],
        ["mosquitto.conf:8", "queue_qos0_messages"],
        ["mosquitto.conf:9", "memory_limit"],
    ]
    assert notes[1].endswith(": no counterpart")


def test_included_files_come_in_mosquittos_order(tmp_path: Path) -> None:
    inner = tmp_path / "conf.d"
    inner.mkdir()
    for name, port in (("b", 2), ("A", 1), ("a", 3), ("B", 4)):
        (inner / f"{name}.conf").write_text(f"listener {port} 127.0.0.1\n")
    (inner / "other").write_text("listener 5\n")
    tree, _ = converted(tmp_path, f"listener 9 127.0.0.1\ninclude_dir {inner}\n")
    ports = [table["address"].rpartition(":")[2] for table in tree["listeners"]]
    assert ports == ["9", "1", "3", "4", "2"]


@pytest.mark.parametrize(
    "line",
    [
        "listener",
        "listener x",
        "listener 0",
        "port x",
        "allow_anonymous perhaps",
        "persistent_client_expiration 2",
        "max_connections many",
    ],
)
def test_a_line_that_is_wrong_is_named_with_its_place(line: str, tmp_path: Path) -> None:
    file = tmp_path / "mosquitto.conf"
    file.write_text(f"\n{line}\n")
    done = run("import", "mosquitto", str(file))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"trivium import: {file}:2: {line.split()[0]}: ")


def test_what_comes_out_is_written_to_a_new_file_only(tmp_path: Path) -> None:
    file, made = tmp_path / "mosquitto.conf", tmp_path / "made"
    file.write_text("listener 1883 127.0.0.1\nuser mosquitto\n")
    arguments = ["import", "mosquitto", str(file), "--output", str(made)]
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"{file}:2: user: ")
    assert tomllib.loads(made.read_text())["listeners"][0]["address"] == "127.0.0.1:1883"
    again = run(*arguments)
    assert (again.returncode, again.stderr) == (1, f"trivium import: {made}: File exists\n")
    none = run("import", "mosquitto", str(tmp_path / "none"))
    assert none.returncode == 1


def test_a_configuration_that_no_broker_would_take_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "mosquitto.conf"
    file.write_text("listener 70000\n")
    done = run("import", "mosquitto", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("trivium import: [[listeners]]")


def test_another_broker_is_one_line_and_exit_2(tmp_path: Path) -> None:
    done = run("import", "rocket", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "'rocket' is not one of mosquitto" in done.stderr


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mosquitto.conf"
    file.write_text(f"include_dir {tmp_path}/missing\n")
    with pytest.raises(
        ConfigError, match=r"mosquitto.conf:1: include_dir: .*missing is no directory"
    ):
        convert(file)


@pytest.mark.parametrize(
    "key", ["max_queued_messages", "max_inflight_messages", "message_size_limit"]
)
def test_no_limit_is_named_where_there_is_always_one(key: str, tmp_path: Path) -> None:
    file = tmp_path / "mosquitto.conf"
    file.write_text(f"listener 1883 127.0.0.1\n{key} 0\n")
    _, notes = convert(file)
    assert [note for note in notes if f":2: {key}: 0 is no limit there" in note]
