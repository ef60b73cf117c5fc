"""Addresses of libp2p hosts, as text: /ip4/192.0.2.1/tcp/4001, with /p2p/PEER_ID at the end or without."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from rollcast.runtime.errors import Unreachable
from rollcast.wire.ids import PeerId

_PREFIXES = ("/ip4/", "/ip6/", "/dns4/", "/dns6/", "/dns/")
_FORM = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([A-Za-z0-9.:-]{1,253})/tcp/(\d{1,5})(?:/p2p/([A-Za-z0-9]{1,64}))?")


def is_p2p_address(address: str) -> bool:
    """Whether it is a libp2p address, and neither host:port nor a mirror's."""
    return address.startswith(_PREFIXES)


@dataclass(frozen=True, slots=True)
class P2pAddress:
    """Where a libp2p host listens for TCP.

    Args:
        kind: ip4, ip6, dns, dns4 or dns6.
        peer_id: who listens there; empty: not said.
    """

    kind: str
    host: str
    port: int
    peer_id: str = ""

    def __str__(self) -> str:
        ending = f"/p2p/{self.peer_id}" if self.peer_id else ""
        return f"/{self.kind}/{self.host}/tcp/{self.port}{ending}"

    @classmethod
    def of(cls, host: str, port: int) -> P2pAddress:
        """Of an IP address or name, and a port."""
        try:
            kind = f"ip{ipaddress.ip_address(host).version}"
        except ValueError:
            kind = "dns"
        return cls(kind, host, port)


def parse(address: str, peer_id: PeerId) -> P2pAddress:
    """The address of this peer.

    Raises:
        Unreachable: it is no address that can be dialled, or it names another peer.
    """
    match = _FORM.fullmatch(address[:512])
    if match is None or not 0 < int(match[3]) < 65536 or not _is_host(match[1], match[2]):
        raise Unreachable(
            f"{address[:128]!r} is no address of a libp2p host",
            fix="addresses look like /ip4/192.0.2.1/tcp/4001",
        )
    if match[4] and match[4] != peer_id:
        raise Unreachable(f"{address[:128]!r} is not the address of {peer_id}")
    return P2pAddress(match[1], match[2], int(match[3]), peer_id)


def _is_host(kind: str, host: str) -> bool:
    if not kind.startswith("ip"):
        return ":" not in host
    try:
        return ipaddress.ip_address(host).version == int(kind[2])
    except ValueError:
        return False
