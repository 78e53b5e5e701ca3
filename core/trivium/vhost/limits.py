"""The limits of a virtual host that its account does not count: what it keeps, and what waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.common.quotas import QUEUED_BYTES, RETAINED_BYTES, RETAINED_MESSAGES

if TYPE_CHECKING:
    from trivium.vhost.virtual_host import VirtualHost


def apply_limits(vhost: VirtualHost) -> None:
    """Put in force what the account of a virtual host has for it now."""
    account = vhost.account
    vhost.retained.most = account.limit_of(RETAINED_MESSAGES)
    vhost.retained.most_bytes = account.limit_of(RETAINED_BYTES)
    most = account.limit_of(QUEUED_BYTES)
    if most != vhost.most_queued_bytes:
        vhost.most_queued_bytes = most
        for queue in vhost.queues.values():
            queue.set_plain()
