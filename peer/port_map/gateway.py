"""Find this machine's routers in Linux's tables of routes."""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path

_TABLE = Path("/proc/net/route")
_TABLE_IPV6 = Path("/proc/net/ipv6_route")
_UP_AND_GATEWAY = 0x3  # RTF_UP | RTF_GATEWAY, linux/route.h


def default_gateway(table: Path = _TABLE) -> str:
    """Return the IPv4 address of this machine's router; empty: no default route, or not a Linux system."""
    return gateway_in(_text(table))


def default_gateway_ipv6(table: Path = _TABLE_IPV6) -> str:
    """Return the IPv6 address of this machine's router, with its interface if it is link-local (fe80::1%eth0).

    Empty: no default route, or not a Linux system.
    """
    return gateway_in_ipv6(_text(table))


def gateway_in(text: str) -> str:
    """Return the gateway of the default route with the lowest metric in the text of /proc/net/route. Pure."""
    found: list[tuple[int, str]] = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        try:
            destination, gateway, flags = (int(fields[index], 16) for index in (1, 2, 3))
            metric, mask = int(fields[6]), int(fields[7], 16)
        except (IndexError, ValueError):
            continue
        if destination == mask == 0 and flags & _UP_AND_GATEWAY == _UP_AND_GATEWAY:
            found.append((metric, socket.inet_ntoa(struct.pack("=I", gateway))))
    return min(found)[1] if found else ""


def gateway_in_ipv6(text: str) -> str:
    """Return the same as ``gateway_in`` for the text of /proc/net/ipv6_route. Pure."""
    found: list[tuple[int, str]] = []
    for line in text.splitlines():
        fields = line.split()
        try:
            destination, length, metric, flags = (int(fields[index], 16) for index in (0, 1, 5, 8))
            gateway, interface = ipaddress.IPv6Address(bytes.fromhex(fields[4])), fields[9]
        except (IndexError, ValueError):
            continue
        if destination == length == 0 and flags & _UP_AND_GATEWAY == _UP_AND_GATEWAY:
            found.append((metric, f"{gateway}%{interface}" if gateway.is_link_local else str(gateway)))
    return min(found)[1] if found else ""


def _text(table: Path) -> str:
    try:
        return table.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
