"""The verbs of `trivium queue`, `trivium stream` and so on: operations of Trivium's own HTTP API.

What a verb takes and shows is what its operation does, so that commands and API cannot differ:
names in the path are arguments, fields of the body and parameters of the query are options, or
arguments where they must be there.
"""

from __future__ import annotations

import argparse
import getpass
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields
from datetime import datetime
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from trivium.cli import reading
from trivium.cli.clients import UsageError
from trivium.cli.control import Api, find_api, run_command
from trivium.cli.progress import progress
from trivium.cli.server_options import add_control
from trivium.cli.tables import at, print_json, print_record, print_rows
from trivium.management.rest import ENDPOINTS
from trivium.management.rest.operations import Operation
from trivium.management.rest.schema import (
    About,
    Unprocessable,
    has_path,
    hints_of,
    paths_of,
    taken,
)
from trivium.management.segments import segment

#: Operations by name.
OPERATIONS: Final[dict[str, Operation]] = {each.name: each for each in ENDPOINTS}


@dataclass(frozen=True, slots=True)
class Verb:
    """An operation, and how a command says what it takes."""

    operation: str
    _: KW_ONLY
    #: fields of the body that are arguments; None: those that must be there
    arguments: tuple[str, ...] | None = None
    #: fields of the body that are options; None: all others
    options: tuple[str, ...] | None = None
    #: the operation where the last argument is left out; "": it must be there
    without: str = ""
    #: how the argument is called that is the whole body
    whole: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    #: what it was called before
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Noun:
    """What is managed: the operations by verb, and the columns of its list."""

    verbs: Mapping[str, str | Verb]
    columns: tuple[str, ...]

    def verb(self, name: str) -> Verb:
        """One of its verbs, by whichever of its names."""
        for known, found in self.verbs.items():
            verb = Verb(found) if isinstance(found, str) else found
            if name in (known, *verb.aliases):
                return verb
        raise KeyError(name)


_NEW: Final = {"If-None-Match": "*"}
_KNOWN: Final = {"If-Match": "*"}


#: All that there are; `NOUNS` of `trivium.cli` has their summaries.
NOUNS: Final = {
    "queue": Noun(
        {
            "list": "queues_list_all",
            "show": "queues_show",
            "create": "queues_declare",
            "delete": "queues_delete",
            "purge": "queues_purge",
            "delivery-modes": "policies_delivery_modes",
        },
        ("vhost", "name", "type", "durable", "policy", "ready", "unsettled", "consumers"),
    ),
    "stream": Noun(
        {
            "list": "streams_list_all",
            "show": "streams_show",
            "create": "streams_declare",
            "delete": "streams_delete",
            "partitions": "streams_partitions",
            "extend": "streams_extend",
            "groups": "groups_of_stream",
        },
        ("vhost", "name", "partitions", "records", "published", "policy"),
    ),
    "exchange": Noun(
        {
            "list": "exchanges_list_all",
            "show": "exchanges_show",
            "create": "exchanges_declare",
            "delete": "exchanges_delete",
        },
        ("vhost", "name", "type", "durable", "internal", "policy", "counters.published"),
    ),
    "binding": Noun(
        {
            "list": "exchanges_bindings",
            "create": "exchanges_make_binding",
            "delete": "exchanges_remove_binding",
        },
        ("vhost", "source", "destination_kind", "destination", "key", "arguments"),
    ),
    "group": Noun(
        {
            "list": "groups_list_all",
            "show": "groups_show",
            "delete": "groups_delete",
            "members": "groups_members",
            "offsets": "groups_offsets",
            "reset": Verb(
                "groups_reset",
                options=("to", "offset", "time", "streams", "partitions", "force"),
            ),
        },
        ("vhost", "name", "members", "streams", "lag"),
    ),
    "connection": Noun(
        {
            "list": "connections_list_all",
            "show": "connections_show",
            "close": "connections_close",
        },
        ("name", "protocol", "vhost", "user", "state", "tls", "channels", "connected_at"),
    ),
    "channel": Noun(
        {"list": "connections_channels"},
        ("connection", "number", "vhost", "user", "consumers", "unsettled", "unconfirmed"),
    ),
    "consumer": Noun(
        {"list": "connections_consumers"},
        ("vhost", "queue", "tag", "connection", "user", "active", "limit"),
    ),
    "session": Noun(
        {
            "list": "sessions_list_all",
            "show": "sessions_show",
            "delete": "sessions_end",
            "subscriptions": "sessions_subscriptions",
            "shared": "sessions_shares",
        },
        ("vhost", "client_id", "user", "is_connected", "expiry_seconds", "subscriptions"),
    ),
    "trace": Noun(
        {"on": "vhosts_trace_on", "off": "vhosts_trace_off", "list": "vhosts_list_all"},
        ("name", "tracing"),
    ),
    "retained": Noun(
        {"list": "retained_list_all_of_vhost", "show": "retained_show", "delete": "retained_clear"},
        ("topic", "bytes", "mode", "published_at"),
    ),
    "vhost": Noun(
        {
            "list": "vhosts_list_all",
            "show": Verb("vhosts_show", aliases=("describe",)),
            "create": Verb("vhosts_put", options=("description", "tags", "default_queue_type")),
            "delete": "vhosts_delete",
            "limits": Verb("vhosts_put_limits", without="vhosts_limits"),
        },
        ("name", "description", "tags", "default_queue_type", "queues", "streams", "connections"),
    ),
    "cluster": Noun(
        {"list": "general_nodes", "show": "general_show_node"},
        ("name", "version", "state", "uptime_ms", "memory_bytes", "vhosts", "connections"),
    ),
    "user": Noun(
        {
            "list": "users_list_all",
            "show": "users_show",
            "add": Verb("users_put", headers=_NEW),
            "passwd": Verb("users_put", options=("password",), headers=_KNOWN),
            "tags": Verb("users_put", arguments=("tags",), options=(), headers=_KNOWN),
            "vhost": Verb("users_put", arguments=("virtual_host",), options=(), headers=_KNOWN),
            "limits": Verb("users_put_limits", without="users_limits"),
            "delete": "users_delete",
            "add-key": "users_add_key",
            "list-keys": Verb("users_keys", without="users_all_keys"),
            "delete-key": "users_delete_key",
        },
        ("name", "tags", "is_configured", "virtual_host", "roles", "limits", "has_scram"),
    ),
    "permission": Noun(
        {
            "list": "users_permissions",
            "set": "users_put_permission",
            "clear": "users_delete_permission",
        },
        ("vhost", "user", "configure", "write", "read"),
    ),
    "topic-permission": Noun(
        {
            "list": "users_topic_permissions",
            "set": "users_put_topic_permission",
            "clear": "users_delete_topic_permission",
        },
        ("vhost", "user", "exchange", "write", "read"),
    ),
    "role": Noun(
        {
            "list": "users_roles",
            "show": "users_show_role",
            "set": Verb("users_put_role", whole="definition"),
            "delete": "users_delete_role",
            "grant": "users_put_member",
            "revoke": "users_delete_member",
        },
        ("name", "permissions", "topic_permissions", "acl"),
    ),
    "policy": Noun(
        {
            "list": "policies_list_all",
            "show": "policies_show",
            "set": "policies_put",
            "delete": "policies_delete",
        },
        ("vhost", "name", "pattern", "apply_to", "priority", "definition", "suspended"),
    ),
    "operator-policy": Noun(
        {
            "list": "policies_operators_list_all",
            "show": "policies_operators_show",
            "set": "policies_operators_put",
            "delete": "policies_operators_delete",
        },
        ("vhost", "name", "pattern", "apply_to", "priority", "definition"),
    ),
}

#: Beside DELETE, what takes something away that nobody can give back.
_DESTROYS: Final = frozenset({"exchanges_remove_binding", "groups_reset"})
#: What does not, though it is DELETE.
_SWITCHES: Final = "vhosts_trace_off"
_PAGING: Final = frozenset({"page", "page_size"})
#: Of lists in parts: where the next one begins.
_AFTER: Final = "after"
#: A time that is said by how long it is until then.
_EXPIRES_AT: Final = "expires_at"
_TIME: Final = "time"
_MOST_DAYS: Final = 36_500
_YES: Final = frozenset({"y", "yes"})


def operation_of(noun: str, verb: str, in_vhost: bool = False) -> Operation:
    """What a verb does; of a list that of all virtual hosts, or that of one."""
    name = NOUNS[noun].verb(verb).operation
    return OPERATIONS.get(f"{name}_of_vhost", OPERATIONS[name]) if in_vhost else OPERATIONS[name]


def destroys(operation: Operation) -> bool:
    """Whether it takes something away."""
    if operation.name == _SWITCHES:
        return False
    return operation.method == "DELETE" or operation.name in _DESTROYS


# Arguments


def add_verbs(noun: str, parser: argparse.ArgumentParser) -> None:
    """The verbs of a noun, and what each takes."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in NOUNS[noun].verbs:
        operation = operation_of(noun, verb)
        summary = operation.summary[0].lower() + operation.summary[1:]
        aliases = NOUNS[noun].verb(verb).aliases
        about = f"{operation.summary}."
        command = verbs.add_parser(verb, help=summary, description=about, aliases=aliases)
        _add_arguments(command, noun, verb, operation)
        add_control(command)
    if noun == "stream":
        reading.add_read(verbs.add_parser("read", help=reading.ABOUT, description=reading.ABOUT))


def _add_arguments(
    command: argparse.ArgumentParser, noun: str, verb: str, operation: Operation
) -> None:
    how = NOUNS[noun].verb(verb)
    names = _path_names(noun, operation)
    for name in names:
        is_optional = bool(how.without) and operation.body is None and name == names[-1]
        nargs = "?" if is_optional else None
        command.add_argument(f"path_{name}", metavar=name.upper(), type=_not_empty, nargs=nargs)
    if noun != "vhost" and "{vhost}" in operation.path:
        command.add_argument("--vhost", default="/", metavar="NAME", help="default: /")
    elif noun != "vhost" and "{vhost}" in operation_of(noun, verb, in_vhost=True).path:
        command.add_argument("--vhost", metavar="NAME", help="default: all virtual hosts")
    if how.whole:
        command.add_argument("whole", metavar=how.whole.upper(), help="JSON")
    elif operation.body is not None:
        _add_body(command, how, operation.body)
    for parameter in operation.parameters:
        if parameter.name not in _PAGING:
            _add_option(command, "query", parameter.name, parameter.kind, parameter.text)
    if operation.name == "connections_close":
        command.add_argument("--reason", help="what the client is told")
    if operation.is_list or _is_in_parts(operation):
        command.add_argument(
            "--columns", type=_columns, metavar="A,B", help="fields; dots lead into objects"
        )
    command.add_argument("--json", action="store_true", help="JSON, one object per line")
    if destroys(operation):
        command.add_argument("--yes", action="store_true", help="do not ask whether to")


def _path_names(noun: str, operation: Operation) -> list[str]:
    """What stands for a name in the path; a virtual host is one where they are managed."""
    found = re.findall(r"{([^}]*)}", operation.path)
    return [name for name in found if name != "vhost" or noun == "vhost"]


def _is_in_parts(operation: Operation) -> bool:
    """Whether it is a list that is walked through (see `retained`)."""
    return any(parameter.name == _AFTER for parameter in operation.parameters)


def _add_body(command: argparse.ArgumentParser, how: Verb, model: Any) -> None:
    for each in fields(model):
        name, kind = each.name, hints_of(model)[each.name]
        if _is_argument(how, each):
            _add_argument(command, how, name, kind)
        elif how.options is None or name in how.options:
            _add_option(command, "body", name, kind, "")


def _is_argument(how: Verb, each: Field[Any]) -> bool:
    if how.arguments is not None:
        return each.name in how.arguments
    return each.default is MISSING and each.default_factory is MISSING


def _add_argument(command: argparse.ArgumentParser, how: Verb, name: str, kind: Any) -> None:
    """An argument for a field of the body."""
    plain, about = _plain(kind)
    said: dict[str, Any] = {"metavar": name.upper(), "help": _escaped(about.text) or None}
    if _is_texts(plain):
        said = {"metavar": name.upper().removesuffix("S"), "nargs": "*"}
    elif plain is int:
        said["type"] = int
    elif not _is_scalar(kind):
        said |= {"nargs": "+", "help": "KEY=VALUE, or JSON"}
    if how.without:
        said |= {
            "nargs": "*",
            "help": "KEY=VALUE, or JSON: these and no others; without them they are shown",
        }
    command.add_argument(f"body_{name}", **said)


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _plain(kind: Any) -> tuple[Any, About]:
    """The type within `Annotated` and beside None, and what is said of it."""
    about = About()
    while True:
        origin = get_origin(kind)
        if origin is Annotated:
            kind, *rest = get_args(kind)
            about = next((each for each in rest if isinstance(each, About)), about)
        elif NoneType in get_args(kind):
            kind = next(each for each in get_args(kind) if each is not NoneType)
        else:
            return kind, about


def _is_scalar(kind: Any) -> bool:
    plain, _ = _plain(kind)
    return plain in (str, int, bool) or get_origin(plain) is Literal


def _is_texts(plain: Any) -> bool:
    """Whether it is a list of texts."""
    return _is_list_of(plain, str)


def _is_list_of(plain: Any, kind: type) -> bool:
    return get_origin(plain) is list and _plain(get_args(plain)[0])[0] is kind


def _flag(name: str, kind: Any) -> str:
    """The option for a field of the body or a parameter of the query."""
    if name == _EXPIRES_AT:
        return "--days"
    flag = f"--{name.replace('_', '-')}"
    plain, _ = _plain(kind)
    is_repeated = _is_list_of(plain, str) or _is_list_of(plain, int)
    return flag.removesuffix("s") if is_repeated else flag


def _add_option(
    command: argparse.ArgumentParser, place: str, name: str, kind: Any, text: str
) -> None:
    """An option for a field of the body or a parameter of the query."""
    plain, about = _plain(kind)
    flag = _flag(name, kind)
    said: dict[str, Any] = {"dest": f"{place}_{name}", "help": _escaped(text or about.text) or None}
    origin = get_origin(plain)
    if about.is_secret:
        said["help"] = "where others can see it in the list of processes; else it is asked for"
        command.add_argument(flag, metavar="TEXT", **said)
    elif name == _TIME:
        said["help"] = "such as 2026-03-01T08:15Z, or milliseconds since the epoch"
        command.add_argument(flag, type=_time, metavar="TIME", **said)
    elif name == _EXPIRES_AT:
        said["help"] = "after which it expires"
        command.add_argument(flag, type=_days, metavar="N", **said)
    elif plain is bool and place == "body":
        command.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, **said)
    elif plain is bool:
        command.add_argument(flag, action="store_const", const=True, **said)
    elif origin is Literal:
        command.add_argument(flag, choices=get_args(plain), **said)
    elif plain is int:
        command.add_argument(flag, type=int, metavar="N", **said)
    elif plain is str:
        command.add_argument(flag, metavar="TEXT", **said)
    elif _is_texts(plain):
        command.add_argument(flag, action="append", metavar="TEXT", **said)
    elif _is_list_of(plain, int):
        command.add_argument(flag, action="append", type=int, metavar="N", **said)
    else:
        command.add_argument(flag, action="append", metavar="KEY=VALUE|JSON", **said)


def _days(text: str) -> int:
    """The time when so many days are over, in milliseconds since the epoch."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and up to {_MOST_DAYS}")
    return int((time.time() + found * 86_400) * 1000)


def _time(text: str) -> int:
    """A time in milliseconds since the epoch; without a zone it is local."""
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is no time") from None
    return int(found * 1000)


def _columns(text: str) -> list[str]:
    return [_not_empty(name) for name in text.split(",")]


def _not_empty(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it must not be empty")
    return text


# Running


def run(options: argparse.Namespace) -> int:
    """Do what the options say; the exit code."""
    if options.verb == "read":
        return reading.run(options)
    return run_command(options, _run)


def _run(options: argparse.Namespace) -> None:
    noun, verb = options.command, options.verb
    how = NOUNS[noun].verb(verb)
    vhost = getattr(options, "vhost", None)
    operation = operation_of(noun, verb, in_vhost=vhost is not None)
    if how.without and _lacks_last(noun, operation, options):
        operation, how = OPERATIONS[how.without], Verb(how.without)
    path, query, body = _path(noun, operation, options), _query(operation, options), None
    if how.whole:
        body = _json(how.whole, options.whole)
    elif operation.body is not None:
        body = _body(operation.body, how, options)
    if destroys(operation) and not options.yes:
        _confirm(noun, verb, operation, options)
    _check_columns(operation, getattr(options, "columns", None) or [])
    api = find_api(options)
    if operation.is_list:
        _show_list(noun, verb, api.pages(path, query), options)
    elif _is_in_parts(operation):
        _show_list(noun, verb, _parts(api, path, query), options)
    else:
        headers = dict(how.headers)
        if getattr(options, "reason", None):
            headers["X-Reason"] = options.reason
        with progress(f"{verb} {noun}") if destroys(operation) else nullcontext():
            found = api.ask(operation.method, path, query, body, headers)
        if found is not None:
            print_json(found) if options.json else print_record(found)


def _lacks_last(noun: str, operation: Operation, options: argparse.Namespace) -> bool:
    """Whether the last argument is left out."""
    if operation.body is not None:
        return not any(getattr(options, f"body_{each.name}") for each in fields(operation.body))
    return getattr(options, f"path_{_path_names(noun, operation)[-1]}") is None


def _path(noun: str, operation: Operation, options: argparse.Namespace) -> str:
    names = {name: getattr(options, f"path_{name}") for name in _path_names(noun, operation)}
    if "{vhost}" in operation.path and "vhost" not in names:
        names["vhost"] = options.vhost
    found = {name: segment(value) for name, value in names.items()}
    return operation.path.partition("/")[2].format(**found)


def _query(operation: Operation, options: argparse.Namespace) -> dict[str, str]:
    found: dict[str, str] = {}
    for parameter in operation.parameters:
        value = getattr(options, f"query_{parameter.name}", None)
        if value is not None:
            _check(_flag(parameter.name, parameter.kind), parameter.kind, value)
            found[parameter.name] = "true" if value is True else str(value)
    return found


def _body(model: Any, how: Verb, options: argparse.Namespace) -> dict[str, object]:
    """What the options say of the body; what they leave out, it does. Raises UsageError."""
    found: dict[str, object] = {}
    for each in fields(model):
        name, hint = each.name, hints_of(model)[each.name]
        if not hasattr(options, f"body_{name}"):
            continue
        value = getattr(options, f"body_{name}")
        kind, about = _plain(hint)
        if about.is_secret:
            found[name] = read_password(value)
        elif value is None:
            continue
        elif _is_scalar(kind) or (get_origin(kind) is list and isinstance(value, list)):
            found[name] = value
        else:
            found[name] = _table(name, value)
        _check(name.upper() if _is_argument(how, each) else _flag(name, hint), hint, found[name])
    return found


def _check(what: str, kind: Any, value: object) -> None:
    """Whether the operation will take it; what refuses it would name its field. Raises
    UsageError.
    """
    try:
        taken(kind, value, what)
    except Unprocessable as error:
        raise UsageError(str(error)) from None


def read_password(said: str | None) -> str:
    """What was said, or else what the terminal or standard input has. Raises UsageError."""
    if said is None and sys.stdin.isatty():
        said = getpass.getpass("password: ")
        if said != getpass.getpass("again: "):
            raise UsageError("the two are not the same")
    elif said is None:
        said = sys.stdin.readline().rstrip("\r\n")
    if not said:
        raise UsageError("the password must not be empty")
    return said


def _json(name: str, text: str) -> object:
    try:
        return _parse(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{name}: {text!r} is not JSON") from None


def _parse(text: str) -> object:
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(text: str) -> object:
    """JSON has no NaN or Infinity (RFC 8259, 6)."""
    raise ValueError(text)


def _table(name: str, texts: Iterable[str]) -> dict[str, object]:
    """`KEY=VALUE` and objects together. A value that is no JSON is a text. Raises UsageError."""
    found: dict[str, object] = {}
    for text in texts:
        if text.startswith("{"):
            table = _json(name, text)
            assert isinstance(table, dict)
            found.update(table)
            continue
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise UsageError(f"{name}: {text!r} is neither KEY=VALUE nor a JSON object")
        try:
            found[key] = _parse(value)
        except (ValueError, RecursionError):
            found[key] = value
    return found


def _confirm(noun: str, verb: str, operation: Operation, options: argparse.Namespace) -> None:
    """Ask on the terminal. Raises UsageError where there is none, or the answer is no."""
    names = [getattr(options, f"path_{name}") for name in _path_names(noun, operation)]
    if noun == "binding":
        names = [options.body_source, options.body_destination]
    what = f"{verb} {noun} {' '.join(map(repr, names))}"
    if noun != "vhost" and "{vhost}" in operation.path:
        what += f" in virtual host {options.vhost!r}"
    if not sys.stdin.isatty():
        raise UsageError(f"{what}: say --yes, as nobody is there to be asked")
    print(f"{what}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in _YES:
        raise UsageError("nothing was done")


def _parts(api: Api, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The items of a list that is walked through; all, unless a limit is asked for."""
    while True:
        part = api.ask("GET", path, query)
        yield from part["items"]
        if part["next"] is None or "limit" in query:
            return
        query = {**query, _AFTER: part["next"]}


def _check_columns(operation: Operation, columns: list[str]) -> None:
    """Raise UsageError where one is nothing that is listed."""
    result = operation.result
    if _is_in_parts(operation):
        (result,) = get_args(hints_of(result)["items"])
    for column in columns:
        if not has_path(result, column):
            names = ", ".join(paths_of(result))
            raise UsageError(f"--columns: {column!r} is no field: one of {names}")


def _show_list(
    noun: str, verb: str, rows: Iterator[dict[str, Any]], options: argparse.Namespace
) -> None:
    if options.json:
        for row in rows:
            print_json(row if options.columns is None else _picked(row, options.columns))
        return
    columns = options.columns or (NOUNS[noun].columns if verb == "list" else _all_of(noun, verb))
    print_rows(rows, columns)


def _picked(row: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    return {column: at(row, column) for column in columns}


def _all_of(noun: str, verb: str) -> list[str]:
    """The fields of what an operation lists."""
    return list(hints_of(operation_of(noun, verb).result))
