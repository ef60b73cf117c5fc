"""Which peers share a local network, told from the addresses that their sessions come from."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import unquote

_PREFIX_LENGTHS = {4: 24, 6: 64}  # of one local network


def site_of(grpc_peer: str) -> str:
    """The local network of a gRPC peer such as ``ipv4:192.0.2.7:4242``; empty if it cannot be told.

    Peers behind one public address share a site; of private addresses, which say that the coordinator is in the same
    network, and of IPv6 ones the network part counts. Loopback is no network.
    """
    scheme, _, rest = unquote(grpc_peer).partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return ""
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return ""
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback or address.is_unspecified:
        return ""
    if address.version == 4 and not address.is_private:
        return str(address)
    network: IPv4Network | IPv6Network = ip_network((address, _PREFIX_LENGTHS[address.version]), strict=False)
    return str(network)
