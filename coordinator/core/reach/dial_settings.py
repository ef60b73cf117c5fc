"""Decide which addresses may be dialled back. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_network


@dataclass(frozen=True, slots=True)
class DialBackSettings:
    """Args:
    enabled: whether members are dialled back at all.
    networks: in CIDR notation, in which addresses are dialled that are not those that sessions come from.
    """

    enabled: bool = True
    networks: tuple[str, ...] = ()

    def allow(self, address: str, host: str) -> bool:
        """Whether a member whose session comes from ``host`` may have this IP address dialled."""
        if not host:
            return False
        ip = ip_address(address)
        return ip == ip_address(host) or any(ip in ip_network(one, strict=False) for one in self.networks)


def is_numeric(host: str) -> bool:
    """Whether it is an IP address, and no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
