"""The broker's own topics: what it publishes below ``$SYS``, where clients cannot.

Whoever asks for ``$SYS`` by name gets them, by every protocol: a binding to ``amq.topic`` whose
pattern begins with it. Nothing of them is kept over a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trivium.messages.message import AT_MOST_ONCE, PROTOCOL_NONE, Address, Message
from trivium.messages.topics import RESERVED, is_reserved
from trivium.routing.exchanges import Binding, TopicExchange, group_by_destination
from trivium.routing.retained import RETAINING_EXCHANGE, RetainedMessages
from trivium.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from trivium.vhost.virtual_host import VirtualHost

#: Addresses that are remembered: there are some dozens of topics.
_MAX_ADDRESSES: Final = 256


class OwnTopics:
    """Those of one virtual host."""

    def __init__(self, vhost: VirtualHost) -> None:
        #: the last message of each topic that asked to be kept
        self.retained = RetainedMessages(MemoryStorage().table("own"), is_own=True)
        self._vhost = vhost
        self._addresses: dict[bytes, Address] = {}

    def retained_for(self, topic_filter: bytes) -> RetainedMessages:
        """The retained messages among which a new subscription finds its own."""
        level = topic_filter.partition(b"/")[0]
        return self.retained if level == RESERVED else self._vhost.retained

    def has_readers(self, key: bytes) -> bool:
        """Whether anybody asks for a topic."""
        return len(self._bindings(key)) > 0

    def _bindings(self, key: bytes) -> list[Binding]:
        exchange = self._vhost.exchanges[RETAINING_EXCHANGE]
        assert isinstance(exchange, TopicExchange)
        return [
            binding
            for binding in exchange.match_own(key)
            if binding.guard is None or binding.guard.admits(exchange, binding, key)
        ]

    def publish(self, key: bytes, payload: bytes, retain: bool) -> None:
        """Publish below ``$SYS``, at most once."""
        assert is_reserved(key)
        address = self._addresses.get(key)
        if address is None:
            address = Address(RETAINING_EXCHANGE, key)
            if len(self._addresses) < _MAX_ADDRESSES:
                self._addresses[key] = address
        message = Message(
            PROTOCOL_NONE,
            address,
            b"",
            payload,
            AT_MOST_ONCE,
            False,
            self._vhost.broker.now_ms,
            0,
            retain,
        )
        if retain:
            self.retained.keep(message)
        for group in group_by_destination(self._bindings(key)):
            group[0].destination.combine(group).accept(message)
