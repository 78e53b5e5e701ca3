"""Builds a `Config` for the command line: defaults, file, environment, options, later ones winning.

Names and types come from the classes in `trivium.config`; nothing is listed twice. Every mistake
raises `ConfigError` with one line that says where it is.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from trivium.config import (
    DEFAULT_PORTS,
    Config,
    ControlConfig,
    Fsync,
    Listen,
    ListenerConfig,
    TlsConfig,
    default_listen,
)
from trivium.errors import ConfigError
from trivium.listen import WEBSOCKET_PROTOCOL, is_secure

ENVIRONMENT_PREFIX: Final = "TRIVIUM_"


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    protocols: frozenset[str] = frozenset(DEFAULT_PORTS),
    options_of: Mapping[str, type] | None = None,
) -> Config:
    """Build a Config from a TOML file, environment variables and options, later ones winning.

    `options` maps sections to keys to values, as the file does. `protocols` are the names that may
    listen, and `options_of` has of some of them the class of what their own section sets. Raises
    ConfigError.
    """
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if file is not None:
        layers.append((str(file), _read_file(file)))
    layers += [(name, tree) for name, tree in read_environment(environment or {})]
    layers.append(("option", options or {}))

    sections: dict[str, dict[str, Any]] = {}
    types_of = typing.get_type_hints(Config)
    of_protocols = dict(options_of or {})
    types_of = {**of_protocols, **types_of}
    del types_of["protocols"]
    for source, tree in layers:
        for section, content in tree.items():
            if section not in types_of:
                raise ConfigError(f"{source}: unknown section [{section}]")
            if section == "listeners":
                known = sections.setdefault(section, {})
                _read_listeners(source, content, known, protocols, of_protocols)
                continue
            if not isinstance(content, Mapping):
                raise ConfigError(f"{source}: {section} must be a section, not a value")
            known = sections.setdefault(section, {})
            if typing.get_origin(types_of[section]) is Mapping:
                item_type = typing.get_args(types_of[section])[1]
                _read_named(source, section, item_type, content, known, protocols)
            else:
                _read_keys(source, f"[{section}]", types_of[section], content, known)
    listeners = sections.pop("listeners", {})
    for keys in listeners.values():
        if "options" in keys:
            kind = of_protocols[keys["protocol"]]
            keys["options"] = kind(**{**sections.get(keys["protocol"], {}), **keys["options"]})
    built = {name: _build(name, types_of[name], sections[name]) for name in sections}
    tls = built.get("tls", TlsConfig())
    built["listeners"] = tuple(_build_listener(name, keys, tls) for name, keys in listeners.items())
    # An address by default is for who says nothing of the protocol.
    told = {listener.protocol for listener in built["listeners"]}
    defaults = {name: listen for name, listen in default_listen().items() if name not in told}
    built["listen"] = {**defaults, **sections.get("listen", {})}
    built.setdefault("control", ControlConfig())
    own = {name: built.pop(name) for name in of_protocols if name in built}
    return Config(**built, protocols=own)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None


def read_environment(environment: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """One tree per `TRIVIUM_SECTION__KEY` (`TRIVIUM_USERS__name__PASSWORD`), ordered by name."""
    trees: list[tuple[str, dict[str, Any]]] = []
    for name in sorted(environment):
        path = name.removeprefix(ENVIRONMENT_PREFIX).split("__")
        if not name.startswith(ENVIRONMENT_PREFIX) or len(path) == 1:
            continue
        if path[0].lower() == "listeners" and len(path) >= 3:
            # The name of a listener keeps its case.
            path = [path[0].lower(), path[1], *(part.lower() for part in path[2:])]
        elif path[0].lower() in ("users", "policies", "roles") and len(path) >= 3:
            # The name of a user or policy may hold underscores and keeps its case.
            path = [path[0].lower(), "__".join(path[1:-1]), path[-1].lower()]
        else:
            path = [part.lower() for part in path]
        tree: Any = environment[name]
        for part in reversed(path):
            tree = {part: tree}
        trees.append((name, tree))
    return trees


def _read_named(
    source: str,
    section: str,
    item_type: Any,
    content: Mapping[str, Any],
    known: dict[str, Any],
    protocols: frozenset[str],
) -> None:
    """Merge a section whose keys are names: protocols (`listen`), users or policies."""
    for name, value in content.items():
        if section == "listen":
            if not _may_listen(name, protocols):
                raise ConfigError(f"{source}: [listen] has no protocol {name!r}")
            known[name] = _convert(source, f"[listen] {name}", Listen, value)
        else:
            if not isinstance(value, Mapping):
                raise ConfigError(f"{source}: {section}.{name} must be a section, not a value")
            keys = known.setdefault(name, {})
            _read_keys(source, f"[{section}.{name}]", item_type, value, keys)


def _may_listen(name: str, protocols: frozenset[str]) -> bool:
    """Whether `[listen]` may have the key `name`: a protocol, with an `s` for TLS, `ws`, `wss`."""
    if name in ("ws", "wss"):
        return WEBSOCKET_PROTOCOL in protocols
    return name in protocols or (is_secure(name) and name[:-1] in protocols)


def _read_listeners(
    source: str,
    content: Any,
    known: dict[str, Any],
    protocols: frozenset[str],
    of_protocols: Mapping[str, type],
) -> None:
    """Merge `[[listeners]]`: in a file a list, in the environment tables by name.

    Those without a name have their number in the list, in brackets, for one.
    """
    if isinstance(content, list):
        entries = [
            (str(entry.get("name") or f"[{at}]") if isinstance(entry, Mapping) else "", entry)
            for at, entry in enumerate(content)
        ]
        names = [name for name, _ in entries]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"{source}: two of [[listeners]] have the name {name!r}")
    elif isinstance(content, Mapping):
        entries = list(content.items())
    else:
        entries = [("", content)]
    for name, entry in entries:
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{source}: listeners must be a list of tables: [[listeners]]")
        where = f"[[listeners]] {name}"
        keys = known.setdefault(name, {"name": "" if name.startswith("[") else name})
        others = {key: value for key, value in entry.items() if key != "options"}
        _read_table(source, where, ListenerConfig, others, keys)
        protocol = keys.get("protocol", "")
        if protocol not in protocols | {""}:
            raise ConfigError(f"{source}: {where}: there is no protocol {protocol!r}")
        if "options" in entry:
            if protocol not in of_protocols:
                raise ConfigError(f"{source}: {where} has no key 'options'")
            own = _convert(source, f"{where} options", Mapping[str, Any], entry["options"])
            kind = of_protocols[protocol]
            _read_keys(source, f"{where} options", kind, own, keys.setdefault("options", {}))


def _read_table(
    source: str, where: str, kind: Any, content: Mapping[str, Any], known: dict[str, Any]
) -> None:
    """Merge a table whose keys are checked together, once all layers are read."""
    types_of = typing.get_type_hints(kind)
    for key, value in content.items():
        if key not in types_of:
            raise ConfigError(f"{source}: {where} has no key {key!r}")
        if key == "address" and type(value) is int:
            known[key] = str(value)
        elif types_of[key] != TlsConfig | None:
            known[key] = _convert(source, f"{where} {key}", types_of[key], value)
        elif isinstance(value, Mapping):
            if not isinstance(known.get(key), dict):
                known[key] = {}
            _read_table(source, f"{where} {key}", TlsConfig, value, known[key])
        else:
            known[key] = _convert(source, f"{where} {key}", bool, value)


def _build_listener(name: str, keys: dict[str, Any], tls: TlsConfig) -> ListenerConfig:
    """One that was merged; `tls = true` means the section `tls`."""
    values = dict(keys)
    for key in _required(ListenerConfig):
        if key not in values:
            raise ConfigError(f"[[listeners]] {name} needs the key {key!r}")
    try:
        wanted = values.pop("tls", False)
        if wanted:
            values["tls"] = tls if wanted is True else TlsConfig(**wanted)
        return ListenerConfig(**values)
    except ConfigError as error:
        raise ConfigError(f"[[listeners]] {name}: {error}") from None


def _read_keys(
    source: str, where: str, section_type: Any, content: Mapping[str, Any], known: dict[str, Any]
) -> None:
    types_of = typing.get_type_hints(section_type)
    for key, value in content.items():
        if key not in types_of:
            raise ConfigError(f"{source}: {where} has no key {key!r}")
        is_secret = key in _secrets(section_type)
        known[key] = _convert(source, f"{where} {key}", types_of[key], value, is_secret)
        # Checked with the key alone, so that the message names the source that is wrong.
        required = {k: known.get(k, "x") for k in _required(section_type)}
        try:
            section_type(**{**required, key: known[key]})
        except ConfigError as error:
            raise ConfigError(f"{source}: {where} {error}") from None


def _required(section_type: Any) -> list[str]:
    return [
        f.name
        for f in dataclasses.fields(section_type)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]


def _build(section: str, section_type: Any, values: dict[str, Any]) -> Any:
    if section == "listen":
        return values
    if typing.get_origin(section_type) is Mapping:
        item_type = typing.get_args(section_type)[1]
        for name, keys in values.items():
            for key in _required(item_type):
                if key not in keys:
                    raise ConfigError(f"[{section}.{name}] needs the key {key!r}")
        return {name: item_type(**keys) for name, keys in values.items()}
    return section_type(**values)


def _secrets(section_type: Any) -> set[str]:
    """The keys whose values are not to be shown."""
    return {f.name for f in dataclasses.fields(section_type) if not f.repr}


def _convert(source: str, where: str, wanted: Any, value: Any, is_secret: bool = False) -> Any:
    """The value as the wanted type; text is accepted for each type, as the environment needs."""
    try:
        return _convert_value(wanted, value)
    except (ConfigError, ValueError, OverflowError) as error:
        shown = "..." if is_secret else repr(value)
        raise ConfigError(f"{source}: {where} = {shown}: {error}") from None


def _convert_value(wanted: Any, value: Any) -> Any:
    if typing.get_origin(wanted) is types.UnionType:
        # None is what a key has that is not set.
        (wanted,) = (kind for kind in typing.get_args(wanted) if kind is not type(None))
    if typing.get_origin(wanted) is Literal:
        choices = typing.get_args(wanted)
        if value not in choices:
            raise ConfigError(f"not one of {', '.join(choices)}")
        return value
    if typing.get_origin(wanted) is tuple:
        return _convert_list(typing.get_args(wanted)[0], value)
    if typing.get_origin(wanted) is Mapping:
        # The environment has JSON.
        found = json.loads(value) if isinstance(value, str) else value
        if not isinstance(found, Mapping):
            raise ConfigError("not a table")
        return found
    if isinstance(value, bool) and wanted is not bool:
        raise ConfigError("must not be true or false")
    if wanted is bool:
        if not isinstance(value, bool) and value not in ("true", "false"):
            raise ConfigError("not true or false")
        return value in (True, "true")
    if wanted is int:
        if isinstance(value, str) and re.fullmatch(r"-?[0-9_]{1,19}", value):
            value = int(value)
        if not isinstance(value, int):
            raise ConfigError("not a whole number")
        return value
    if wanted is float:
        if isinstance(value, (int, float, str)):
            number = float(value)
            if number == number and abs(number) != float("inf"):
                return number
        raise ConfigError("not a number")
    if wanted is Listen and isinstance(value, int):
        value = str(value)
    if not isinstance(value, (str, Path)):
        raise ConfigError("must be text")
    if wanted is Path:
        # Path("") would be the current directory.
        if not str(value) or "\0" in str(value):
            raise ConfigError("not a path")
        return Path(value)
    if wanted in (Listen, Fsync):
        return wanted.parse(value)
    return wanted(value)


def _convert_list(wanted: Any, value: Any) -> tuple[Any, ...]:
    """The items of a list, of texts or of tables; the environment has JSON."""
    items = json.loads(value) if isinstance(value, str) else value
    if not isinstance(items, list):
        raise ConfigError("not a list")
    if wanted is str:
        return tuple(_convert_value(wanted, item) for item in items)
    types_of = typing.get_type_hints(wanted)
    tables: list[Any] = []
    for item in items:
        if not isinstance(item, Mapping):
            raise ConfigError("not a list of tables")
        for key in item:
            if key not in types_of:
                raise ConfigError(f"there is no key {key!r}")
        tables.append(wanted(**{key: _convert_value(types_of[key], item[key]) for key in item}))
    return tuple(tables)
