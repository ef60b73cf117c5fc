"""Classify the addresses that one process names to another by how far they lead, so that no member directs others into
private networks. Pure.

A member of a run is a stranger: an address that it names may belong to a third party, or to a service on the loopback
interface or in the private network of the process that dials it (server-side request forgery). The coordinator names an
address only to members for which ``may_be_named`` holds, and each peer checks again before it dials.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_NAT64 = ip_network("64:ff9b::/96")  # RFC 6052
_THIS_NETWORK = ip_network("0.0.0.0/8")  # RFC 1122
_RESERVED = ip_network("240.0.0.0/4")  # RFC 1112, the broadcast address among them
_HOSTS_KEPT = 32_768  # more than the members of one coordinator


class Scope(IntEnum):
    """How far an address leads, from narrow to wide."""

    NOWHERE = 0  # no host: unspecified, multicast, broadcast or reserved
    LOOPBACK = 1  # this machine only
    LINK_LOCAL = 2  # RFC 3927 and RFC 4291: one network segment; cloud providers serve credentials there
    PRIVATE = 3  # a network that is not the internet: RFC 1918, RFC 4193, RFC 6598 and others
    PUBLIC = 4  # the internet, and every name until it is resolved


@lru_cache(maxsize=_HOSTS_KEPT)  # a relay plan asks for each of its members, and parsing takes 12 us
def scope_of(host: str) -> Scope:
    """Return the scope of an IP address, in brackets or not; a name counts as PUBLIC."""
    try:
        ip = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return Scope.PUBLIC
    return _scope(_embedded(ip) or ip)


def _embedded(ip: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address to which an IPv6 address is translated on its way; None if it is not."""
    if isinstance(ip, IPv4Address):
        return None
    if ip in _NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    plain = unmapped(ip)
    return plain if isinstance(plain, IPv4Address) else plain.sixtofour


def _scope(ip: IPv4Address | IPv6Address) -> Scope:
    if ip.is_loopback:
        return Scope.LOOPBACK
    if ip.is_multicast or ip in _THIS_NETWORK or ip in _RESERVED or ip.is_unspecified:
        return Scope.NOWHERE
    if ip.is_link_local:
        return Scope.LINK_LOCAL
    return Scope.PUBLIC if ip.is_global else Scope.PRIVATE


def unmapped(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return an IPv4-mapped IPv6 address (RFC 4291, section 2.5.5.2) as IPv4, and any other unchanged."""
    return ip if isinstance(ip, IPv4Address) else ip.ipv4_mapped or ip


def plain_host(host: str) -> str:
    """Return an IP address in the form to compare, an IPv4-mapped one as IPv4; a name is returned unchanged."""
    if ":" not in host and not host[:1].isdecimal():  # parsing a name takes longest
        return host
    try:
        return str(unmapped(ip_address(host)))
    except ValueError:
        return host


def is_ip(host: str) -> bool:
    """Return whether a host is an IP address, and no name."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def may_be_named(address: Scope, home: Scope) -> bool:
    """Return whether an address of one scope may be named to a process at home in another.

    Args:
        address: scope of the address to dial.
        home: scope of the connection between that process and its coordinator, as either end sees it. Over a private
            network both are within one site, and over loopback on one machine.
    """
    return address is not Scope.NOWHERE and address >= home


def with_port(host: str, port: int | str) -> str:
    """Return host:port, or [IPv6]:port, as ``host_and_port`` parses it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(address: str) -> tuple[str, int] | None:
    """Parse host:port or [IPv6]:port; None if it is something else, such as a URL or a path."""
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        return None
    name = host[1:-1] if bracketed else host
    allowed = all(one.isascii() and (one.isalnum() or one in ".-_" or (bracketed and one in ":%")) for one in name)
    return (name, int(port)) if name and allowed else None
