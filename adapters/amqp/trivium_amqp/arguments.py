"""Arguments of queues and streams that RabbitMQ has for its own sake and that mean nothing here.

Its segments, its cluster and its versions of queues: what is declared with them is checked, stored
and compared as there.
"""

from __future__ import annotations

from typing import Final

from trivium.errors import INTEGER, TEXT
from trivium.queues.arguments import CLASSIC, QUORUM, STREAM, Rule, register_arguments

#: Replicas that a declaration may ask for; there is one whatever it says.
_NODES: Final = Rule(INTEGER, (1, 1 << 31))
_LENGTH: Final = Rule(INTEGER, (0, 1 << 62))

_COMMON: Final = {
    "queue-leader-locator": Rule(
        TEXT, choices=("client-local", "balanced", "random", "least-leaders")
    ),
}
#: Type -> argument without ``x-`` -> what it may hold.
IGNORED: Final = {
    CLASSIC: {
        **_COMMON,
        "queue-mode": Rule(TEXT, choices=("default", "lazy")),
        "queue-version": Rule(INTEGER, choices=(1, 2)),
        "queue-master-locator": Rule(TEXT),
        "quorum-target-group-size": _NODES,
    },
    QUORUM: {
        **_COMMON,
        "quorum-initial-group-size": _NODES,
        "quorum-target-group-size": _NODES,
        "max-in-memory-length": _LENGTH,
        "max-in-memory-bytes": _LENGTH,
    },
    STREAM: {
        **_COMMON,
        "initial-cluster-size": _NODES,
        "stream-max-segment-size-bytes": Rule(INTEGER, (1, 3_000_000_000)),
    },
}
#: As above; younger than the dialect, so queues of other types do not know it.
IGNORED_LATER: Final = {"stream-filter-size-bytes": Rule(INTEGER, (16, 255))}


def register() -> None:
    """Let queues and streams have these arguments."""
    for kind, rules in IGNORED.items():
        register_arguments(kind, rules)
    register_arguments(STREAM, IGNORED_LATER, is_known=False)
