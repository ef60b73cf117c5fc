"""Recognise addresses within one local network, which a peer reports for the peers on its network. Pure.

They are what ICE calls host candidates (RFC 8445 section 5.1.1.1), of the networks in RFC 1918, RFC 3927 and RFC 4193.
Link-local addresses of IPv6 are left out: they need a zone, which differs at the other end.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from rollcast.wire.address_scope import with_port

_NETWORKS = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7")))
_LENGTH_MAX = 64


def is_local(ip: IPv4Address | IPv6Address) -> bool:
    """Return whether an address belongs to a machine of a local network and none beyond; loopback does not count."""
    return any(ip.version == network.version and ip in network for network in _NETWORKS)


def local_address(host: str, port: int) -> str:
    """Return ``ip:port``, or ``[ip]:port`` for IPv6; empty if the address is not within a local network."""
    try:
        ip = ip_address(host)
    except ValueError:
        return ""
    if not is_local(ip) or not 0 < port < 1 << 16:
        return ""
    return with_port(str(ip), port)


def read_local_address(text: str) -> str:
    """Parse an address and return it as ``local_address`` does; empty if it is not within a local network."""
    host, _, port = text[: _LENGTH_MAX + 1].rpartition(":")
    if len(text) > _LENGTH_MAX or not (port.isascii() and port.isdigit() and len(port) <= 5):
        return ""
    return local_address(host.removeprefix("[").removesuffix("]"), int(port))
