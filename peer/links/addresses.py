"""Parse and write the addresses of libp2p hosts.

An address looks like /ip4/192.0.2.1/tcp/4001, perhaps with /p2p/PEER_ID at its end; through a relay it is
/ip4/192.0.2.1/tcp/4001/p2p/RELAY_ID/p2p-circuit/p2p/PEER_ID.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from rollcast.runtime.errors import Unreachable
from rollcast.wire.ids import PeerId

_PREFIXES = ("/ip4/", "/ip6/", "/dns4/", "/dns6/", "/dns/")
_FORM = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([A-Za-z0-9.:-]{1,253})/tcp/(\d{1,5})(?:/p2p/([A-Za-z0-9]{1,64}))?")

_CIRCUIT = "/p2p-circuit"


def is_circuit_address(address: str) -> bool:
    """Return whether it is a libp2p address through a relay."""
    return is_p2p_address(address) and _CIRCUIT in address


def is_p2p_address(address: str) -> bool:
    """Return whether it is a libp2p address, and neither host:port nor a mirror's."""
    return address.startswith(_PREFIXES)


@dataclass(frozen=True, slots=True)
class P2pAddress:
    """The address at which a libp2p host listens for TCP connections.

    Args:
        kind: ip4, ip6, dns, dns4 or dns6.
        peer_id: the host's libp2p id; empty if the address does not name it.
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
        """Return the address for an IP address or a name, and a port."""
        try:
            kind = f"ip{ipaddress.ip_address(host).version}"
        except ValueError:
            kind = "dns"
        return cls(kind, host, port)


@dataclass(frozen=True, slots=True)
class CircuitAddress:
    """The address of a libp2p host through another one.

    Args:
        relay: the address of the host between; its ``peer_id`` is set.
    """

    relay: P2pAddress
    peer_id: str

    def __str__(self) -> str:
        return f"{self.relay}{_CIRCUIT}/p2p/{self.peer_id}"


def parse(address: str, peer_id: PeerId) -> P2pAddress | CircuitAddress:
    """Parse the address of a peer.

    Raises:
        Unreachable: it cannot be dialled, or it names another peer.
    """
    where, circuit, target = address[:512].partition(_CIRCUIT)
    found = _listening(where)
    named = target.removeprefix("/p2p/") if circuit else (found.peer_id if found else "")
    if found is None or (circuit and not found.peer_id) or (circuit and target and not target.startswith("/p2p/")):
        raise Unreachable(
            f"{address[:128]!r} is no address of a libp2p host",
            fix="addresses look like /ip4/192.0.2.1/tcp/4001",
        )
    if named and named != peer_id:
        raise Unreachable(f"{address[:128]!r} is not the address of {peer_id}")
    return CircuitAddress(found, peer_id) if circuit else replace(found, peer_id=peer_id)


def parse_relay(address: str) -> P2pAddress | None:
    """Parse the address of a relay; return None if it is not one that names the relay's id."""
    found = _listening(address[:512])
    return found if found is not None and found.peer_id else None


def _listening(address: str) -> P2pAddress | None:
    match = _FORM.fullmatch(address)
    if match is None or not 0 < int(match[3]) < 65536 or not _is_host(match[1], match[2]):
        return None
    return P2pAddress(match[1], match[2], int(match[3]), match[4] or "")


def _is_host(kind: str, host: str) -> bool:
    if not kind.startswith("ip"):
        return ":" not in host
    try:
        return ipaddress.ip_address(host).version == int(kind[2])
    except ValueError:
        return False
