"""Errors of the core, by who is to blame.

::

    TriviumError
     +-- ConfigError           the configuration is wrong (exit code 2)
     +-- InternalError         the broker does not understand what happened; it stops (exit code 74)
     +-- TopologyError         a client asked for something that the topology does not allow
     |    +-- NotFound             no such exchange, queue, stream, virtual host (AMQP 404)
     |    +-- PreconditionFailed   it exists with other properties, or is in use (AMQP 406)
     |    |    +-- RouteTooCostly       bindings make too much of a routing key
     |    +-- AccessRefused        reserved name, or no permission (AMQP 403)
     |    +-- ResourceLocked       it is exclusive to another connection (AMQP 405)
     |    +-- StaleMember          not a member of the group, or not any more
     |    +-- Fenced               someone newer has taken its place for good
     |    +-- LimitExceeded        as many as there may be
     |         +-- QuotaExceeded       of a user, virtual host or listener

The errors of the storage stand in ``trivium.storage.errors``.
"""

from __future__ import annotations

from typing import Final

#: Types of values, as ``WrongType.expected`` says them.
TEXT: Final = "text"
BOOLEAN: Final = "a boolean"
INTEGER: Final = "an integer"


class TriviumError(Exception):
    """Base of all errors of the core. The text is fit to be shown to a client."""


class ConfigError(TriviumError, ValueError):
    """A wrong name or value in the configuration; the text is one line for whoever wrote it."""


class InternalError(TriviumError):
    """Something happened that the broker does not understand; its cause is the exception.

    What was not durable by then is lost, since the half of it may be wrong.
    """


class TopologyError(TriviumError):
    """The topology does not allow what a client asked for."""


class NotFound(TopologyError):
    """No such exchange, queue, stream or virtual host."""


class PreconditionFailed(TopologyError):
    """It exists with other properties, or it is in use or not empty."""


class UnfitArgument(PreconditionFailed):
    """An argument that queues of this type do not have; ``what`` names the queue."""

    def __init__(self, argument: str, what: str, kind: str) -> None:
        super().__init__(f"invalid arg '{argument}' for {what}: a {kind} queue does not have it")
        self.argument = argument
        self.what = what
        self.kind = kind


class WrongType(PreconditionFailed):
    """A value of another type than is needed: ``what`` says for what, ``expected`` which."""

    def __init__(self, what: str, expected: str, value: object) -> None:
        super().__init__(f"invalid {what}: {expected} is needed")
        self.what = what
        self.expected = expected
        self.value = value


class NotAName(PreconditionFailed):
    """An argument that is to name an exchange is no text."""

    def __init__(self, argument: str, what: str, value: object) -> None:
        super().__init__(f"invalid arg '{argument}' for {what}: text is needed")
        self.argument = argument
        self.what = what
        self.value = value


class ArgumentAbsent(PreconditionFailed):
    """It exists with an argument that was not given (``is_current``), or without one that was."""

    def __init__(self, argument: str, what: str, value: object, is_current: bool) -> None:
        super().__init__(
            f"inequivalent arg '{argument}' for {what}: "
            + ("none was given, but it has one" if is_current else "it has none")
        )
        self.argument = argument
        self.what = what
        self.value = value
        self.is_current = is_current


class UnfitProperty(PreconditionFailed):
    """A property that a queue which is not its clients' alone cannot have: it is ``auto-delete``,
    ``exclusive`` or ``non-durable``.
    """

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"invalid property '{name}' for {what}")
        self.name = name
        self.what = what


class NameNeeded(PreconditionFailed):
    """A queue of this type is not given a name by the broker."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"a {kind} queue needs a name")
        self.kind = kind


#: Nodes of patterns, arguments of headers bindings and bindings between exchanges that are looked
#: at for one message: some 150 ms.
MAX_VISITS: Final = 250_000


class RouteTooCostly(PreconditionFailed):
    """To find where a message goes would hold up everybody: more than ``MAX_VISITS``."""

    def __init__(self) -> None:
        super().__init__(
            "too many bindings must be looked at to route a message with this routing key:"
            f" the limit is {MAX_VISITS} steps"
        )


class AccessRefused(TopologyError):
    """A reserved name, or something that the user may not do."""


class Configured(AccessRefused):
    """A user or role of the configuration, which alone changes it; ``kind`` says which."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{kind} '{name}' stands in the configuration: change it there, in [{kind}s.{name}]"
        )


class ResourceLocked(TopologyError):
    """It belongs exclusively to another connection."""


class QueueLocked(ResourceLocked):
    """A queue is another connection's, or it is nobody's and was declared as somebody's."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is exclusive to another connection, or is not exclusive")
        self.what = what


class StaleMember(TopologyError):
    """Not a member of the group (any more), or not the one who owns the partition (any more)."""


class Fenced(TopologyError):
    """Someone newer has taken over; whoever gets this must stop."""


class LimitExceeded(TopologyError):
    """There are as many of these as there may be."""


class QuotaExceeded(LimitExceeded):
    """A user, virtual host or listener (``scope``) has as much of something as it may have."""

    def __init__(self, scope: str, name: str, limit: str, most: int) -> None:
        super().__init__(f"limit {limit} ({most}) of {scope} '{name}' is reached")
        self.scope = scope
        self.name = name
        #: its name, such as ``max-queues``
        self.limit = limit
        self.most = most
        #: the name of what was to be made, where it has one
        self.wanted = ""
