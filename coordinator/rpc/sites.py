"""Which peers share a local network, told from the addresses that their sessions come from."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import unquote

_PREFIX_LENGTHS = {4: 24, 6: 64}  # of one local network


def site_of(grpc_peer: str) -> str:
    """The local network of a gRPC peer such as ``ipv4:192.0.2.7:4242``; empty if it cannot be told.

    Peers behind one public address share a site; of private addresses, which say that the coordinator is in the same
    network, and of IPv6 ones the network part counts. Loopback is no network.
    """
    address = _address_of(grpc_peer)
    if address is None or address.is_loopback or address.is_unspecified:
        return ""
    if address.version == 4 and not address.is_private:
        return str(address)
    network: IPv4Network | IPv6Network = ip_network((address, _PREFIX_LENGTHS[address.version]), strict=False)
    return str(network)


def host_of(grpc_peer: str) -> str:
    """The IP address of a gRPC peer; empty if it cannot be told."""
    address = _address_of(grpc_peer)
    return "" if address is None else str(address)


def _address_of(grpc_peer: str) -> IPv4Address | IPv6Address | None:
    scheme, _, rest = unquote(grpc_peer).partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return None
    try:
        address = ip_address(rest.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
