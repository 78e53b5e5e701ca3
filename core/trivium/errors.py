"""Errors of the core, by who is to blame.

::

    TriviumError
     +-- ConfigError           the configuration is wrong (exit code 2)
     +-- InternalError         the broker does not understand what happened; it stops (exit code 74)
     +-- TopologyError         a client asked for something that the topology does not allow
     |    +-- NotFound             no such exchange, queue, stream, virtual host (AMQP 404)
     |    +-- PreconditionFailed   it exists with other properties, or is in use (AMQP 406)
     |    +-- AccessRefused        reserved name, or no permission (AMQP 403)
     |    +-- ResourceLocked       it is exclusive to another connection (AMQP 405)
     |    +-- StaleMember          not a member of the group, or not any more
     |    +-- Fenced               someone newer has taken its place for good
     |    +-- LimitExceeded        as many as there may be

The errors of the storage stand in ``trivium.storage.errors``.
"""

from __future__ import annotations


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


class AccessRefused(TopologyError):
    """A reserved name, or something that the user may not do."""


class ResourceLocked(TopologyError):
    """It belongs exclusively to another connection."""


class StaleMember(TopologyError):
    """Not a member of the group (any more), or not the one who owns the partition (any more)."""


class Fenced(TopologyError):
    """Someone newer has taken over; whoever gets this must stop."""


class LimitExceeded(TopologyError):
    """There are as many of these as there may be."""
