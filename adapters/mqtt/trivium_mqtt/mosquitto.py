"""`trivium import mosquitto`: a configuration of Mosquitto as one of Trivium's.

Each line of it that has no counterpart is named, with what is to be known about it. Keys and their
meaning: mosquitto.conf(5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trivium.errors import ConfigError
from trivium.listen import WEBSOCKET_PATH, join_address
from trivium.security.password_files import read_password_file

#: What everybody may do at Mosquitto while there is no `acl_file`.
_EVERYTHING: Final = ("topic readwrite #", "topic read $SYS/#")
_ALL: Final = "0.0.0.0"  # noqa: S104 - as Mosquitto listens
#: What the process has without anything in it, with room: 63 MB with all that it loads.
_OWN_MEMORY: Final = 128 << 20
_SECONDS: Final = {"h": 3600, "d": 86400, "w": 604800, "m": 2592000, "y": 31536000}


@dataclass
class _Line:
    file: Path
    number: int
    key: str
    value: str

    @property
    def place(self) -> str:
        # Only what may be a key is shown: it may be another file, with secrets.
        may_be = self.key in _OTHERWISE or re.fullmatch("[a-z_]+", self.key)
        return f"{self.file}:{self.number}: {self.key if may_be else '...'}"


@dataclass
class _Listener:
    """One `listener`, or the default one, and what stands below it."""

    line: _Line | None
    port: int = 1883
    host: str = ""
    is_websocket: bool = False
    max_connections: int = 0
    mount_point: str = ""
    anonymous: bool | None = None
    password_file: str = ""
    acl_file: str = ""
    tls: dict[str, str] = field(default_factory=dict)
    requires_certificate: bool = False
    user_is_owner: bool = False
    is_left_out: bool = False


def convert(file: Path) -> tuple[str, list[str]]:
    """The text of a configuration, and a note on each line that is not in it.

    Raises:
        ConfigError: a line, or a file that it names, is wrong.
        OSError: a file cannot be read.
    """
    conversion = _Conversion()
    for line in _read(file):
        conversion.take(line)
    return conversion.text(file), [note for _, note in sorted(conversion.notes)]


def _read(file: Path) -> list[_Line]:
    """The lines that say something, those of `include_dir` at the place where it stands."""
    found: list[_Line] = []
    for line in _lines_of(file):
        if line.key != "include_dir":
            found.append(line)
            continue
        if not Path(line.value).is_dir():
            raise ConfigError(f"{line.place}: {line.value} is no directory")
        included = sorted(Path(line.value).glob("*.conf"), key=_order)
        found += [inner for path in included for inner in _lines_of(path)]
    return found


def _order(file: Path) -> list[tuple[str, bool]]:
    """Mosquitto's: by letter, the capital one first."""
    return [(letter.lower(), letter.islower()) for letter in file.name]


def _lines_of(file: Path) -> list[_Line]:
    try:
        lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8") from None
    return [
        _Line(file, number, *_split(text))
        for number, text in lines
        if text.strip() and not text.lstrip().startswith("#")
    ]


def _split(text: str) -> tuple[str, str]:
    key, _, value = text.strip().partition(" ")
    return key, value.strip()


class _Conversion:
    """Takes one line after the other."""

    def __init__(self) -> None:
        #: each with the number of its line among all
        self.notes: list[tuple[int, str]] = []
        self._lines: dict[str, int] = {}
        self._listeners = [_Listener(None)]
        self._is_default_used = False
        self._per_listener = False
        self._common = _Listener(None)
        self._tree: dict[str, dict[str, Any]] = {}
        self._bridge = ""

    def take(self, line: _Line) -> None:
        """Convert one line. Raises ConfigError."""
        self._lines[line.place] = len(self._lines)
        if line.key in ("connection", "address", "addresses") or line.key.startswith("bridge_"):
            self._bridge = line.value if line.key == "connection" else self._bridge
            self._note(line, "there are no bridges: a client that subscribes and publishes does it")
        elif line.key in _IN_BRIDGES and self._bridge:
            self._note(line, f"of the bridge {self._bridge}")
        elif line.key in _OF_LISTENERS:
            _OF_LISTENERS[line.key](self, line)
        elif line.key in _OF_BROKER:
            section, key, of = _OF_BROKER[line.key]
            value = of(line)
            if value is None:
                self._note(
                    line, f"0 is no limit there: here the default of [{section}] {key} holds"
                )
            else:
                self._tree.setdefault(section, {})[key] = value
                if line.key in _ABOUT and value != "memory":
                    self._note(line, _ABOUT[line.key])
        elif line.key in _OTHERWISE:
            self._note(line, _OTHERWISE[line.key])
        else:
            self._note(line, "no counterpart")

    def _note(self, line: _Line, text: str) -> None:
        self.notes.append((self._lines[line.place], f"{line.place}: {text}"))

    # What a listener has.

    def listener(self, line: _Line) -> None:
        """`listener PORT [HOST | PATH]`."""
        words = line.value.split()
        if not words or not words[0].isdecimal() or len(words) > 2:
            raise ConfigError(f"{line.place}: needs a port")
        host = words[1] if len(words) == 2 else ""
        if words[0] == "0" and not host.startswith("/"):
            raise ConfigError(f"{line.place}: port 0 is for the path of a Unix socket")
        self._listeners.append(_Listener(line, int(words[0]), host))

    def port(self, line: _Line) -> None:
        """Of the default listener."""
        self._is_default_used = True
        self._listeners[0].line = line
        self._listeners[0].port = _number(line)

    def bind_address(self, line: _Line) -> None:
        """Of the default listener."""
        self._is_default_used = True
        self._listeners[0].host = line.value

    def protocol(self, line: _Line) -> None:
        """What is spoken there."""
        if line.value == "websockets":
            self._listeners[-1].is_websocket = True
            self._note(line, f"WebSockets are at the path {WEBSOCKET_PATH}, and nowhere else")
        elif line.value != "mqtt":
            self._note(line, "the listener is taken for one of mqtt")

    def max_connections(self, line: _Line) -> None:
        """Of the listener."""
        self._listeners[-1].max_connections = max(_number(line), 0)

    def mount_point(self, line: _Line) -> None:
        """Of the listener, which is not made where it cannot have it: it would be more open."""
        if line.value.endswith("/"):
            self._listeners[-1].mount_point = line.value
        else:
            self._listeners[-1].is_left_out = True
            self._note(line, "a mount point ends with a /: the listener is left out")

    def per_listener_settings(self, line: _Line) -> None:
        """Whether users and permissions are those of one listener."""
        self._per_listener = _truth(line)

    def _scope(self) -> _Listener:
        return self._listeners[-1] if self._per_listener else self._common

    def allow_anonymous(self, line: _Line) -> None:
        """Of all listeners, or of one."""
        self._scope().anonymous = _truth(line)

    def password_file(self, line: _Line) -> None:
        """Of all listeners, or of one."""
        self._scope().password_file = line.value

    def acl_file(self, line: _Line) -> None:
        """Of all listeners, or of one."""
        self._scope().acl_file = line.value

    def tls(self, line: _Line) -> None:
        """A file of the listener, or its ciphers."""
        self._listeners[-1].tls[_TLS[line.key]] = line.value

    def tls_version(self, line: _Line) -> None:
        """The lowest one."""
        if line.value in ("tlsv1.2", "tlsv1.3"):
            self._listeners[-1].tls["minimum_version"] = line.value.removeprefix("tlsv")
        else:
            self._note(line, "1.2 is the lowest that there is")

    def require_certificate(self, line: _Line) -> None:
        """Whether clients must show one."""
        self._listeners[-1].requires_certificate = _truth(line)

    def use_identity_as_username(self, line: _Line) -> None:
        """Whether its common name is the user."""
        self._listeners[-1].user_is_owner = _truth(line)

    # What comes of them.

    def text(self, source: Path) -> str:
        """The configuration. Raises ConfigError, OSError."""
        listeners = self._listeners if self._is_default_used else self._listeners[1:]
        if not listeners and self._listeners[0].tls:
            listeners = self._listeners
        left = [listener for listener in listeners if not listener.is_left_out]
        if listeners and not left:
            raise ConfigError("no listener is left: a mount point ends with a /")
        listeners = left
        tables = [self._listener(listener) for listener in listeners]
        self._authenticate(listeners or [self._listeners[0]], tables)
        if not listeners and self._common.anonymous is not None:
            self._tree["auth"]["anonymous"] = "loopback" if self._common.anonymous else "never"
        lines = [f"# Of {source.name}, by `trivium import mosquitto`."]
        for section, values in self._tree.items():
            names = [key for key, value in values.items() if isinstance(value, Mapping)]
            lines += ["", f"[{section}]"] if len(names) < len(values) else []
            lines += [f"{key} = {_toml(values[key])}" for key in values if key not in names]
            for name in names:
                lines += ["", f"[{section}.{json.dumps(name)}]"]
                lines += [f"{key} = {_toml(value)}" for key, value in values[name].items()]
        for table in tables:
            lines += ["", "[[listeners]]"]
            lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
        return "\n".join(lines) + "\n"

    def _listener(self, found: _Listener) -> dict[str, Any]:
        is_unix = found.host.startswith("/")
        if not found.host and found.line is not None:
            self._note(found.line, "at all IPv4 addresses; IPv6 is a listener of its own ([::])")
        host = found.host or _ALL
        table: dict[str, Any] = {"protocol": "mqtt"}
        table["address"] = f"unix:{host}" if is_unix else join_address(host, found.port)
        if found.is_websocket:
            table["websocket"] = WEBSOCKET_PATH
        if found.max_connections:
            table["max_connections"] = found.max_connections
        if found.mount_point:
            table["mount_point"] = found.mount_point
        if "certificate" in found.tls:
            needs = "required" if found.requires_certificate else "off"
            table["tls"] = {**found.tls, "client_certificates": needs}
        return table

    def _authenticate(self, listeners: list[_Listener], tables: list[dict[str, Any]]) -> None:
        scopes = listeners if self._per_listener else [self._common] * len(listeners)
        files = sorted({scope.password_file for scope in scopes if scope.password_file})
        acl_files = sorted({scope.acl_file for scope in scopes})
        auth = self._tree.setdefault("auth", {})
        auth["guest"] = False
        if len(acl_files) > 1 or len(files) > 1:
            raise ConfigError(
                "per_listener_settings: users and permissions are those of all listeners here;"
                f" make one file of each: {', '.join(filter(None, files + acl_files))}"
            )
        if acl_files[0]:
            auth["acl_file"] = acl_files[0]
            if files:
                auth["password_files"] = files
        elif files:
            users = read_password_file(Path(files[0]))
            self._tree["users"] = {
                user.name: {"password": user.stored, "acl": list(_EVERYTHING)} for user in users
            }
        for found, scope, table in zip(listeners, scopes, tables, strict=False):
            table["anonymous"] = "always" if scope.anonymous else "never"
            if found.user_is_owner:
                table["methods"] = ["certificate"]
                if found.line is not None and not acl_files[0]:
                    text = "owners of certificates may do nothing yet: see `trivium permission`"
                    self._note(found.line, text)
            elif not scope.password_file and files:
                # Who comes in there shows no password of a file.
                table["methods"] = ["api-key"]


def _number(line: _Line) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", line.value):
        raise ConfigError(f"{line.place}: {line.value!r} is not a number")
    return int(line.value)


def _positive(line: _Line) -> int | None:
    """None for 0, which is no limit there."""
    return _number(line) or None


def _truth(line: _Line) -> bool:
    if line.value.lower() not in ("true", "false"):
        raise ConfigError(f"{line.place}: {line.value!r} is not true or false")
    return line.value.lower() == "true"


def _seconds(line: _Line) -> int:
    """A duration such as `14d`."""
    match = re.fullmatch(r"([0-9]{1,9})([hdwmy])", line.value)
    if match is None:
        raise ConfigError(f"{line.place}: {line.value!r} is not a number of h, d, w, m or y")
    return int(match[1]) * _SECONDS[match[2]]


def _mode(line: _Line) -> str:
    return "disk" if _truth(line) else "memory"


def _directory(line: _Line) -> str:
    return str(Path(line.value) / "trivium")


def _memory(line: _Line) -> int | None:
    """What the broker may allocate there is what the whole process has here."""
    limit = _number(line)
    return limit + _OWN_MEMORY if limit > 0 else None


def _prefix(line: _Line) -> str:
    return f"^{re.escape(line.value)}"


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # A text of JSON is one of TOML, but for DEL.
    return json.dumps(value).replace("\x7f", "\\u007f")


#: Files of a listener, and its ciphers.
_TLS: Final = {
    "certfile": "certificate",
    "keyfile": "key",
    "cafile": "ca",
    "crlfile": "crl",
    "ciphers": "ciphers",
}

_OF_LISTENERS: Final[dict[str, Callable[[_Conversion, _Line], None]]] = {
    "acl_file": _Conversion.acl_file,
    "allow_anonymous": _Conversion.allow_anonymous,
    "bind_address": _Conversion.bind_address,
    "listener": _Conversion.listener,
    "max_connections": _Conversion.max_connections,
    "mount_point": _Conversion.mount_point,
    "password_file": _Conversion.password_file,
    "per_listener_settings": _Conversion.per_listener_settings,
    "port": _Conversion.port,
    "protocol": _Conversion.protocol,
    "require_certificate": _Conversion.require_certificate,
    "tls_version": _Conversion.tls_version,
    "use_identity_as_username": _Conversion.use_identity_as_username,
    **dict.fromkeys(_TLS, _Conversion.tls),
}

#: section and key here, and what the value becomes; None is the default
_OF_BROKER: Final[dict[str, tuple[str, str, Callable[[_Line], object]]]] = {
    "clientid_prefixes": ("auth", "client_id_pattern", _prefix),
    "max_inflight_messages": ("mqtt", "maximum_inflight", _positive),
    "max_keepalive": ("mqtt", "server_keep_alive", _number),
    "max_packet_size": ("mqtt", "maximum_packet_bytes", _number),
    "max_queued_bytes": ("mqtt", "maximum_queued_bytes", _number),
    "max_queued_messages": ("mqtt", "maximum_queued", _positive),
    "max_topic_alias": ("mqtt", "topic_alias_maximum", _number),
    "memory_limit": ("limits", "memory_high_bytes", _memory),
    "message_size_limit": ("limits", "max_message_bytes", _positive),
    "persistence": ("storage", "mode", _mode),
    "persistence_location": ("storage", "data", _directory),
    "persistent_client_expiration": ("mqtt", "maximum_session_expiry", _seconds),
    "sys_interval": ("mqtt", "sys_interval_seconds", _number),
}
_LEFT_BEHIND: Final = "retained messages, sessions and what waits for them stay with Mosquitto"
#: What is to be known about one of them all the same.
_ABOUT: Final = {
    "memory_limit": "[limits] memory_high_bytes is of the whole process: it has 128 MiB more, and"
    " beyond it publishers wait",
    "persistence": _LEFT_BEHIND,
    "persistence_location": f"a new directory there; {_LEFT_BEHIND}",
}

#: Keys that have another meaning behind `connection`.
_IN_BRIDGES: Final = frozenset(
    (
        "cleansession",
        "clientid",
        "idle_timeout",
        "keepalive_interval",
        "local_cleansession",
        "local_clientid",
        "local_password",
        "local_username",
        "notification_topic",
        "notifications",
        "notifications_local_only",
        "password",
        "remote_clientid",
        "remote_password",
        "remote_username",
        "restart_timeout",
        "round_robin",
        "start_type",
        "threshold",
        "topic",
        "try_private",
        "username",
    )
)

_NEEDLESS: Final = "not needed"
_SYNCED: Final = "not needed: what is acknowledged is on the disk"
_OTHERWISE: Final = {
    "allow_zero_length_clientid": "always so, as MQTT has it",
    "auth_plugin": "see [http_auth] and [jwt] for what plugins are used for",
    "autosave_interval": _SYNCED,
    "autosave_on_changes": _SYNCED,
    "capath": "put the authorities into one file, which `ca` names",
    "check_retain_source": "always so",
    "connection_messages": "see [log] and [audit]",
    "dhparamfile": _NEEDLESS,
    "http_dir": "no pages are served",
    "log_dest": "the log goes to standard error",
    "log_facility": "the log goes to standard error",
    "log_timestamp": "always so",
    "log_timestamp_format": "ISO 8601",
    "log_type": "see [log] level",
    "max_inflight_bytes": "see [mqtt] maximum_inflight",
    "max_qos": "all of them are served",
    "persistence_file": f"it is not read: {_LEFT_BEHIND}",
    "pid_file": "see the systemd unit",
    "plugin": "see [http_auth] and [jwt] for what plugins are used for",
    "psk_file": "there are no pre-shared keys: client certificates or passwords",
    "psk_hint": "there are no pre-shared keys: client certificates or passwords",
    "queue_qos0_messages": "QoS 0 is for those who are connected",
    "retain_available": "see the permissions of the users, and [limits] vhost",
    "set_tcp_nodelay": "always so",
    "socket_domain": "see the address of the listener",
    "upgrade_outgoing_qos": "never so, as MQTT has it",
    "use_subject_as_username": "see `user_from`: a common or alternative name can be the user",
    "use_username_as_clientid": "see [auth] client_id_pattern",
    "user": "start it as the user that it is to run as",
    "websockets_headers_size": "8 KiB",
    "websockets_log_level": "see [log] level",
}
