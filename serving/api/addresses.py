"""Which addresses only this machine reaches."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def is_loopback(host: str) -> bool:
    """Whether `host` is an address of the loopback interface; a name is none."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
