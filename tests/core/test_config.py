"""The configuration classes and how file, environment and options become one `Config`."""

import dataclasses
import json
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from trivium.cli.configuration import load
from trivium.config import (
    CertificateConfig,
    Config,
    ControlConfig,
    Fsync,
    LimitsConfig,
    Listen,
    ListenerConfig,
    PolicyConfig,
    RoleConfig,
    StorageConfig,
    UserConfig,
    is_loopback,
)
from trivium.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("1883", "127.0.0.1", 1883, "127.0.0.1:1883"),
        ("0", "127.0.0.1", 0, "127.0.0.1:0"),
        ("0.0.0.0:65535", "0.0.0.0", 65535, "0.0.0.0:65535"),
        ("[::1]:5672", "::1", 5672, "[::1]:5672"),
        ("[fe80::1%eth0]:5672", "fe80::1%eth0", 5672, "[fe80::1%eth0]:5672"),
        ("broker.example:1", "broker.example", 1, "broker.example:1"),
    ],
)
def test_listen_reads_host_and_port(text: str, host: str, port: int, shown: str) -> None:
    listen = Listen.parse(text)
    assert (listen.host, listen.port, listen.enabled) == (host, port, True)
    assert str(listen) == shown


def test_listen_off_disables() -> None:
    assert not Listen.parse("off").enabled
    assert str(Listen.parse("off")) == "off"


@pytest.mark.parametrize(
    "text",
    ["", "OFF", "-1", "65536", "999999", "::1:5672", "[::1]", "[::g]:1", "[127.0.0.1]:1", ":1883",
     "a b:1", "host:", "1883 ", "tcp://host:1", "host:1:2"],
)  # fmt: skip
def test_listen_refuses_what_is_not_an_address(text: str) -> None:
    with pytest.raises(ConfigError):
        Listen.parse(text)


def test_localhost_means_both_loopback_addresses() -> None:
    listen = Listen.parse("localhost:1883")
    assert listen.hosts == ("127.0.0.1", "::1")
    assert listen.is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("::ffff:127.0.0.1", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False)],
)  # fmt: skip
def test_loopback_addresses(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("text", ["always", "never", "every_n:10", "interval:200"])
def test_fsync_reads_and_shows_each_policy(text: str) -> None:
    assert str(Fsync.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "sometimes", "every_n", "every_n:0", "interval:-1", "never:1"]
)
def test_fsync_refuses_other_text(text: str) -> None:
    with pytest.raises(ConfigError):
        Fsync.parse(text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"listen": {"mqtt": "1883"}}, "listen['mqtt'] is a Listen, not '1883'"),
        ({"listeners": ("mqtt",)}, "one of listeners is a ListenerConfig, not 'mqtt'"),
        ({"storage": "memory"}, "storage is a StorageConfig, not 'memory'"),
        (
            {"listen": {"bogus": Listen(0)}},
            "[listen] bogus: tls needs the files certificate and key (it means bogu with TLS)",
        ),
    ],
)
def test_what_a_program_makes_of_wrong_parts_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**fields)
    assert str(caught.value) == text


def test_classes_check_themselves_without_a_file() -> None:
    with pytest.raises(ConfigError, match="mode 'ram' is neither disk nor memory"):
        StorageConfig(mode="ram")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        Listen(70000)
    with pytest.raises(ConfigError):
        Fsync("interval")
    with pytest.raises(ConfigError):
        LimitsConfig(max_connections=0)
    with pytest.raises(ConfigError):
        UserConfig(password="$nonsense")


def test_defaults_are_loopback_disk_and_fsync_always() -> None:
    config = load()
    # In a program nothing is listened to that it does not say.
    assert config == dataclasses.replace(Config(), control=ControlConfig())
    assert {name: str(listen) for name, listen in config.listen.items()} == {
        "mqtt": "127.0.0.1:1883",
        "amqp": "127.0.0.1:5672",
        "native": "127.0.0.1:7650",
        "http": "127.0.0.1:15672",
    }
    assert (config.storage.mode, str(config.storage.data)) == ("disk", "trivium-data")
    assert str(config.storage.fsync) == "always"
    assert config.auth.anonymous == "loopback"


def write(folder: Path, text: str) -> Path:
    file = folder / "trivium.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_file_environment_options_override_in_that_order(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [listen]
        mqtt = 1
        amqp = "0.0.0.0:1"
        native = "off"
        [limits]
        max_connections = 7
        handshake_seconds = 3
        """,
    )
    environment = {"TRIVIUM_LISTEN__MQTT": "2", "TRIVIUM_LISTEN__AMQP": "2", "TRIVIUM_PURE": "1"}
    config = load(file, environment, {"listen": {"amqp": "3"}})
    assert [config.listen[name].port for name in ("mqtt", "amqp", "http")] == [2, 3, 15672]
    assert not config.listen["native"].enabled
    assert config.limits == LimitsConfig(max_connections=7, handshake_seconds=3.0)


def test_every_key_has_an_environment_variable() -> None:
    values = {
        "listen": {"mqtt": "5", "amqp": "off", "native": "[::1]:5", "http": "6"},
        "storage": {
            "mode": "memory",
            "data": "/d",
            "fsync": "every_n:3",
            "compression": "zstd",
            "key_file": "/k",
            "key_env": "key",
        },
        "limits": {
            "max_connections": "9",
            "max_connections_per_address": "9",
            "connection_rate_per_address": "9",
            "max_handshakes": "9",
            "max_unauthenticated_bytes": "9",
            "max_message_bytes": "9",
            "handshake_seconds": "0.5",
            "turn_milliseconds": "0.5",
            "consumer_timeout_seconds": "0.5",
            "memory_high_fraction": "0.5",
            "memory_high_bytes": "9",
            "disk_free_bytes": "9",
            "live_output_bytes": "9",
            "live_burst_bytes": "99999999",
            "user": '{"max-queues": 9}',
            "vhost": '{"max-queues": 9}',
        },
        "auth": {
            "anonymous": "never",
            "guest": "false",
            "methods": '["internal"]',
            "password_files": '["/p"]',
            "anonymous_permissions": '{"/": {"read": "x"}}',
            "anonymous_tags": '["monitoring"]',
            "anonymous_limits": '{"max-queues": 9}',
            "acl_file": "/dev/null",
            "client_id_pattern": "^{username}$",
            "refused_publish": "disconnect",
            "log_denials": "true",
            "scram": "true",
            "scram_iterations": "4096",
        },
        "jwt": {
            "key_file": "/j",
            "jwks_file": "/s",
            "jwks_url": "http://k/",
            "refresh_seconds": "0.5",
            "timeout_seconds": "0.5",
            "algorithms": '["RS256"]',
            "audience": '["a"]',
            "issuer": "i",
            "leeway_seconds": "0.5",
            "user_claim": "u",
            "tags_claim": "t",
            "tag_prefix": "p",
            "scopes_claim": "sc",
            "scope_prefix": "sp.",
            "scope_aliases": '{"a": ["sp.read:*/*"]}',
            "vhost_claim": "v",
        },
        "http_auth": {
            "url": "http://a/",
            "answer": "status",
            "timeout_seconds": "0.5",
            "cache_seconds": "0.5",
            "headers": '{"x": "y"}',
        },
        "log": {"level": "debug", "format": "json", "slow_turn_ms": "9.5"},
        "metrics": {"per_object": "true", "max_series": "9"},
        "tracing": {
            "endpoint": "http://localhost:4318",
            "sample_ratio": "0.5",
            "parent_based": "false",
            "service_name": "farm",
            "headers": '{"x": "y"}',
            "timeout_seconds": "0.5",
            "max_spans": "9",
        },
        "tls": {
            "certificate": "/c",
            "key": "/k",
            "ca": "/a",
            "crl": "/l",
            "client_certificates": "required",
            "user_from": "san-dns",
            "minimum_version": "1.3",
            "ciphers": "ECDHE+AESGCM",
            "certificates": '[{"certificate": "/c2", "key": "/k2", "hosts": ["b.example"]}]',
        },
    }
    environment = {
        f"TRIVIUM_{section}__{key}".upper(): value
        for section, keys in values.items()
        for key, value in keys.items()
    }
    environment["TRIVIUM_USERS__Ann_B__c__PASSWORD"] = "secret"
    config = load(environment=environment)
    for section, keys in values.items():
        content = getattr(config, section)
        names = content if isinstance(content, Mapping) else content.__dataclass_fields__
        assert set(keys) == set(names), f"a key of [{section}] is not in this test"
        for key, text in keys.items():
            value = content[key] if isinstance(content, Mapping) else getattr(content, key)
            assert value != getattr(getattr(Config(), section), key, None)
            if key == "certificates":
                other = CertificateConfig(certificate="/c2", key="/k2", hosts=("b.example",))
                assert value == (other,)
            elif key == "ciphers":
                assert value == text
            elif isinstance(value, (tuple, dict)):
                assert json.dumps(value) == text
            else:
                assert str(value).lower().removeprefix("127.0.0.1:") == text
    assert config.users == {"Ann_B__c": UserConfig(password="secret")}


def test_entries_of_listen_come_first_and_each_listener_has_a_name(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [listen]
        native = "off"
        [[listeners]]
        protocol = "amqp"
        address = "unix:/run/amqp.sock"
        mode = "0600"
        owner = "nobody:nogroup"
        [[listeners]]
        protocol = "amqp"
        address = "0.0.0.0:5672"
        anonymous = "never"
        max_connections = 5
        [[listeners]]
        name = "inside"
        protocol = "amqp"
        address = 5673
        """,
    )
    found = load(file, {"TRIVIUM_LISTENERS__inside__MAX_CONNECTIONS": "3"}).all_listeners()
    assert [(one.name, one.protocol, one.address) for one in found] == [
        ("mqtt", "mqtt", "127.0.0.1:1883"),
        ("http", "http", "127.0.0.1:15672"),
        ("amqp", "amqp", "unix:/run/amqp.sock"),
        ("amqp2", "amqp", "0.0.0.0:5672"),
        ("inside", "amqp", "5673"),
        ("control", "http", "unix:trivium-data/control.sock"),
    ]
    assert (found[2].mode, found[2].owner, found[2].is_loopback) == ("0600", "nobody:nogroup", True)
    assert (found[3].anonymous, found[3].max_connections, found[3].is_loopback) == (
        "never",
        5,
        False,
    )
    assert (found[4].max_connections, found[4].is_loopback) == (3, True)


def test_a_listener_may_be_in_the_environment_alone() -> None:
    environment = {
        "TRIVIUM_LISTENERS__Inside__PROTOCOL": "native",
        "TRIVIUM_LISTENERS__Inside__ADDRESS": "127.0.0.1:1",
    }
    (found,) = load(environment=environment).listeners
    assert (found.name, found.protocol, found.address) == ("Inside", "native", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listeners = 1", "listeners must be a list of tables"),
        ("listeners = [1]", "listeners must be a list of tables"),
        ("[[listeners]]\nprotocol = 'mqtt'", "[[listeners]] [0] needs the key 'address'"),
        ("[[listeners]]\nprotocol = 'smtp'", "[[listeners]] [0]: there is no protocol 'smtp'"),
        ("[[listeners]]\nadress = '1'", "[[listeners]] [0] has no key 'adress'"),
        ("[[listeners]]\nname = 'a'\nprotocol = 'mqtt'\naddress = 'off'", "] a: address must not"),
        ("[[listeners]]\nprotocol = 'mqtt'\naddress = 'unix:'", "has no path"),
        ("[[listeners]]\nprotocol='mqtt'\naddress='unix:/s'\nmode='9'", "'9' is not octal"),
        ("[[listeners]]\nprotocol='mqtt'\naddress='1'\nmode='0660'", "mode is for Unix sockets"),
        ("[[listeners]]\nname='a b'\nprotocol='mqtt'\naddress='1'", "'a b' is not a name"),
        ("[[listeners]]\nprotocol='mqtt'\naddress='1'\nvirtual_host='*'", "virtual_host: a virt"),
        ("[[listeners]]\nname='a'\n[[listeners]]\nname='a'", "two of [[listeners]] have the name"),
        ("[[listeners]]\nname='amqp'\nprotocol='mqtt'\naddress='1'", "the name 'amqp'"),
        ("[[listeners]]\nprotocol='amqp'\naddress='1'\nmount_point='a/'", "mount_point is for the"),
        ("[[listeners]]\nprotocol='mqtt'\naddress='1'\nmethods=['certificate']", "needs tls with"),
        (
            "[[listeners]]\nprotocol='mqtt'\naddress='1'\nmethods=['jwt','certificate']\n"
            "tls={certificate='c',key='k',ca='a',client_certificates='off'}",
            "methods: 'certificate' needs tls with client certificates",
        ),
        ("[[listeners]]\nprotocol='mqtt'\naddress='1'\nowner='me'", "owner is for Unix sockets"),
        (
            "[[listeners]]\nprotocol='mqtt'\naddress='1'\nwebsocket_origins=['*']",
            "websocket_origins needs websocket",
        ),
        ("[[listeners]]\nanonymous='no'", "anonymous = 'no': not one of"),
        ("[[listeners]]\n[listeners.tls]\ncert='no'", "tls has no key 'cert'"),
        ("[[listeners]]\nmethods='no'", "methods = 'no'"),
        ("[listen]\nsmtps = 1", "[listen] has no protocol 'smtps'"),
        ("[tls]\nuser_from = 'name'", "[tls] user_from must begin with one of cn, san-dns"),
        ("[tls]\nuser_from = 'cn:('", "is not a regular expression"),
        ("[tls]\nuser_from = 'cn:a'", "must have a group"),
        ("[tls]\nminimum_version = '1.1'", "not one of 1.2, 1.3"),
    ],
)
def test_a_wrong_listener_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_user_merges_from_file_and_environment(tmp_path: Path) -> None:
    file = write(tmp_path, '[users.ann]\npassword = "file"\n[users.bob]\npassword = "file"\n')
    config = load(file, {"TRIVIUM_USERS__ann__PASSWORD": "environment"})
    assert config.users["ann"].password == "environment"
    assert config.users["bob"].password == "file"
    assert "environment" not in repr(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[storge]\n", "unknown section [storge]"),
        ("[users.a]\npassword = 'p'\nvirtual_host = '*'\n", "[users.a] virtual_host: a virtual"),
        ("[policies.p]\npattern = 'q'\ndefinition = {}\nvhost = ''\n", "[policies.p] vhost: a"),
        ("storage = 1\n", "storage must be a section"),
        ("[storage]\nfsink = 1\n", "[storage] has no key 'fsink'"),
        ("[storage]\nfsync = 'often'\n", "[storage] fsync = 'often': 'often' is not always"),
        ("[storage]\nmode = 'tape'\n", "[storage] mode = 'tape': not one of disk, memory"),
        ("[storage]\ndata = 5\n", "[storage] data = 5: must be text"),
        ("[storage]\ndata = ''\n", "[storage] data = '': not a path"),
        ('[storage]\ndata = "a\\u0000b"\n', "not a path"),
        ("[limits]\nmax_connections = 'many'\n", "max_connections = 'many': not a whole number"),
        ("[limits]\nmax_connections = 1.5\n", "max_connections = 1.5: not a whole number"),
        ("[limits]\nmax_connections = true\n", "must not be true or false"),
        ("[limits]\nmax_connections = -1\n", "[limits] max_connections must be greater than 0"),
        ("[limits]\nhandshake_seconds = nan\n", "handshake_seconds = nan: not a number"),
        ("[limits]\nhandshake_seconds = '1s'\n", "could not convert"),
        ("[auth]\nguest = 'yes'\n", "[auth] guest = 'yes': not true or false"),
        ("[listen]\nsmtp = 25\n", "[listen] has no protocol 'smtp'"),
        ("[listen]\nmqtt = 99999\n", "port 99999 is not in 0..65535"),
        ("[listen]\nmqtt = [1]\n", "[listen] mqtt = [1]: must be text"),
        ("[users]\nann = 'x'\n", "users.ann must be a section"),
        ("[users.ann]\n", "[users.ann] needs the key 'password'"),
        ("[users.a]\npassword = 'p'\ntags = ['admin']\n", "[users.a] tags: 'admin' is not one of"),
        ("[auth]\nanonymous_tags = ['x']\n", "[auth] anonymous_tags: 'x' is not one of admin"),
        ("[jwt]\njwks_url = 'ftp://x'\n", "[jwt] jwks_url does not begin with http:// or https://"),
        ("[users.ann]\npasword = 'x'\n", "[users.ann] has no key 'pasword'"),
        ("[users.ann]\npassword = '$x'\n", "[users.ann] password: begins with $"),
        ("[listen\n", "not valid TOML"),
    ],
)
def test_wrong_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(write(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value) or message.startswith("[users.ann] needs")


def test_a_role_of_a_user_is_one_of_the_configuration(tmp_path: Path) -> None:
    text = "[users.a]\npassword = 'p'\nroles = ['reader']\n"
    with pytest.raises(ConfigError, match=r"^\[users\.a\] roles: there is no role 'reader'$"):
        load(write(tmp_path, text))
    assert load(write(tmp_path, text + "[roles.reader]\n")).users["a"].roles == ("reader",)


def test_an_empty_variable_is_no_data_directory() -> None:
    with pytest.raises(ConfigError, match=r"^TRIVIUM_STORAGE__DATA: .* not a path"):
        load(environment={"TRIVIUM_STORAGE__DATA": ""})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TRIVIUM_STORAGE__NOTHING", "TRIVIUM_STORAGE__NOTHING: [storage] has no key 'nothing'"),
        ("TRIVIUM_NOTHING__FSYNC", "unknown section [nothing]"),
        ("TRIVIUM_STORAGE__FSYNC", "[storage] fsync = 'x'"),
        ("TRIVIUM_STORAGE__FSYNC__X", "[storage] fsync = {'x': 'x'}"),
    ],
)
def test_wrong_environment_names_the_variable(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(environment={name: "x"})
    assert str(caught.value).startswith(name)


POLICY = """
[policies.short_queues]
pattern = '^q\\.'
priority = 2
[policies.short_queues.definition]
max-length = 5
overflow = "reject-publish"
"""


def test_policies_from_file_and_environment(tmp_path: Path) -> None:
    environment = {
        "TRIVIUM_POLICIES__short_queues__PRIORITY": "7",
        "TRIVIUM_POLICIES__Other__PATTERN": "x",
        "TRIVIUM_POLICIES__Other__DEFINITION": '{"message-ttl": 10}',
    }
    policies = load(write(tmp_path, POLICY), environment).policies
    assert policies == {
        "short_queues": PolicyConfig(
            pattern=r"^q\.",
            definition={"max-length": 5, "overflow": "reject-publish"},
            priority=7,
        ),
        "Other": PolicyConfig(pattern="x", definition={"message-ttl": 10}),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[policies.p]\npattern = 'q'", "[policies.p] needs the key 'definition'"),
        ("[policies.p]\ndefinition = 5", "[policies.p] definition = 5: not a table"),
        ("[policies.p]\ndefinition = '['", "[policies.p] definition = '['"),
        ("[policies.p]\napply_to = 'cats'", "[policies.p] apply_to = 'cats'"),
        (
            "[policies.p]\npattern = '('\ndefinition = { max-length = 5 }",
            "[policies.p]: policy 'p' has a wrong pattern",
        ),
    ],
)
def test_wrong_policies_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        load(Path("nowhere.toml"))


def test_third_party_protocol_may_listen() -> None:
    options: dict[str, dict[str, Any]] = {"listen": {"stomp": "0"}}
    assert load(options=options, protocols=frozenset({"stomp"})).listen["stomp"].port == 0


def test_configuration_reference_has_every_key() -> None:
    text = Path(__file__).parents[2].joinpath("docs/configuration.md").read_text(encoding="utf-8")
    documented: set[tuple[str, str]] = set()
    section = ""
    for row in re.findall(r"^\|(.*)\|$", text, flags=re.MULTILINE):
        cells = [cell.strip(" `") for cell in row.split("|")]
        section = cells[0].strip("[]") or section
        documented.add((section.split(".")[0], cells[1]))
    config = Config(
        users={"NAME": UserConfig(password="x")},
        roles={"NAME": RoleConfig()},
        policies={"NAME": PolicyConfig(pattern="q", definition={"max-length": 1})},
    )
    keys: set[tuple[str, str]] = set()
    of_protocols = {entry.name: entry.load() for entry in entry_points(group="trivium.options")}
    assert set(of_protocols) == {"mqtt", "amqp", "native"}
    for name in {*Config.__dataclass_fields__, *of_protocols} - {"protocols"}:
        content = of_protocols[name] if name in of_protocols else getattr(config, name)
        if name in ("users", "policies", "roles"):
            content = content["NAME"]
        if name == "listeners":
            content = ListenerConfig
        names = content if isinstance(content, Mapping) else content.__dataclass_fields__
        keys |= {(name, key) for key in names}
    assert documented - {("section", "key"), ("---", "---")} == keys


@dataclasses.dataclass(frozen=True)
class _Own:
    """What a protocol from elsewhere has to set."""

    most: int = 5
    least: int | None = None

    def __post_init__(self) -> None:
        if self.most < 0:
            raise ConfigError("most must not be negative")


def _with_own(text: str, tmp_path: Path, environment: Mapping[str, str] | None = None) -> Config:
    file = tmp_path / "trivium.toml"
    file.write_text(text)
    return load(file, environment, None, frozenset({"own"}), {"own": _Own})


def test_a_protocol_has_a_section_of_its_own(tmp_path: Path) -> None:
    environment = {"TRIVIUM_OWN__LEAST": "7"}
    assert _with_own("[own]\nmost = 3", tmp_path, environment).protocols == {"own": _Own(3, 7)}
    assert _with_own("", tmp_path).protocols == {}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[own]\nother = 1", "[own] has no key 'other'"),
        ("[own]\nmost = -1", "[own] most must not be negative"),
        ("[own]\nleast = 'x'", "[own] least = 'x': not a whole number"),
        ("[another]\nmost = 1", "unknown section [another]"),
        ("[protocols]\nown = 1", "unknown section [protocols]"),
    ],
)
def test_a_wrong_key_of_a_protocol_is_told(text: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)):
        _with_own(text, tmp_path)


def test_a_listener_has_options_of_its_own(tmp_path: Path) -> None:
    listener_of = "[[listeners]]\nname = 'a'\nprotocol = 'own'\naddress = '1'\n"
    text = f"[own]\nmost = 3\nleast = 1\n{listener_of}"
    environment = {"TRIVIUM_LISTENERS__a__OPTIONS": '{"least": 2}'}
    (listener,) = _with_own(f"{text}options.most = 4", tmp_path, environment).listeners
    assert listener.options == _Own(4, 2)
    (listener,) = _with_own(text, tmp_path).listeners
    assert listener.options is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("protocol = 'own'\noptions.other = 1", "a options has no key 'other'"),
        ("protocol = 'own'\noptions.most = -1", "a options most must not be negative"),
        ("protocol = 'own'\noptions = 1", "a options = 1: not a table"),
        ("options.most = 1", "a has no key 'options'"),
    ],
)
def test_wrong_options_of_a_listener_are_told(text: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)):
        _with_own(f"[[listeners]]\nname = 'a'\naddress = '1'\n{text}", tmp_path)
