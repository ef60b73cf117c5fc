"""Choose which idle connections to close, so that no address takes the room of the others. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from heapq import heapify, heapreplace
from ipaddress import ip_address, ip_network
from typing import TypeVar

from rollcast.wire.address_scope import unmapped

ConnectionT = TypeVar("ConnectionT")
TOO_MANY_CONNECTIONS = "too_many_connections"
"""The reason for which connections are closed, as metrics name it."""


def excess(idle: Iterable[tuple[str, ConnectionT]], *, per_address: int, most: int) -> list[ConnectionT]:
    """Return the connections to close: the first of each address beyond its share, then of those with the most.

    Args:
        idle: connections without a request or call in progress, each with its IP address, in the order of closing.
        per_address: how many one IPv4 address, or IPv6 /64, may keep.
        most: how many all addresses together may keep.
    """
    groups: dict[str, deque[ConnectionT]] = {}
    for host, connection in idle:
        groups.setdefault(_group_of(host), deque()).append(connection)
    over: list[ConnectionT] = []
    for group in groups.values():
        while len(group) > per_address:
            over.append(group.popleft())
    by_size = [(-len(group), number, group) for number, group in enumerate(groups.values())]
    heapify(by_size)
    for _ in range(sum(map(len, groups.values())) - most):
        _, number, group = by_size[0]
        over.append(group.popleft())
        heapreplace(by_size, (-len(group), number, group))
    return over


@lru_cache(maxsize=1 << 14)  # a fleet's addresses are looked at once a second while it connects
def _group_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 that one customer has of IPv6."""
    address = unmapped(ip_address(host.partition("%")[0]))
    return str(address) if address.version == 4 else str(ip_network((address, 64), strict=False))
