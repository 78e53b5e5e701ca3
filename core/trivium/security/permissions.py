"""What an identity may do in a virtual host: one engine for every protocol.

Three notations are read here, those that users of other brokers have: RabbitMQ's patterns for names
(configure, write, read), its topic permissions, and Mosquitto's ACL lines; roles bundle them. What
a user may do is what its own grants and those of its roles allow together. A topic permission
narrows the patterns beside which it stands, and an ACL line ``deny`` takes away whatever the others
grant. Who has nothing may do nothing. The scopes of a token stand in for what its user is granted;
those of an API key narrow it.

``Access`` is one identity in one virtual host. It remembers its decisions until permissions change,
and is asked where routes are found, not where messages pass.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from trivium.common.events import Events
from trivium.common.patterns import Pattern, PatternError, literal
from trivium.errors import AccessRefused, PreconditionFailed
from trivium.messages.message import HeaderValue
from trivium.messages.topics import (
    MANY,
    ONE,
    RESERVED,
    filter_pattern,
    key_of,
    key_pattern,
    levels_of,
    matches,
    word_of,
)
from trivium.routing.exchanges import Binding, Exchange, Guard, TopicExchange
from trivium.security.identity import NOBODY, Identity
from trivium.security.scopes import CONFIGURE as CONFIGURE
from trivium.security.scopes import KINDS as KINDS
from trivium.security.scopes import READ as READ
from trivium.security.scopes import WRITE as WRITE
from trivium.security.scopes import ScopePatterns
from trivium.vhost.predeclared import EVENT_EXCHANGE, EVENTS_IN

#: The virtual host of permissions that hold in every one.
EVERY_VHOST: Final = "*"
#: The exchange whose topics ACL lines are about.
TOPIC_EXCHANGE: Final = "amq.topic"
#: First levels of the topics that are events.
_EVENTS: Final[list[bytes]] = [RESERVED, b"events"]
#: What the names begin with that the broker makes up for queues.
MADE_UP: Final = "amq.gen-"
#: The name under which patterns know the default exchange, as in RabbitMQ.
DEFAULT_EXCHANGE: Final = "amq.default"

#: Beside those of ``KINDS`` in what is remembered: all of the topics.
ALL: Final = "all"

#: Decisions that one ``Access`` remembers; emptied when full, since clients choose the names.
MAX_DECISIONS: Final = 4096
#: Bytes of names in the decisions that are remembered by all; beyond them all are forgotten.
MAX_DECISION_BYTES: Final = 16 << 20
#: Identities in virtual hosts that are kept for those who come, and bytes of the clients'
#: identifiers among them; emptied when full likewise.
MAX_ACCESSES: Final = 10_000
MAX_ACCESS_BYTES: Final = 4 << 20
#: Bytes of a name (user, role, virtual host), and lines of one ACL or roles of one user: what a
#: command can make the broker keep in one row.
MAX_NAME_BYTES: Final = 255
MAX_LINES: Final = 1024

logger = logging.getLogger(__name__)

_VARIABLE: Final = re.compile(r"\{(username|client_id|vhost)\}")
#: The pattern of everything, which narrows nothing.
_ANYTHING: Final = ".*"
_NOTHING: Final = "^$"
_PLACE: Final = re.compile(rb"%[uc]")
_ACL_ACCESS: Final = {
    "read": (READ,),
    "write": (WRITE,),
    "readwrite": (READ, WRITE),
    "deny": (),
}


class AclLine:
    """One line of an ACL: ``topic|pattern [read|write|readwrite|deny] FILTER``.

    Raises PreconditionFailed for another text.
    """

    def __init__(self, text: str) -> None:
        words = text.strip().split(None, 2)
        if len(words) < 2 or words[0] not in ("topic", "pattern"):
            raise PreconditionFailed(f"{text!r} is no ACL line: topic|pattern [ACCESS] FILTER")
        self.text = text.strip()
        self.is_pattern = words[0] == "pattern"
        self.access: tuple[str, ...] = (READ, WRITE)
        topic_filter = words[1]
        if len(words) == 3:
            if words[1] in _ACL_ACCESS:
                self.access = _ACL_ACCESS[words[1]]
                topic_filter = words[2]
            else:
                topic_filter = text.strip().split(None, 1)[1]
        self.filter: bytes = topic_filter.encode()
        levels = self.filter.split(b"/")
        for level in levels:
            has_wildcard = b"#" in level or b"+" in level
            if has_wildcard and (level not in (b"#", b"+") or b"#" in levels[:-1]):
                raise PreconditionFailed(f"{text!r}: {topic_filter!r} is no topic filter")

    def levels(self, username: str, client_id: str) -> list[bytes] | None:
        """The levels of the filter for this client, whose names stand for themselves alone; None
        where it has no such name, or one with characters that part or widen topics."""
        if not self.is_pattern:
            return filter_pattern(self.filter)
        values = {b"%u": username.encode(), b"%c": client_id.encode()}
        for place in _PLACE.findall(self.filter):
            value = values[place]
            if not value or b"+" in value or b"#" in value or b"/" in value:
                return None
        levels: list[bytes] = []
        for level in self.filter.split(b"/"):
            if level == b"+":
                levels.append(ONE)
            elif level == b"#":
                levels.append(MANY)
            else:
                # In one pass: what a name brings is not looked at again.
                parts = [key_of(part) for part in _PLACE.split(level)]
                names = [word_of(values[place]) for place in _PLACE.findall(level)]
                levels.append(parts[0] + b"".join(map(bytes.__add__, names, parts[1:])))
        return levels


class Grants:
    """What one user, or one role, is granted, as it was written.

    ``permissions`` maps virtual hosts to patterns (configure, write, read), ``topics`` virtual
    hosts and exchanges to patterns (write, read). The ACL holds in the user's own virtual host.
    Raises PreconditionFailed for what cannot be a pattern or a line.
    """

    def __init__(self) -> None:
        self.permissions: dict[str, tuple[str, str, str]] = {}
        self.topics: dict[tuple[str, str], tuple[str, str]] = {}
        self.acl: list[AclLine] = []
        self.roles: list[str] = []

    def permit(self, vhost: str, configure: str, write: str, read: str) -> None:
        """Set the patterns for names in a virtual host."""
        for text in (configure, write, read):
            check_pattern(text)
        self.permissions[vhost] = (configure, write, read)

    def permit_topics(self, vhost: str, exchange: str, write: str, read: str) -> None:
        """Set the patterns for routing keys at an exchange."""
        for text in (write, read):
            check_pattern(_VARIABLE.sub("x", text))
        self.topics[(vhost, exchange)] = (write, read)

    def set_acl(self, lines: list[str]) -> None:
        """Set the ACL lines."""
        self.acl = [AclLine(line) for line in lines]


def check_pattern(text: str) -> None:
    """Raise PreconditionFailed unless ``text`` is a pattern."""
    try:
        Pattern(text)
    except PatternError as error:
        raise PreconditionFailed(f"invalid pattern '{text}': {error}") from None


def grants_of(
    permissions: Mapping[str, object],
    topic_permissions: Mapping[str, object],
    acl: list[str],
    roles: list[str],
) -> Grants:
    """Grants from maps: virtual host to patterns by kind, virtual host to exchange to patterns by
    kind. What is left out permits nothing. Raises PreconditionFailed."""
    made = Grants()
    for vhost, patterns in permissions.items():
        texts = _texts(patterns, KINDS, f"permissions in '{vhost}'")
        made.permit(vhost, texts[0], texts[1], texts[2])
    for vhost, exchanges in topic_permissions.items():
        if not isinstance(exchanges, Mapping):
            raise PreconditionFailed(f"topic permissions in '{vhost}' are no table of exchanges")
        for exchange, patterns in exchanges.items():
            texts = _texts(patterns, (WRITE, READ), f"topic permissions of '{exchange}'")
            made.permit_topics(vhost, str(exchange), texts[0], texts[1])
    made.set_acl(acl)
    made.roles = list(roles)
    return made


def _texts(patterns: object, kinds: tuple[str, ...], what: str) -> list[str]:
    if not isinstance(patterns, Mapping):
        raise PreconditionFailed(f"{what} are no table of patterns")
    for kind, text in patterns.items():
        if kind not in kinds or not isinstance(text, str):
            raise PreconditionFailed(f"{what} are {', '.join(kinds)}, each a text")
    return [str(patterns.get(kind, "")) for kind in kinds]


def _matcher(text: str) -> Pattern:
    # As in RabbitMQ, where the empty pattern is that of nothing, not of everything.
    return Pattern(text or _NOTHING)


def expand_pattern(text: str, values: Mapping[str, str]) -> Pattern | None:
    """A pattern with variables such as ``{username}``, whose values match themselves alone.

    None, which is to match nothing, where a variable has no value, or it becomes too long.
    """
    for variable in _VARIABLE.findall(text):
        if not values.get(variable):
            return None
    try:
        return _matcher(_VARIABLE.sub(lambda found: literal(values[found.group(1)]), text))
    except PatternError:
        return None


class _Patterns:
    """The patterns of one virtual host out of one set of grants."""

    def __init__(self, texts: tuple[str, str, str]) -> None:
        self.names: dict[str, Pattern] = {}
        for index, kind in enumerate(KINDS):
            self.names[kind] = _matcher(texts[index])
        #: by exchange and kind; None matches nothing
        self.topics: dict[tuple[str, str], Pattern | None] = {}
        self._is_everything = texts == (_ANYTHING, _ANYTHING, _ANYTHING)

    @property
    def is_everything(self) -> bool:
        """Whether they allow everything."""
        return self._is_everything and not self.topics

    def allow(self, kind: str, name: str) -> bool:
        return self.names[kind].matches(name)

    def allow_some(self, kind: str) -> bool:
        """Whether they allow any name."""
        return self.names[kind].text != _NOTHING

    def allow_topic(self, kind: str, exchange: str, key: str) -> bool:
        """Whether they allow what the ``key`` says at an exchange, whose name they do allow."""
        place = (exchange, kind)
        if place not in self.topics:
            return True
        pattern = self.topics[place]
        return pattern is not None and pattern.matches(key)

    def allow_every_topic(self, kind: str, exchange: str) -> bool:
        """Whether they allow a name and no topic permission narrows it."""
        return self.allow(kind, exchange) and (exchange, kind) not in self.topics


class _Acl:
    """The lines of one ACL that apply to a client, by what they do."""

    def __init__(self) -> None:
        self.denied: list[list[bytes]] = []
        self.granted: dict[str, list[list[bytes]]] = {READ: [], WRITE: []}

    def add(self, line: AclLine, username: str, client_id: str) -> None:
        levels = line.levels(username, client_id)
        if levels is None:
            if not line.access:
                # What it was to deny is not known.
                self.denied.append([MANY])
            return
        if not line.access:
            self.denied.append(levels)
        for kind in line.access:
            self.granted[kind].append(levels)


class Decisions(Guard):
    """What one identity may do in one virtual host."""

    def __init__(
        self, permissions: Permissions, identity: Identity, vhost: str, client_id: str
    ) -> None:
        self.identity = identity
        self.vhost = vhost
        self.client_id = client_id
        self._permissions = permissions
        self._generation = -1
        self._is_open = False
        self._patterns: list[_Patterns | ScopePatterns] = []
        # What it is narrowed to; None: nothing narrows it.
        self._limit: ScopePatterns | None = None
        self._acl = _Acl()
        self._names: dict[tuple[str, str], bool] = {}
        self._topics: dict[tuple[str, str, bytes], bool] = {}

    def _refresh(self) -> None:
        """Forget what was decided, if permissions have changed since."""
        permissions = self._permissions
        if self._generation == permissions.generation:
            return
        self._generation = permissions.generation
        self._names = {}
        self._topics = {}
        self._patterns = []
        self._acl = _Acl()
        name = self.identity.name
        every = permissions.grants_for(self.identity)
        home = permissions.home_of(name)
        for grants in every:
            for vhost in (self.vhost, EVERY_VHOST):
                texts = grants.permissions.get(vhost)
                if texts is not None:
                    self._patterns.append(self._with_topics(_Patterns(texts), grants))
            if home == self.vhost:
                for line in grants.acl:
                    self._acl.add(line, name, self.client_id)
        limit = self._take_scopes()
        self._limit = limit
        self._is_open = (
            not self._acl.denied
            and any(each.is_everything for each in self._patterns)
            and (limit is None or limit.is_everything)
        )

    def _take_scopes(self) -> ScopePatterns | None:
        """Put the scopes in the place of what is granted, or give what they narrow it to."""
        words = self.identity.scopes
        if words is None:
            return None
        scopes = ScopePatterns(words, self.vhost)
        if self.identity.is_narrowed:
            return scopes
        # What is denied stays denied.
        self._patterns = [scopes] if scopes.is_something else []
        self._acl.granted = {READ: [], WRITE: []}
        return None

    def forget(self) -> None:
        """Forget what was decided."""
        self._names = {}
        self._topics = {}

    def _with_topics(self, patterns: _Patterns, grants: Grants) -> _Patterns:
        for (vhost, exchange), (write, read) in grants.topics.items():
            if vhost == self.vhost or vhost == EVERY_VHOST:
                for kind, text in ((WRITE, write), (READ, read)):
                    place = (exchange, kind)
                    if text != _ANYTHING:
                        patterns.topics[place] = self._expanded(text)
                    elif place in patterns.topics:
                        # Those of every virtual host do not narrow what is said later.
                        del patterns.topics[place]
        return patterns

    def _expanded(self, text: str) -> Pattern | None:
        """A topic permission for this client, each of whose names is one word of its own."""
        names = {
            "username": self.identity.name,
            "client_id": self.client_id,
            "vhost": self.vhost,
        }
        return expand_pattern(text, {kind: _word(name) for kind, name in names.items()})

    @property
    def is_open(self) -> bool:
        """Whether everything is allowed."""
        self._refresh()
        return self._is_open

    @property
    def may_enter(self) -> bool:
        """Whether anything is granted in this virtual host."""
        self._refresh()
        acl = self._acl.granted
        limit = self._limit
        return bool(self._patterns or acl[READ] or acl[WRITE]) and (
            limit is None or limit.is_something
        )

    def may(self, kind: str, name: str) -> bool:
        """Whether the name of an exchange, queue or stream may be configured, written or read."""
        self._refresh()
        if self._is_open:
            return True
        place = (kind, name)
        known = self._names.get(place)
        if known is None:
            known = self._decide(kind, name or DEFAULT_EXCHANGE)
            self._remember_name(place, known)
        return known

    def may_some(self, kind: str) -> bool:
        """Whether there may be a name for which ``may`` is true: it is false where every pattern is
        the one that matches nothing."""
        self._refresh()
        limit = self._limit
        return any(each.allow_some(kind) for each in self._patterns) and (
            limit is None or limit.allow_some(kind)
        )

    def _remember_name(self, place: tuple[str, str], decision: bool) -> None:
        if len(self._names) >= MAX_DECISIONS:
            self._names.clear()
        self._names[place] = decision
        self._permissions.decided(len(place[1]))

    def _decide(self, kind: str, name: str) -> bool:
        limit = self._limit
        return any(each.allow(kind, name) for each in self._patterns) and (
            limit is None or limit.allow(kind, name)
        )

    def may_topic(self, kind: str, exchange: str, key: bytes) -> bool:
        """Whether what is addressed to ``key`` at an exchange may be written, or read there."""
        self._refresh()
        if self._is_open:
            return True
        place = (kind, exchange, key)
        known = self._topics.get(place)
        if known is None:
            known = self._decide_topic(kind, exchange, key)
            self._remember(place, known)
        return known

    def _remember(self, place: tuple[str, str, bytes], decision: bool) -> None:
        if len(self._topics) >= MAX_DECISIONS:
            self._topics.clear()
        self._topics[place] = decision
        self._permissions.decided(len(place[2]))

    def admits(self, exchange: Exchange, binding: Binding, key: bytes) -> bool:
        return self.may_topic(READ, exchange.name, key)

    def _decide_topic(self, kind: str, exchange: str, key: bytes) -> bool:
        if not self._is_within(kind, exchange, key):
            return False
        if exchange == TOPIC_EXCHANGE:
            levels = levels_of(key)
            if kind == READ and not self._may_read_events(levels, False):
                return False
            if any(matches(denied, levels) for denied in self._acl.denied):
                return False
            if any(_covers(granted, levels) for granted in self._acl.granted[kind]):
                return True
        return self._patterns_allow(kind, exchange, key)

    def _may_read_events(self, levels: list[bytes], with_wider: bool) -> bool:
        """Whether a pattern at the exchange of topics asks for no events, or for those that may be
        read where they come from: ``$SYS.events.KEY`` needs what KEY needs there. ``with_wider``
        looks at patterns too that ask for more than events, whose messages nobody looks at."""
        if self.vhost != EVENTS_IN or not levels or levels[0] != RESERVED:
            return True
        if levels[: len(_EVENTS)] == _EVENTS:
            key = _as_key(levels[len(_EVENTS) :])
        elif with_wider and _meet([*_EVENTS, MANY], levels):
            key = b"#"
        else:
            return True
        return self._is_within(READ, EVENT_EXCHANGE, key) and self._patterns_allow(
            READ, EVENT_EXCHANGE, key
        )

    def _is_within(self, kind: str, exchange: str, key: bytes) -> bool:
        """Whether what narrows it allows that."""
        text = key.decode(errors="surrogateescape")
        limit = self._limit
        return limit is None or limit.allow_topic(kind, exchange or DEFAULT_EXCHANGE, text)

    def _patterns_allow(self, kind: str, exchange: str, key: bytes) -> bool:
        name = exchange or DEFAULT_EXCHANGE
        # Bytes that are no text have no meaning in a pattern, and lose none of their own.
        text = key.decode(errors="surrogateescape")
        return any(
            each.allow(kind, name) and each.allow_topic(kind, exchange, text)
            for each in self._patterns
        )

    def may_subscribe(self, exchange: str, pattern: bytes, is_filter: bool) -> bool:
        """Whether to listen at a topic exchange by an MQTT filter or a binding key.

        Each message is checked when its route is found, so a wildcard is admitted once there may be
        something for it. A topic permission sees it as the binding key that it is (RabbitMQ).
        """
        self._refresh()
        if self._is_open:
            return True
        levels = filter_pattern(pattern) if is_filter else key_pattern(pattern)
        if ONE not in levels and MANY not in levels:
            return self.may_topic(READ, exchange, key_of(pattern) if is_filter else pattern)
        if not self._is_within(READ, exchange, _as_key(levels)):
            return False
        if exchange == TOPIC_EXCHANGE:
            if not self._may_read_events(levels, False):
                return False
            if any(_covers(denied, levels) for denied in self._acl.denied):
                return False
            if any(_meet(granted, levels) for granted in self._acl.granted[READ]):
                return True
        return self._patterns_allow(READ, exchange, _as_key(levels))

    def may_read_all(self, exchange: str, pattern: bytes) -> bool:
        """Whether all that a binding key leads on from a topic exchange may be read: what lies in a
        queue is not looked at again."""
        self._refresh()
        if self._is_open:
            return True
        place = (ALL, exchange, pattern)
        known = self._topics.get(place)
        if known is None:
            known = self._decide_all(exchange, pattern)
            self._remember(place, known)
        return known

    def _decide_all(self, exchange: str, pattern: bytes) -> bool:
        levels = key_pattern(pattern)
        if not self._is_within(READ, exchange, pattern):
            return False
        if exchange == TOPIC_EXCHANGE:
            if not self._may_read_events(levels, True):
                return False
            if any(_meet(denied, levels) for denied in self._acl.denied):
                return False
            if any(_covers(granted, levels) for granted in self._acl.granted[READ]):
                return True
        return self._patterns_allow(READ, exchange, pattern)

    def may_write_all(self, exchange: str) -> bool:
        """Whether every topic of an exchange may be written: what leads messages on to it by itself
        is not asked again, and others choose their routing keys.

        The exchange need not be there yet, so its type makes no difference.
        """
        if not self.may(WRITE, exchange):
            return False
        # The default exchange has no topics.
        if self._is_open or not exchange:
            return True
        place = (ALL, exchange)
        known = self._names.get(place)
        if known is None:
            limit = self._limit
            known = (
                not (exchange == TOPIC_EXCHANGE and self._acl.denied)
                and (limit is None or limit.allow_every_topic(WRITE, exchange))
                and any(each.allow_every_topic(WRITE, exchange) for each in self._patterns)
            )
            self._remember_name(place, known)
        return known

    def may_pass_on(self, name: str, target: str, key: str | None) -> bool:
        """Whether an exchange or queue may pass messages on to the exchange ``target``: it is read
        here and written there, by every routing key or, with ``key``, by that one."""
        if not self.may(READ, name) or not self.may(WRITE, target):
            return False
        if key is None:
            return self.may_write_all(target)
        return not target or self.may_topic(WRITE, target, key.encode())


class Access(Decisions):
    """The same, as refusals of what it may not do."""

    def refused(self, what: str) -> AccessRefused:
        """The refusal of ``what``, which is counted and, on request, logged."""
        text = f"{what} refused for user '{self.identity.name}'"
        self._permissions.denied(text, self.identity)
        return AccessRefused(text)

    def topic_refused(self, topic: bytes) -> None:
        """Note that a message to an MQTT topic was refused."""
        self.refused(f"write access to topic '{topic.decode(errors='replace')}'")

    def require_entry(self) -> None:
        """Raise AccessRefused unless the virtual host may be entered."""
        if not self.may_enter:
            raise self.refused(f"access to vhost '{self.vhost}'")

    def require(self, kind: str, what: str, name: str) -> None:
        """Raise AccessRefused unless ``may``; ``what`` is ``exchange``, ``queue``, ``stream``."""
        if not self.may(kind, name):
            raise self.refused(
                f"{kind} access to {what} '{name or DEFAULT_EXCHANGE}' in vhost '{self.vhost}'"
            )

    def require_topic(self, kind: str, exchange: str, key: bytes) -> None:
        """Raise AccessRefused unless ``may_topic``, or the exchange as such may not be used."""
        if self.may_topic(kind, exchange, key):
            return
        if exchange != TOPIC_EXCHANGE:
            self.require(kind, "exchange", exchange)
        raise self._topic_refused(kind, exchange, key)

    def _topic_refused(self, kind: str, exchange: str, key: bytes) -> AccessRefused:
        return self.refused(
            f"{kind} access to topic '{key.decode(errors='replace')}' in exchange"
            f" '{exchange or DEFAULT_EXCHANGE}' in vhost '{self.vhost}'"
        )

    def require_binding(self, exchange: str, pattern: bytes) -> None:
        """Raise AccessRefused unless ``may_read_all``, or the exchange as such may not be read."""
        if self.may_read_all(exchange, pattern):
            return
        if not self._patterns_allow(READ, exchange, pattern):
            self.require(READ, "exchange", exchange)
        raise self._topic_refused(READ, exchange, pattern)

    def require_every_topic(self, exchange: str) -> None:
        """Raise AccessRefused unless ``may_write_all``."""
        self.require(WRITE, "exchange", exchange)
        if not self.may_write_all(exchange):
            raise self._topic_refused(WRITE, exchange, b"#")

    # What the operations of all protocols need

    def require_publish(self, exchange: Exchange, key: bytes) -> None:
        """Raise AccessRefused unless messages may be published to an address."""
        if isinstance(exchange, TopicExchange):
            self.require_topic(WRITE, exchange.name, key)
        else:
            self.require(WRITE, "exchange", exchange.name)

    def require_exchange(self, kind: str, name: str) -> None:
        """``require`` (WRITE, READ) for an exchange that is yet to be found: it is not said whether
        it is there.

        At the exchange of topics each of them is looked at instead.
        """
        if name != TOPIC_EXCHANGE:
            self.require(kind, "exchange", name)

    def require_source(self, exchange: Exchange, pattern: bytes) -> None:
        """Raise AccessRefused unless what a binding key leads on from ``exchange`` may be read."""
        if isinstance(exchange, TopicExchange):
            self.require_binding(exchange.name, pattern)
        else:
            self.require(READ, "exchange", exchange.name)

    def require_live(self, exchange: Exchange, pattern: bytes) -> None:
        """``require_source`` for one whose messages are checked one by one."""
        if not isinstance(exchange, TopicExchange):
            self.require(READ, "exchange", exchange.name)
        elif not self.may_subscribe(exchange.name, pattern, False):
            self.require_exchange(READ, exchange.name)
            raise self._topic_refused(READ, exchange.name, pattern)

    def require_declaration(
        self, what: str, name: str, is_new: bool, arguments: Mapping[str, HeaderValue]
    ) -> None:
        """Raise AccessRefused unless an exchange or queue may be declared: what a new one passes on
        (``alternate-exchange``, ``x-dead-letter-exchange``) is read here and written there, by
        every routing key or, with an ``x-dead-letter-routing-key``, by that one."""
        self.require(CONFIGURE, what, name)
        argument = "alternate-exchange" if what == "exchange" else "x-dead-letter-exchange"
        target = arguments.get(argument)
        if is_new and isinstance(target, str):
            self.require(READ, what, name)
            self.require(WRITE, "exchange", target)
            key = arguments.get("x-dead-letter-routing-key")
            if what == "exchange" or not isinstance(key, str):
                self.require_every_topic(target)
            elif target:
                self.require_topic(WRITE, target, key.encode())


def _word(name: str) -> str:
    """A name as a word of routing keys; "" for one that is a wildcard in binding keys, which a
    pattern could not tell from that."""
    if name in ("*", "#"):
        return ""
    return word_of(name.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def _as_key(levels: list[bytes]) -> bytes:
    """A pattern as a binding key."""
    words = [b"*" if level == ONE else b"#" if level == MANY else level for level in levels]
    return b".".join(words)


def _hides(wide: list[bytes], levels: list[bytes]) -> bool:
    """Whether ``wide`` begins with a wildcard, which stands for no ``$`` topic (MQTT-4.7.2-1)."""
    return bool(levels and wide) and levels[0][:1] == b"$" and wide[0] in (ONE, MANY)


def _covers(wide: list[bytes], narrow: list[bytes]) -> bool:
    """Whether everything that matches ``narrow`` matches ``wide``, as far as that shows level by
    level; with ``narrow`` the levels of one address, whether that matches."""
    if _hides(wide, narrow):
        return False
    for index, level in enumerate(wide):
        if level == MANY:
            return True
        if index >= len(narrow) or narrow[index] == MANY:
            return False
        if level != ONE and level != narrow[index]:
            return False
    return len(wide) == len(narrow)


def _meet(one: list[bytes], other: list[bytes]) -> bool:
    """Whether any address matches both patterns. ``one`` has MANY at its end only."""
    reached = {0}
    # Positions in ``one`` after each level of ``other``.
    for level in other:
        following: set[int] = set()
        for at in reached:
            ends = at < len(one) and one[at] == MANY
            if level == MANY:
                following.update(range(at, len(one) + 1))
            elif ends:
                following.add(at)
            elif at < len(one) and (ONE in (level, one[at]) or level == one[at]):
                following.add(at + 1)
        reached = following
    return any(at == len(one) or one[at] == MANY for at in reached)


class Permissions:
    """The grants of all users and roles of a broker, and who has asked about them."""

    def __init__(self, events: Events | None = None) -> None:
        self._events = events or Events()
        #: raised by each change: decisions made before do not hold
        self.generation = 0
        #: operations that were refused, and whether each is logged
        self.denials = 0
        self.logs_denials = False
        self._users: dict[str, Grants] = {}
        self._roles: dict[str, Grants] = {}
        #: what holds for every user (``pattern`` lines of an ACL file)
        self._common = Grants()
        self._anonymous = Grants()
        self._accesses: dict[tuple[Identity, str, str], Access] = {}
        self._access_bytes = 0
        #: bytes of names in decisions that are remembered
        self.decision_bytes = 0
        #: the virtual host in which the ACL lines of a user hold
        self.home_of: Callable[[str], str] = lambda _: "/"
        #: what those may do who have not authenticated
        self.nobody = Access(self, NOBODY, "", "")

    def denied(self, text: str, identity: Identity) -> None:
        """Something was refused, which is counted and, on request, logged."""
        self.denials += 1
        if self.logs_denials:
            logger.info("%s", text)
        self._events.tell("permission.denied", user=identity.name, reason=text)

    def require_tag(self, identity: Identity, tags: frozenset[str], what: str) -> None:
        """Raise AccessRefused unless ``identity`` has one of ``tags``, which ``what`` needs."""
        if not identity.tags & tags:
            text = f"{what}: the tag {' or '.join(sorted(tags))} is needed"
            self.denied(f"{text}, which user '{identity.name}' has not", identity)
            raise AccessRefused(text)

    def set_user(self, name: str, grants: Grants | None) -> None:
        """Set or, with None, forget what a user is granted."""
        _set(self._users, name, grants)
        self.generation += 1

    def set_role(self, name: str, grants: Grants | None) -> None:
        """Set or forget a role. Who has one that is not there has nothing by it."""
        _set(self._roles, name, grants)
        self.generation += 1

    def set_anonymous(self, grants: Grants) -> None:
        """Set what clients without credentials are granted."""
        self._anonymous = grants
        self.generation += 1

    def set_common(self, lines: list[AclLine]) -> None:
        """Set the ACL lines that hold for everybody."""
        self._common.acl = lines
        self.generation += 1

    def user(self, name: str) -> Grants | None:
        """What a user is granted."""
        return self._users.get(name)

    def role(self, name: str) -> Grants | None:
        """What a role grants."""
        return self._roles.get(name)

    def users(self) -> list[str]:
        """Names of the users who are granted anything, in no order."""
        return list(self._users)

    def roles(self) -> list[str]:
        """Names of the roles, in no order."""
        return list(self._roles)

    def grants_for(self, identity: Identity) -> list[Grants]:
        """All that holds for an identity: its own, its roles', everybody's."""
        own = self._anonymous if identity.is_anonymous else self._users.get(identity.name)
        found: list[Grants] = []
        if own is not None:
            found.append(own)
            for name in own.roles:
                role = self._roles.get(name)
                if role is not None:
                    found.append(role)
        if identity.is_anonymous or identity.name:
            found.append(self._common)
        return found

    def access(self, identity: Identity, vhost: str, client_id: str = "") -> Access:
        """What ``identity`` may do in a virtual host; one object for all who ask the same."""
        place = (identity, vhost, client_id)
        found = self._accesses.get(place)
        if found is None:
            found = Access(self, identity, vhost, client_id)
            self._access_bytes += len(client_id)
            if len(self._accesses) >= MAX_ACCESSES or self._access_bytes > MAX_ACCESS_BYTES:
                self._accesses.clear()
                self._access_bytes = len(client_id)
            self._accesses[place] = found
        return found

    def decided(self, size: int) -> None:
        """A decision about a name of this length is remembered: if they are too many by now, all
        are forgotten, as by a change."""
        self.decision_bytes += size
        if self.decision_bytes > MAX_DECISION_BYTES:
            self.decision_bytes = size
            self.generation += 1
            for access in self._accesses.values():
                access.forget()

    def depends_on_client_id(self, identity: Identity) -> bool:
        """Whether what it may do depends on the client identifier too."""
        for grants in self.grants_for(identity):
            if any(line.is_pattern and b"%c" in line.filter for line in grants.acl):
                return True
            for patterns in grants.topics.values():
                if any("{client_id}" in text for text in patterns):
                    return True
        return False


def _set(table: dict[str, Grants], name: str, grants: Grants | None) -> None:
    if grants is None:
        table.pop(name, None)
    else:
        table[name] = grants


class AclFile:
    """What a Mosquitto ACL file says: for clients without credentials, by user, for everybody
    (``pattern``)."""

    def __init__(self) -> None:
        self.anonymous: list[AclLine] = []
        self.users: dict[str, list[AclLine]] = {}
        self.common: list[AclLine] = []


def read_acl_file(name: str) -> AclFile:
    """Read a Mosquitto ACL file. Raises PreconditionFailed, which names the line and not what is in
    it."""
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise PreconditionFailed(f"acl_file {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PreconditionFailed(f"acl_file {name}: it is not UTF-8") from None
    found = AclFile()
    current = found.anonymous
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        keyword, _, rest = line.partition(" ")
        if keyword == "user" and rest.strip():
            current = found.users.setdefault(rest.strip(), [])
            continue
        try:
            entry = AclLine(line)
        except PreconditionFailed:
            # It may be another file, with secrets, so it is not shown.
            is_acl = keyword in ("topic", "pattern")
            what = f"{keyword} [ACCESS] FILTER" if is_acl else "user, topic or pattern"
            raise PreconditionFailed(f"acl_file {name}, line {number}: is no {what}") from None
        (found.common if entry.is_pattern else current).append(entry)
    return found
