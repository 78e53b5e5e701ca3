"""What looks on while messages come into a virtual host and leave it: the firehose.

A virtual host without one asks for it and goes on, and its routes know nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from trivium.messages.message import Message
    from trivium.routing.exchanges import Route


@mypyc_attr(allow_interpreted_subclasses=True)
class Tap:
    """Is told of messages of one virtual host. It changes nothing before the turn ends."""

    def published(self, message: Message, route: Route) -> None:
        """Somebody publishes a message, which goes by ``route`` now or when its time has come."""
        raise NotImplementedError

    def delivered(
        self,
        message: Message,
        queue: str,
        is_redelivered: bool,
        connection: object = None,
        channel: int = 0,
    ) -> None:
        """A message leaves for a client, out of the queue of this name; without a ``connection``
        the one that is served gets it."""
        raise NotImplementedError
