"""Limits of virtual hosts, as operators set them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trivium.common.quotas import VHOST, check_limits

if TYPE_CHECKING:
    from trivium.runtime.broker import Broker
    from trivium.vhost.virtual_host import VirtualHost


def set_vhost_limits(broker: Broker, vhost: VirtualHost, limits: Mapping[str, object]) -> None:
    """Give a virtual host these limits, and no others. Raises PreconditionFailed."""
    found = check_limits(VHOST, limits)
    broker.virtual_hosts.declare(vhost.name, replace(vhost.settings, limits=found))
