"""Whose an address is."""

from __future__ import annotations

import ipaddress


def subscriber_address(host: str) -> str:
    """What one subscriber of a network has: an IPv4 address, or the 64 bits of an IPv6 network.

    What is no address, as with Unix sockets, stays as it is.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
