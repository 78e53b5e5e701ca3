"""What the clients do unless they are told otherwise, and what they tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Seconds to connect and authenticate; in which a blocking client gets each answer, too.
DEFAULT_TIMEOUT: Final = 30.0
#: Seconds that a connection which is closed has to send what is left.
CLOSE_TIMEOUT: Final = 1.0
#: Seconds between signs of life; after two without an answer the broker counts as gone.
DEFAULT_HEARTBEAT: Final = 30
#: Publish requests that may wait for their confirmation; more wait to be sent.
DEFAULT_IN_FLIGHT: Final = 1024
#: Seconds for which a member of a group may be silent, and may keep what it is to let go.
SESSION_TIMEOUT: Final = 30.0
REBALANCE_TIMEOUT: Final = 60.0
#: Bytes of batches, per partition, that a member of a group may be ahead of its reader.
GROUP_CREDIT: Final = 1 << 20
#: Bytes of batches that a ``log`` subscription may be ahead of its reader.
LOG_CREDIT: Final = 8 << 20
#: Bytes that a request of a publisher gathers.
REQUEST_BYTES: Final = 1 << 20

#: Told after each request: how many messages are confirmed so far, and how many are not yet.
Progress = Callable[[int, int], None]


def check_window(window: int) -> None:
    """Raise ValueError where no publish could ever be in flight."""
    if window < 1:
        raise ValueError("window is less than 1")
