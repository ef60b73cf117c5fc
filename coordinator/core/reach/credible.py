"""Decide which of a member's advertised addresses are its own and may be passed on to others. Pure.

An advertised address is a member's word. Passed on unchecked, it would direct every peer of the run to a third party,
or to a service on its own machine.
"""

from __future__ import annotations

from collections.abc import Set

from rollcast.wire.address_scope import Scope, host_and_port, plain_host, scope_of

ADDRESSES_MOST = 4  # a peer advertises one for direct links and one for libp2p, over IPv4 and over IPv6
_KINDS = ("ip4", "ip6", "dns", "dns4", "dns6")


def credible_addresses(advertised: str, hosts: Set[str] | None, found: str) -> tuple[str, tuple[str, ...]]:
    """Split the advertised addresses into those that may be passed on and those that may not.

    Args:
        advertised: addresses separated by spaces: host:port, and /ip4/HOST/tcp/PORT of libp2p.
        hosts: IP addresses from which the coordinator sees the member; None if the operator vouches for it.
        found: host:port at which others dialled the member and found it; empty if they did not.

    Returns:
        The credible addresses, separated by spaces, and the others.
    """
    known = host_and_port(found)
    credible: list[str] = []
    refused: list[str] = []
    for one in advertised.split()[:ADDRESSES_MOST]:
        host = _host_of(one)
        own = bool(host) and (hosts is None or host in hosts or (known is not None and host == known[0]))
        (credible if own else refused).append(one)
    return " ".join(credible), tuple(refused)


def scope_in(address: str) -> Scope:
    """Return how far a credible address leads."""
    return scope_of(_host_of(address))


def _host_of(address: str) -> str:
    """Return the host of host:port or of a libp2p address without a relay; empty if it is neither."""
    if not address.startswith("/"):
        direct = host_and_port(address)
        return "" if direct is None else plain_host(direct[0])
    parts = address.split("/")  # "", "ip4", host, "tcp", port, and perhaps "p2p", peer id
    if len(parts) not in (5, 7) or parts[1] not in _KINDS or parts[3] != "tcp" or parts[5:6] not in ([], ["p2p"]):
        return ""
    return "" if host_and_port(f"[{parts[2]}]:{parts[4]}") is None else plain_host(parts[2])
