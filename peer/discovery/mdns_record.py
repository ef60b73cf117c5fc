"""Write and read the multicast DNS records (RFC 6762, 6763) with which peers announce themselves locally. Pure.

A record is only a hint until a handshake proves the peer's id. It holds a hash of the run's name, not the name.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollcast.wire.address_scope import with_port
from rollcast.wire.ids import PeerId

SERVICE = "_rollcast._tcp.local."
ADDRESSES_MOST = 4
_FORM = "1"
_ROLES = ("peer", "origin")
_PEER_ID = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")  # of an Ed25519 key, base58
_VALUE_BYTES_MAX = 64


@dataclass(frozen=True, slots=True)
class Nearby:
    """A host on the local network that claims to be a peer of this run.

    Args:
        addresses: its addresses, each as host:port.
    """

    peer_id: PeerId
    role: str
    addresses: tuple[str, ...]


def run_mark(run_id: str) -> str:
    """Return a hash by which members of a run recognise each other, and which does not reveal the run's name."""
    return hashlib.sha256(b"rollcast/mdns/1" + run_id.encode()).hexdigest()[:16]


def properties_of(peer_id: PeerId, role: str, run_id: str) -> dict[str, str]:
    """Return the properties that a peer announces besides its addresses and port."""
    return {"v": _FORM, "id": peer_id, "role": role, "run": run_mark(run_id)}


def instance_name(peer_id: PeerId) -> str:
    """Return the name of a peer's service."""
    return f"{peer_id}.{SERVICE}"


def parse_nearby(
    properties: Mapping[bytes, bytes | None], addresses: Iterable[str], port: int, *, run_id: str, loopback: bool
) -> Nearby | None:
    """Parse a service's announcement; None: it is no peer of this run at addresses of a local network.

    Args:
        addresses: IP addresses of the service.
        loopback: whether loopback addresses count, because this peer itself listens on loopback only.
    """
    values = {key: _text(properties.get(key.encode())) for key in ("v", "id", "role", "run")}
    if values["v"] != _FORM or values["run"] != run_mark(run_id) or values["role"] not in _ROLES:
        return None
    if _PEER_ID.fullmatch(values["id"]) is None or not 0 < port < 1 << 16:
        return None
    found = [shown for one in addresses if (shown := _shown(one, port, loopback))]
    if not found:
        return None
    return Nearby(PeerId(values["id"]), values["role"], tuple(dict.fromkeys(found))[:ADDRESSES_MOST])


def _text(value: bytes | None) -> str:
    return "" if value is None or len(value) > _VALUE_BYTES_MAX else value.decode("ascii", errors="replace")


def _shown(text: str, port: int, loopback: bool) -> str:
    """Return host:port; empty for an address that is not on a local network, or that is a link-local IPv6 address.

    Link-local IPv6 would need an interface's name as well.
    """
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return ""
    is_near = (ip.is_private or ip.is_link_local) and not ip.is_multicast and not ip.is_unspecified
    if not is_near or (ip.is_loopback and not loopback) or (ip.version == 6 and ip.is_link_local):
        return ""
    return with_port(str(ip), port)
