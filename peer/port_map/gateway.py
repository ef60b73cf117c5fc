"""The router that this machine's traffic goes through, from the kernel's table of routes."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_TABLE = Path("/proc/net/route")
_UP_AND_GATEWAY = 0x3  # RTF_UP | RTF_GATEWAY, linux/route.h


def default_gateway(table: Path = _TABLE) -> str:
    """Its IPv4 address; empty where there is none, or where this system does not tell."""
    try:
        text = table.read_text(encoding="ascii")
    except OSError:
        return ""
    return gateway_in(text)


def gateway_in(text: str) -> str:
    """The address of the default route with the lowest metric in what /proc/net/route holds. Pure."""
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
