"""Policies: settings for all objects whose name matches a pattern, put in force at run time.

Of the policies that match an object the one with the highest priority holds, alone, as in RabbitMQ;
of several with the same priority the first by name. Beside them there are policies of operators, of
which one holds in the same way: it bounds what the other says. Policies are rows of tables, so they
are durable and come back with the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trivium.common.patterns import Pattern, PatternError
from trivium.common.values import pack, same, unpack
from trivium.errors import NotFound, PreconditionFailed
from trivium.messages.message import HeaderValue
from trivium.queues.arguments import (
    MAX_TEXT_BYTES,
    QUEUE_RULES,
    QUORUM,
    check_strategy,
    queue_type,
)
from trivium.queues.settings import POLICY_KEYS, stricter
from trivium.routing.exchanges import Declarer, Declarers
from trivium.storage.base import Storage, Table
from trivium.streams.settings import STREAM_RULES

QUEUES: Final = "queues"
CLASSIC_QUEUES: Final = "classic_queues"
QUORUM_QUEUES: Final = "quorum_queues"
EXCHANGES: Final = "exchanges"
STREAMS: Final = "streams"
ALL: Final = "all"
#: What a policy may apply to.
APPLIES_TO: Final = (ALL, QUEUES, CLASSIC_QUEUES, QUORUM_QUEUES, STREAMS, EXCHANGES)

#: What a policy for exchanges may set.
EXCHANGE_KEYS: Final = frozenset({"alternate-exchange"})

#: What a policy sets of queues alone, and of streams alone. RabbitMQ's streams have no
#: ``max-length`` (``unsupported_policies`` of their ``capabilities``): one for both is of queues.
_OF_QUEUES: Final = POLICY_KEYS - {"max-length-bytes"}
_OF_STREAMS: Final = STREAM_RULES.keys() - {"max-length", "max-length-bytes"}

#: What a policy of operators may set: limits (RabbitMQ: ``operator_policy_validator``, of 4.0).
OPERATOR_KEYS: Final = frozenset(
    ("expires", "message-ttl", "max-length", "max-length-bytes", "delivery-limit", "overflow")
)

#: Policies of a virtual host, and of operators there: each new queue is compared with all of them.
MAX_POLICIES: Final = 256


class Policy:
    """One policy. ``definition`` maps keys such as ``max-length`` to values."""

    def __init__(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, HeaderValue],
        apply_to: str = ALL,
        priority: int = 0,
        declarer: Declarer | None = None,
    ) -> None:
        self.name = name
        self.pattern = pattern
        self.definition = dict(definition)
        self.apply_to = apply_to
        self.priority = priority
        #: who set it; None: the broker
        self.declarer = declarer
        #: what the document that brought it applied it to, where that meant less; "" elsewhere
        self.imported_as = ""
        #: whether the exchanges that it names to pass messages on are in force
        self.passes_on = True
        # One for both passes over what cannot have all that it says, as in RabbitMQ.
        self._fits_queues = definition.keys().isdisjoint(_OF_STREAMS)
        self._fits_streams = definition.keys().isdisjoint(_OF_QUEUES)
        if not 0 < len(name.encode()) <= MAX_TEXT_BYTES:
            raise PreconditionFailed(f"a policy's name has 1 to {MAX_TEXT_BYTES} bytes")
        if apply_to not in APPLIES_TO:
            raise PreconditionFailed(
                f"policy '{name}' cannot apply to '{apply_to}', only to {', '.join(APPLIES_TO)}"
            )
        if not definition:
            raise PreconditionFailed(f"policy '{name}' defines nothing")
        try:
            self._matcher = Pattern(pattern)
        except PatternError as error:
            raise PreconditionFailed(f"policy '{name}' has a wrong pattern: {error}") from None
        for key, value in definition.items():
            what = f"'{key}' of policy '{name}'"
            if isinstance(value, str) and len(value.encode()) > MAX_TEXT_BYTES:
                raise PreconditionFailed(f"invalid {what}: it is too long")
            if key in EXCHANGE_KEYS:
                if not isinstance(value, str):
                    raise PreconditionFailed(f"invalid {what}: text is needed")
            elif key in POLICY_KEYS:
                QUEUE_RULES[key].check(key, value, what)
            elif key in STREAM_RULES:
                STREAM_RULES[key].check(key, value, what)
            else:
                raise PreconditionFailed(f"invalid {what}: it is not supported")
        check_strategy(
            definition.get("dead-letter-strategy"),
            definition.get("overflow"),
            f"'dead-letter-strategy' of policy '{name}'",
        )

    def matches(self, name: str, kind: str) -> bool:
        """Whether it holds for what is called ``name`` and is of a kind."""
        applies_to = self.apply_to
        if applies_to not in (ALL, QUEUES):
            applies = applies_to == kind
        elif kind == EXCHANGES:
            applies = applies_to == ALL
        else:
            applies = self._fits_streams if kind == STREAMS else self._fits_queues
        return applies and self._matcher.matches(name)

    def is_same(self, other: Policy) -> bool:
        """Whether replacing one by the other would change nothing."""
        return (
            self.pattern == other.pattern
            and same(self.definition, other.definition)
            and self.apply_to == other.apply_to
            and self.priority == other.priority
        )


def kind_of(arguments: Mapping[str, HeaderValue]) -> str:
    """What a queue with these (checked) arguments is to policies."""
    return QUORUM_QUEUES if queue_type(arguments) == QUORUM else CLASSIC_QUEUES


class InForce:
    """The policy that holds for an object, and that of operators; what they come to.

    Of two numbers the stricter holds, and else what operators say, as in RabbitMQ.
    """

    def __init__(self, policy: Policy | None, operator: Policy | None) -> None:
        self.policy = policy
        self.operator = operator
        #: whether the exchanges that the policy names to pass messages on are in force
        self.passes_on = policy is None or policy.passes_on
        self.definition: dict[str, HeaderValue] = {} if policy is None else policy.definition
        if operator is not None:
            self.definition = dict(self.definition)
            for key, limit in operator.definition.items():
                value = self.definition.get(key)
                if isinstance(value, int) and isinstance(limit, int):
                    self.definition[key] = stricter(key, value, limit)
                else:
                    self.definition[key] = limit

    @property
    def name(self) -> str | None:
        """That of the policy."""
        return None if self.policy is None else self.policy.name

    @property
    def operator_name(self) -> str | None:
        """That of the policy of operators."""
        return None if self.operator is None else self.operator.name


class Policies:
    """The usual policies of a virtual host, or those of operators there. ``table`` may already hold
    rows: they are loaded."""

    def __init__(self, table: Table, declarers: Declarers, vhost: str) -> None:
        self._table = table
        self._policies: dict[str, Policy] = {}
        # In the order in which they are tried.
        self._ordered: list[Policy] = []
        for key, row in table.items():
            pattern, definition, apply_to, priority, *more = unpack(row)
            name = key.decode()
            declarer = declarers.restored(more[0], vhost) if more else None
            policy = Policy(name, pattern, definition, apply_to, priority, declarer)
            policy.passes_on = declarer is None or declarer.may_set_policies()
            if len(more) > 1:
                policy.imported_as = more[1]
            self._policies[name] = policy
        self._order()

    def __len__(self) -> int:
        return len(self._policies)

    def all(self) -> list[Policy]:
        """All policies, by name."""
        return [self._policies[name] for name in sorted(self._policies)]

    def set(self, policy: Policy) -> None:
        """Add a policy, or replace the one of its name. Raises PreconditionFailed for too many."""
        if len(self._policies) >= MAX_POLICIES and policy.name not in self._policies:
            raise PreconditionFailed(f"a virtual host has at most {MAX_POLICIES} policies")
        self._policies[policy.name] = policy
        self.keep(policy)
        self._order()

    def keep(self, policy: Policy) -> None:
        """Write the row of a policy."""
        row = [policy.pattern, policy.definition, policy.apply_to, policy.priority]
        if policy.declarer is not None or policy.imported_as:
            row.append(b"" if policy.declarer is None else policy.declarer.row)
        if policy.imported_as:
            row.append(policy.imported_as)
        self._table.put(policy.name.encode(), pack(row))

    def rights_changed(self) -> bool:
        """Look anew whose policies may name exchanges to pass messages on; whether any changed."""
        is_changed = False
        for policy in self._policies.values():
            may = policy.declarer is None or policy.declarer.may_set_policies()
            if may != policy.passes_on:
                policy.passes_on = may
                is_changed = True
        return is_changed

    def delete(self, name: str) -> None:
        """Remove the policy called ``name``. Raises NotFound."""
        if self._policies.pop(name, None) is None:
            raise NotFound(f"no policy '{name}'")
        self._table.delete(name.encode())
        self._order()

    def get(self, name: str) -> Policy | None:
        """The policy called ``name``."""
        return self._policies.get(name)

    def _order(self) -> None:
        self._ordered = sorted(self._policies.values(), key=_place)

    def match(self, name: str, kind: str) -> Policy | None:
        """The policy that holds for the object of that kind and name."""
        for policy in self._ordered:
            if policy.matches(name, kind):
                return policy
        return None


class AllPolicies(Policies):
    """The policies of a virtual host, and beside them those of operators."""

    def __init__(self, storage: Storage, declarers: Declarers, vhost: str) -> None:
        super().__init__(storage.table(f"policies/{vhost}"), declarers, vhost)
        table = storage.table(f"operator-policies/{vhost}")
        self.operators = Policies(table, declarers, vhost)

    def in_force(self, name: str, kind: str) -> InForce:
        """What holds for the object of that kind and name."""
        return InForce(self.match(name, kind), self.operators.match(name, kind))


def check_operator_keys(policy: Policy) -> None:
    """Raise PreconditionFailed for what operators cannot bound."""
    for key in policy.definition:
        if key not in OPERATOR_KEYS:
            raise PreconditionFailed(f"'{key}' is nothing that a policy of operators may set")


def _place(policy: Policy) -> tuple[int, str]:
    return -policy.priority, policy.name
