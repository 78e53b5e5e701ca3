"""Parameters of the broker as a whole: any JSON under a name. The broker reads its own name there.

Each is a row of the table ``global-parameters``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from trivium.common.values import pack, unpack
from trivium.errors import LimitExceeded, NotFound, PreconditionFailed
from trivium.management.calls import NOT_FOUND
from trivium.management.values import MAX_DEPTH, check_value, checked, shown
from trivium.runtime.cluster_name import CLUSTER_NAME

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker

MAX_PARAMETERS: Final = 256
MAX_BYTES: Final = 64 * 1024
MAX_NAME_BYTES: Final = 255


class GlobalParameters:
    """Those of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._table = broker.storage.table("global-parameters")
        self._events = broker.events

    def all(self) -> Iterator[tuple[str, object]]:
        """All, by name."""
        for key, row in sorted(self._table.items()):
            yield key.decode(), shown(unpack(row))

    def get(self, name: str) -> object:
        """The value of one. Raises NotFound."""
        row = self._table.get(name.encode(errors="replace"))
        if row is None:
            raise NotFound(NOT_FOUND)
        return shown(unpack(row))

    def set(self, name: str, value: object) -> bool:
        """Set one; whether it is new. Raises BadRequest, PreconditionFailed, LimitExceeded."""
        check_value(value, name, MAX_DEPTH)
        if name == CLUSTER_NAME and not (
            isinstance(value, str) and 0 < len(value.encode()) <= MAX_NAME_BYTES
        ):
            # Every AMQP client is told it.
            raise PreconditionFailed(f"the broker's name is a text of 1 to {MAX_NAME_BYTES} bytes")
        key, row = checked(name, "name").encode(), pack(value)
        if not 0 < len(key) <= MAX_NAME_BYTES:
            raise PreconditionFailed(f"a parameter's name has 1 to {MAX_NAME_BYTES} bytes")
        if len(row) > MAX_BYTES:
            raise PreconditionFailed(f"a parameter has at most {MAX_BYTES} bytes")
        is_new = self._table.get(key) is None
        if is_new and len(self._table) >= MAX_PARAMETERS:
            raise LimitExceeded(f"there are {MAX_PARAMETERS} global parameters")
        self._table.put(key, row)
        self._events.tell("global-parameter.set", parameter=name)
        return is_new

    def delete(self, name: str) -> None:
        """Remove one. Raises NotFound."""
        self.get(name)
        self._table.delete(name.encode())
        self._events.tell("global-parameter.deleted", parameter=name)
