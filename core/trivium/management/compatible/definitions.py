"""``definitions``: all that was declared and granted, as one document.

What a document brings is taken as far as it goes: users, virtual hosts, permissions, policies,
queues, exchanges, bindings, in this order, and a part in each turn. What is there already must be
the same, and the first thing that cannot be ends the import; what came before it stays, as in
RabbitMQ.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast

from trivium import __version__
from trivium.common.timers import Timed
from trivium.common.values import HeaderValue, pack, same, unpack
from trivium.errors import TopologyError
from trivium.management import views
from trivium.management.accounts import (
    permissions_in,
    permit,
    permit_topics,
    put_user,
    topic_permissions_in,
)
from trivium.management.calls import BadRequest, Call
from trivium.management.compatible import shown
from trivium.management.compatible.bindings import bindings_from
from trivium.management.compatible.general import DIALECT
from trivium.management.compatible.password_hashes import imported
from trivium.management.compatible.policies import (
    LIMITS,
    NARROWED_TO,
    OPERATOR_POLICY,
    exported_policy,
    parameters_of,
    policy_of,
)
from trivium.management.compatible.users import (
    password_of,
    shown_permission,
    shown_topic_permission,
    shown_user,
    tags_of,
)
from trivium.management.compatible.vhosts import settings_of
from trivium.management.endpoints import ADMINISTRATORS, LARGE, MANY_VALUES, Endpoint
from trivium.management.global_parameters import GlobalParameters
from trivium.management.limits import set_vhost_limits
from trivium.management.listing import Slices, ordered
from trivium.management.policies import OF_OPERATORS, USUAL, PolicyKind
from trivium.management.topology import (
    Operator,
    bind,
    declare_exchange,
    declare_queue,
    operator,
)
from trivium.management.values import encode, flag_of, shown_table, table_of, text_of, texts_of
from trivium.observability.api import ApiAnswer
from trivium.queues.arguments import CLASSIC, QUEUE_RULES, QUEUE_TYPE
from trivium.security.granted import ROLE, USER, values_of
from trivium.security.passwords import verify_password
from trivium.security.permissions import EVERY_VHOST, Grants, grants_of
from trivium.streams.settings import STREAM_RULES
from trivium.streams.stream import PARTITIONS
from trivium.vhost.policies import (
    ALL,
    CLASSIC_QUEUES,
    EXCHANGE_KEYS,
    QUEUES,
    STREAMS,
)

if TYPE_CHECKING:
    from trivium.routing.exchanges import Declarer
    from trivium.runtime.broker import Broker
    from trivium.security.scram import ScramKeys
    from trivium.vhost.virtual_host import VirtualHost

logger = logging.getLogger(__name__)

#: None where others may be served.
_Entries = Iterator[dict[str, object] | None]

#: Keys of policies that say how something is done on several nodes, in memory or on disk, or by
#: plugins: nothing here.
MEANINGLESS: Final = frozenset(
    {
        *("ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size"),
        *("ha-promote-on-shutdown", "ha-promote-on-failure"),
        *("queue-mode", "queue-version", "queue-master-locator", "queue-leader-locator"),
        *("max-in-memory-length", "max-in-memory-bytes", "max-segment-size"),
        *("stream-max-segment-size-bytes", "stream-filter-size-bytes"),
        *("initial-cluster-size", "target-group-size"),
        *("federation-upstream", "federation-upstream-set", "federation-upstream-pattern"),
    }
)
_IN_CLASSIC: Final = (
    *("ha-mode", "ha-params", "ha-sync-mode", "ha-promote-on-shutdown", "ha-promote-on-failure"),
    *("queue-mode", "queue-master-locator"),
)
#: Those of them that only one kind of queues has: a policy with such a key holds for these alone
#: (RabbitMQ: ``unsupported_policies``).
_KINDS_OF_KEYS: Final = {
    **dict.fromkeys(_IN_CLASSIC, CLASSIC_QUEUES),
    **dict.fromkeys(("stream-max-segment-size-bytes", "initial-cluster-size"), STREAMS),
}
#: Arguments of queues that mean something here.
MEANINGFUL: Final = frozenset({PARTITIONS, *(f"x-{key}" for key in (*QUEUE_RULES, *STREAM_RULES))})
#: What entries are called, where that is not the section without its s.
_KINDS: Final = {
    "policies": "policy",
    "topic_permissions": "topic permission",
    "global_parameters": "global parameter",
    "vhosts": "virtual host",
}
#: What is told of all that an import passes over, and of how much.
MAX_NOTES: Final = 1000
#: Beside what RabbitMQ knows, in base64, where JSON cannot say them: the key of a binding, and
#: arguments in msgpack. RabbitMQ passes over them.
KEY_BYTES: Final = "routing_key_base64"
ARGUMENT_BYTES: Final = "arguments_base64"
#: Milliseconds until another look where the disk is behind.
LOOK_AGAIN_MS: Final = 10


# Export


def _queues(vhost: VirtualHost) -> _Entries:
    for item in views.queues_of(vhost):
        view = views.view_queue(vhost, item)
        # What goes with a connection, or is a protocol's own, is declared by no document.
        if view.owner is None and not view.adapter and not item.is_deleted:
            basics = shown.queue_basics(view)
            keys = ("name", "vhost", "durable", "auto_delete")
            entry = {**{key: basics[key] for key in keys}, "arguments": _arguments(vhost, view)}
            _say_exactly(entry, view.arguments)
            yield entry


def _arguments(vhost: VirtualHost, view: views.QueueView) -> dict[str, object]:
    """Those of a queue, with its type where the virtual host would give it another one."""
    arguments = shown_table(view.arguments)
    if view.kind == CLASSIC and vhost.settings.default_queue_type not in ("", CLASSIC):
        arguments[QUEUE_TYPE] = CLASSIC
    return arguments


def _say_exactly(entry: dict[str, object], arguments: Mapping[str, HeaderValue]) -> None:
    """Say also what JSON has no words for: bytes, times, decimal and other numbers."""
    if arguments and not same(dict(arguments), cast("HeaderValue", shown_table(arguments))):
        entry[ARGUMENT_BYTES] = base64.b64encode(pack(dict(arguments))).decode()


def _is_predeclared(name: str) -> bool:
    return not name or name.startswith("amq.")


def _exchanges(vhost: VirtualHost) -> _Entries:
    for exchange in list(vhost.exchanges.values()):
        if not _is_predeclared(exchange.name):
            found = shown.exchange_basics(views.view_exchange(vhost, exchange))
            keys = ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")
            entry = {key: found[key] for key in keys}
            _say_exactly(entry, exchange.arguments)
            yield entry


def _bindings(vhost: VirtualHost) -> _Entries:
    for exchange in list(vhost.exchanges.values()):
        if not exchange.name:
            continue
        for view in bindings_from(vhost, exchange):
            if view is None:
                continue
            queue = vhost.queues.get(view.destination)
            is_private = queue is not None and (queue.owner is not None or queue.adapter != "")
            if view.is_filter or (is_private and not view.is_to_exchange):
                continue
            found = shown.binding(view)
            del found["properties_key"]
            if found["routing_key"] != view.key.decode(errors="surrogateescape"):
                found[KEY_BYTES] = base64.b64encode(view.key).decode()
            _say_exactly(found, view.arguments)
            yield found


def _without_vhost(entries: _Entries) -> _Entries:
    for entry in entries:
        if entry is not None:
            entry.pop("vhost", None)
        yield entry


def _policies(vhost: VirtualHost) -> _Entries:
    for policy in vhost.policies.all():
        yield exported_policy((vhost, policy))


def _parameters(vhost: VirtualHost) -> _Entries:
    return parameters_of(vhost, exported_policy)


def _users(broker: Broker) -> _Entries:
    for name in _names(broker, [user.name for user in broker.users.all()]):
        user = None if name is None else broker.users.find(name)
        yield None if user is None else shown_user(broker, user)


def _names(broker: Broker, users: list[str]) -> Iterator[str | None]:
    """Those of users, in order, that the configuration does not declare."""
    configured = broker.users.is_configured
    return ordered([name for name in users if not configured(name)])


def _permissions(broker: Broker) -> _Entries:
    for found in permissions_in(broker, _names(broker, broker.permissions.users())):
        yield None if found is None or found[1] == EVERY_VHOST else shown_permission(found)


def _topic_permissions(broker: Broker) -> _Entries:
    for found in topic_permissions_in(broker, _names(broker, broker.permissions.users())):
        yield None if found is None or found[1] == EVERY_VHOST else shown_topic_permission(found)


def _roles(broker: Broker) -> _Entries:
    is_configured = broker.authentication.granted.is_configured
    names = [name for name in broker.permissions.roles() if not is_configured(ROLE, name)]
    for name in ordered(names):
        role = None if name is None else broker.permissions.role(name)
        if role is None:
            yield None
            continue
        permissions, topics, lines, _ = values_of(role)
        yield {
            "name": name,
            "permissions": permissions,
            "topic_permissions": topics,
            "acl": lines,
        }


def _grants(broker: Broker) -> _Entries:
    """What there is of users for which RabbitMQ has no words, nor any look: their roles, what they
    may do in every virtual host, and where their clients go that name none."""
    users = {*broker.permissions.users(), *(user.name for user in broker.users.all())}
    for name in _names(broker, list(users)):
        user = None if name is None else broker.users.find(name)
        granted = None if name is None else broker.permissions.user(name)
        permissions, topics, _, roles = values_of(granted or Grants())
        every = {
            "virtual_host": "" if user is None else user.virtual_host,
            "roles": roles,
            "permissions": permissions.get(EVERY_VHOST),
            "topic_permissions": topics.get(EVERY_VHOST),
        }
        found = {key: value for key, value in every.items() if value}
        yield {"user": name, **found} if found else None


def _vhosts(broker: Broker) -> _Entries:
    for name, vhost in sorted(broker.vhosts.items()):
        settings = vhost.settings
        found: dict[str, object] = {"name": name}
        if settings.description or settings.tags or settings.default_queue_type:
            metadata: dict[str, object] = {
                "description": settings.description,
                "tags": list(settings.tags),
            }
            if settings.default_queue_type:
                metadata["default_queue_type"] = settings.default_queue_type
                found["default_queue_type"] = settings.default_queue_type
            found |= {"description": settings.description, "tags": list(settings.tags)}
            found["metadata"] = metadata
        yield found


def _global_parameters(broker: Broker) -> _Entries:
    for name, value in GlobalParameters(broker).all():
        yield {"name": name, "value": value}


_OF_VHOST: Final[tuple[tuple[str, Callable[[Any], _Entries]], ...]] = (
    ("parameters", _parameters),
    ("policies", _policies),
    ("queues", _queues),
    ("exchanges", _exchanges),
    ("bindings", _bindings),
)


#: Sections whose entries name their virtual host even in its own document.
_NAMING_VHOST: Final = ("parameters", "policies")


def get_all(call: Call) -> ApiAnswer:
    """The document of the broker."""
    broker = call.broker

    def of_all(find: Callable[[Any], _Entries]) -> _Entries:
        for vhost in [found for _, found in sorted(broker.vhosts.items())]:
            yield from find(vhost)

    head: dict[str, object] = {
        "rabbit_version": DIALECT,
        "rabbitmq_version": DIALECT,
        "product_name": "Trivium",
        "product_version": __version__,
    }
    sections: list[tuple[str, _Entries]] = [
        ("users", _users(broker)),
        ("vhosts", _vhosts(broker)),
        ("permissions", _permissions(broker)),
        ("topic_permissions", _topic_permissions(broker)),
        ("roles", _roles(broker)),
        ("grants", _grants(broker)),
        ("global_parameters", _global_parameters(broker)),
        *((name, of_all(find)) for name, find in _OF_VHOST),
    ]
    return ApiAnswer(200, parts=_document(head, sections))


def get_of_vhost(call: Call) -> ApiAnswer:
    """The document of a virtual host, in which none is named but by policies and parameters, as in
    RabbitMQ."""
    vhost = call.vhost
    head: dict[str, object] = {"rabbit_version": DIALECT, "product_name": "Trivium"}
    sections = [
        (name, find(vhost) if name in _NAMING_VHOST else _without_vhost(find(vhost)))
        for name, find in _OF_VHOST
    ]
    return ApiAnswer(200, parts=_document(head, sections))


def _document(head: dict[str, object], sections: list[tuple[str, _Entries]]) -> Iterator[bytes]:
    slices = Slices()
    text = bytearray(encode(head)[:-1])
    for name, entries in sections:
        text += b"," + encode(name) + b":["
        is_first = True
        for entry in entries:
            if entry is not None:
                if not is_first:
                    text += b","
                is_first = False
                text += encode(entry)
            if slices.is_over:
                yield bytes(text)
                text.clear()
                slices.begin()
        text += b"]"
    yield bytes(text) + b"}"


# Import


class _PassedOver(Exception):
    """An entry means nothing here, whether or not the import goes on behind what cannot be."""


class Import(Timed):
    """Carries out a document, a part in each turn; then ``done`` is told what was passed over.

    ``goes_on``: what cannot be is passed over too.
    """

    def __init__(
        self,
        call: Call,
        vhost: str | None,
        done: Callable[[list[str]], None],
        goes_on: bool = False,
    ) -> None:
        self._call = call
        self._body = call.body
        self._broker = call.broker
        self._done = done
        self._goes_on = goes_on
        self._notes: list[str] = []
        self._left_out = 0
        #: entries that were carried out, or were so already
        self.taken = 0
        #: that of all entries; None: each names its own
        self._vhost = vhost
        self._steps = self._all_steps()
        #: what is stored of the password of the user at hand, while that is not made
        self._hashed: tuple[str, ScramKeys | None] | None = None
        self._is_hashing = False

    def due(self) -> None:
        self._call.later(self.go_on)

    def go_on(self) -> None:
        """Do what can be done in this turn; answer at the end."""
        broker = self._broker
        slices = Slices()
        try:
            while not broker.is_behind:
                if next(self._steps, None) is None:
                    if self._left_out:
                        self._notes.append(f"and {self._left_out} more")
                    about = {} if self._vhost is None else {"vhost": self._vhost}
                    broker.events.tell("definitions.imported", **about)
                    self._done(self._notes)
                    return
                if self._is_hashing:
                    return
                if slices.is_over:
                    break
        except TopologyError as error:
            raise BadRequest(str(error)) from None
        wait = LOOK_AGAIN_MS if broker.is_behind else 1
        broker.timeouts.call_at(broker.elapsed_ms + wait, self)
        broker.request_turn()

    def _all_steps(self) -> Iterator[int]:
        handlers: tuple[tuple[str, Callable[[Mapping[str, object]], None]], ...] = (
            ("users", self._user),
            ("vhosts", self._virtual_host),
            ("global_parameters", self._global_parameter),
            ("permissions", self._permission),
            ("topic_permissions", self._topic_permission),
            ("roles", self._role),
            ("grants", self._grant),
            ("parameters", self._parameter),
            ("policies", self._policy),
            ("queues", self._queue),
            ("exchanges", self._exchange),
            ("bindings", self._binding),
        )
        if self._vhost is not None:
            # A document of a virtual host says nothing about others, nor who may what.
            handlers = handlers[7:]
        for name, handle in handlers:
            entries = self._body.get(name, [])
            if not isinstance(entries, list):
                raise BadRequest(f"{name!r} is a list")
            for entry in entries:
                if not isinstance(entry, dict):
                    raise BadRequest(f"{name!r} is a list of objects")
                try:
                    if name == "users" and self._begin_hashing(entry):
                        yield 1
                        if self._hashed is None:
                            raise BadRequest("the password cannot be hashed")
                    handle(entry)
                    self.taken += 1
                except _PassedOver as passed_over:
                    self._note(name, entry, str(passed_over))
                except (TopologyError, BadRequest) as error:
                    if not self._goes_on:
                        raise BadRequest(self._about(name, entry, str(error))) from None
                    self._note(name, entry, str(error))
                yield 1

    def _note(self, section: str, entry: Mapping[str, object], text: str) -> None:
        """Something is passed over."""
        if len(self._notes) == MAX_NOTES:
            self._left_out += 1
            return
        self._notes.append(self._about(section, entry, text))
        logger.warning("definitions: %s", self._notes[-1])

    def _about(self, section: str, entry: Mapping[str, object], text: str) -> str:
        """What is to be said of an entry, with what it is."""
        kind = _KINDS.get(section, section.removesuffix("s"))
        names = [entry.get(key) for key in ("name", "user", "source", "destination")]
        what = " ".join(repr(name) for name in names if name is not None)
        vhost = self._vhost or entry.get("vhost")
        place = f" in {vhost!r}" if vhost is not None else ""
        return f"{kind} {what[:1024]}{place}: {text}"

    def _place(self, entry: Mapping[str, object]) -> VirtualHost:
        return self._broker.vhost(self._vhost or text_of(entry, "vhost"))

    def _operator(self, vhost: VirtualHost) -> Operator:
        return operator(self._broker, self._call.identity, vhost.name, imports=True)

    def _user(self, entry: Mapping[str, object]) -> None:
        name = text_of(entry, "name")
        if self._is_configured(name):
            raise _PassedOver("it stands in the configuration, and stays as it is there")
        stored, scram = "", None
        if self._hashed is not None:
            (stored, scram), self._hashed = self._hashed, None
        elif entry.get("password_hash"):
            algorithm = entry.get("hashing_algorithm")
            stored = imported(text_of(entry, "password_hash"), str(algorithm or ""))
        known = self._broker.users.find(name)
        says_nothing = not stored and "password_hash" in entry
        if known is not None and (says_nothing or stored == known.stored):
            # It may have a password that the document cannot say; its hash is empty then. Without
            # hash and password the document takes the password away, as for RabbitMQ.
            stored, scram = known.stored, scram or known.scram
        put_user(self._broker, name, stored, tags_of(entry.get("tags", [])), scram)
        limits = table_of(entry, "limits")
        if limits:
            self._broker.logins.limits.set(name, limits)

    def _begin_hashing(self, entry: Mapping[str, object]) -> bool:
        """Whether a thread hashes a user's password before the import goes on."""
        password = password_of(entry).encode()
        name = text_of(entry, "name")
        if not password or self._is_configured(name):
            return False
        users = self._broker.users
        known = users.find(name)
        if known is None:
            users.check_new(name)
        users.check_password(password)
        self._hashed = None
        self._is_hashing = True

        def work() -> bool:
            made = users.hash(password)
            if known is not None and verify_password(known.stored, password):
                # It has this password: who has shown it need not do so again.
                made = (known.stored, known.scram or made[1])
            self._hashed = made
            return True

        def done(_: bool) -> None:
            self._is_hashing = False
            self._call.go_on(self.go_on)

        self._broker.driver.run_blocking(work, done)
        return True

    def _is_configured(self, name: str) -> bool:
        return self._broker.users.is_configured(name)

    def _virtual_host(self, entry: Mapping[str, object]) -> None:
        name = text_of(entry, "name")
        known = self._broker.vhosts.get(name)
        metadata = table_of(entry, "metadata")
        self._broker.virtual_hosts.declare(name, settings_of(known, {**metadata, **entry}))

    def _global_parameter(self, entry: Mapping[str, object]) -> None:
        GlobalParameters(self._broker).set(text_of(entry, "name"), entry.get("value"))

    def _scope(self, entry: Mapping[str, object]) -> str:
        name = text_of(entry, "vhost")
        return name if name == EVERY_VHOST else self._broker.vhost(name).name

    def _permission(self, entry: Mapping[str, object]) -> None:
        user = text_of(entry, "user")
        if not self._is_configured(user):
            vhost = self._scope(entry)
            kinds = ("configure", "write", "read")
            permit(self._broker, user, vhost, [text_of(entry, kind) for kind in kinds])

    def _topic_permission(self, entry: Mapping[str, object]) -> None:
        user = text_of(entry, "user")
        if not self._is_configured(user):
            vhost = self._scope(entry)
            patterns = [text_of(entry, kind) for kind in ("write", "read")]
            permit_topics(self._broker, user, vhost, text_of(entry, "exchange"), patterns)

    def _role(self, entry: Mapping[str, object]) -> None:
        name = text_of(entry, "name")
        granted = self._broker.authentication.granted
        if granted.is_configured(ROLE, name):
            self._note("roles", entry, "it stands in the configuration, and stays as it is there")
            return
        permissions, topics = table_of(entry, "permissions"), table_of(entry, "topic_permissions")
        granted.set(ROLE, name, grants_of(permissions, topics, texts_of(entry, "acl"), []))

    def _grant(self, entry: Mapping[str, object]) -> None:
        user = text_of(entry, "user")
        if self._is_configured(user):
            return
        authentication = self._broker.authentication
        home = text_of(entry, "virtual_host", "")
        if home:
            authentication.set_virtual_host(user, home)
        said = [table_of(entry, key) for key in ("permissions", "topic_permissions")]
        permissions, topics = [{EVERY_VHOST: each} if each else {} for each in said]
        made = grants_of(permissions, topics, [], texts_of(entry, "roles"))
        grants = authentication.granted.copy(USER, user)
        grants.permissions |= made.permissions
        grants.topics |= made.topics
        grants.roles = made.roles or grants.roles
        authentication.granted.set(USER, user, grants)

    def _parameter(self, entry: Mapping[str, object]) -> None:
        component = text_of(entry, "component")
        if component == LIMITS:
            set_vhost_limits(self._broker, self._place(entry), table_of(entry, "value"))
        elif component == OPERATOR_POLICY:
            self._set_policy(OF_OPERATORS, entry, table_of(entry, "value"), None)
        else:
            raise _PassedOver(f"{component!r} means nothing here")

    def _policy(self, entry: Mapping[str, object]) -> None:
        declarers = self._broker.authentication.declarers
        setter = declarers.of_policy(self._call.identity, self._place(entry).name)
        self._set_policy(USUAL, entry, entry, setter)

    def _set_policy(
        self,
        kind: PolicyKind,
        entry: Mapping[str, object],
        about: Mapping[str, object],
        setter: Declarer | None,
    ) -> None:
        name = text_of(entry, "name")
        definition = table_of(about, "definition")
        left = {key: value for key, value in definition.items() if key not in MEANINGLESS}
        for key in definition.keys() - left.keys():
            self._note("policies", entry, f"{key!r} means nothing here")
        if not left:
            return
        about = {**about, "definition": left}
        said = about.get("apply-to", ALL)
        only = sorted({_KINDS_OF_KEYS[key] for key in definition if key in _KINDS_OF_KEYS})
        narrowed = text_of(entry, NARROWED_TO, "")
        if only and not narrowed and not left.keys() & EXCHANGE_KEYS:
            narrowed = only[0]
            if said in (ALL, QUEUES):
                text = f"it holds for {narrowed.replace('_', ' ')} alone, as what was left out did"
                self._note("policies", entry, text)
        is_narrowed = narrowed != "" and said in (ALL, QUEUES)
        if is_narrowed:
            about["apply-to"] = narrowed
        policy = policy_of(name, about, setter)
        policy.imported_as = str(said) if is_narrowed else ""
        kind.set(self._place(entry), policy)

    def _queue(self, entry: Mapping[str, object]) -> None:
        vhost = self._place(entry)
        arguments = _arguments_of(entry)
        declare_queue(
            vhost,
            self._operator(vhost),
            text_of(entry, "name"),
            flag_of(entry, "durable"),
            flag_of(entry, "auto_delete"),
            arguments,
        )
        for key in arguments:
            if key.startswith("x-") and key not in MEANINGFUL:
                self._note("queues", entry, f"{key!r} means nothing here")

    def _exchange(self, entry: Mapping[str, object]) -> None:
        vhost = self._place(entry)
        name = text_of(entry, "name")
        if _is_predeclared(name) and (not name or name not in vhost.exchanges):
            return
        declare_exchange(
            vhost,
            self._operator(vhost),
            name,
            text_of(entry, "type"),
            flag_of(entry, "durable"),
            flag_of(entry, "auto_delete"),
            flag_of(entry, "internal"),
            _arguments_of(entry),
        )

    def _binding(self, entry: Mapping[str, object]) -> None:
        vhost = self._place(entry)
        bind(
            vhost,
            self._operator(vhost),
            text_of(entry, "source"),
            text_of(entry, "destination"),
            text_of(entry, "destination_type") == "exchange",
            _key_of(entry),
            _arguments_of(entry),
        )


def _bytes_of(entry: Mapping[str, object], key: str) -> bytes | None:
    """What base64 says; None where it is not there. Raises BadRequest."""
    if key not in entry:
        return None
    try:
        return base64.b64decode(text_of(entry, key), validate=True)
    except ValueError:
        raise BadRequest(f"{key!r} is base64") from None


def _key_of(entry: Mapping[str, object]) -> bytes:
    """The key of a binding. Raises BadRequest."""
    text = text_of(entry, "routing_key")
    found = _bytes_of(entry, KEY_BYTES)
    if found is None:
        return text.encode()
    if found.decode(errors="replace") != text:
        raise BadRequest(f"{KEY_BYTES!r} is not the key that 'routing_key' shows")
    return found


def _arguments_of(entry: Mapping[str, object]) -> dict[str, HeaderValue]:
    """The arguments of a queue, an exchange or a binding. Raises BadRequest."""
    shown_as = table_of(entry, "arguments")
    data = _bytes_of(entry, ARGUMENT_BYTES)
    if data is None:
        return shown_as
    try:
        found = unpack(data)
    except (ValueError, TypeError, OverflowError, RecursionError):
        found = None
    # What only this would say cannot be looked at by whoever reads the document.
    if not isinstance(found, dict) or not _is_sound(found) or not _is_shown(found, shown_as):
        raise BadRequest(f"{ARGUMENT_BYTES!r} is not what 'arguments' shows")
    return found


def _is_shown(table: dict[str, HeaderValue], shown_as: dict[str, HeaderValue]) -> bool:
    return same(cast("HeaderValue", shown_table(table)), shown_as)


def _is_sound(value: object) -> bool:
    """Whether every road knows such values: names are texts, numbers finite."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_sound(item) for name, item in value.items())
    if isinstance(value, list):
        return all(map(_is_sound, value))
    return not isinstance(value, Decimal) or value.is_finite()


def post_all(call: Call) -> None:
    """Import a document of a broker."""
    Import(call, None, lambda _: call.gone()).go_on()


def post_of_vhost(call: Call) -> None:
    """Import a document of a virtual host."""
    Import(call, call.vhost.name, lambda _: call.gone()).go_on()


ENDPOINTS: Final = tuple(
    endpoint
    for path, get, post in (
        ("definitions", get_all, post_all),
        ("all-configuration", get_all, post_all),
        ("definitions/{vhost}", get_of_vhost, post_of_vhost),
    )
    for endpoint in (
        Endpoint("GET", path, get, ADMINISTRATORS),
        Endpoint("POST", path, post, ADMINISTRATORS, most_bytes=LARGE, most_values=MANY_VALUES),
    )
)
