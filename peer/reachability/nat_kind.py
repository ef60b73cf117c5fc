"""Classify the router or firewall between this machine and peers that dial it, and say what to do about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: RFC 4787's behaviours by their older names (RFC 3489). "open": nothing in between; "mapped": a router that forwards
#: the port; "firewall": no address translation, but incoming connections fail; "unknown": it could not be determined.
NatKind = Literal["open", "mapped", "firewall", "full-cone", "port-restricted", "symmetric", "unknown"]


@dataclass(frozen=True, slots=True)
class Seen:
    """One port of this machine as the coordinator sees it.

    Args:
        local: the machine's own address on the way to the coordinator.
        address, port: source address of the connection, as the coordinator sees it.
        second_port: source port of a connection to the coordinator's other port; None: that could not be reached.
        reached: whether the coordinator could dial ``address`` and ``port`` from a port that this machine had not
            contacted.
    """

    local: str
    address: str
    port: int
    second_port: int | None
    reached: bool


def nat_kind(seen: Seen | None, *, dialled: bool) -> NatKind:
    """Return the kind of NAT.

    Args:
        seen: None: unknown.
        dialled: whether other peers can dial the port for links.
    """
    if seen is None:
        return "unknown"
    translated = seen.local != seen.address
    if dialled:
        return "mapped" if translated else "open"
    if not translated:
        return "firewall"
    if seen.second_port is None:
        return "full-cone" if seen.reached else "unknown"
    if seen.second_port != seen.port:
        return "symmetric"
    return "full-cone" if seen.reached else "port-restricted"


_SENTENCES: dict[NatKind, str] = {
    "open": "no router translates its address",
    "mapped": "its router forwards the port",
    "firewall": "no router translates its address, but a firewall drops incoming connections",
    "full-cone": "its router keeps one outside port for each inside port, open to everyone (a full cone)",
    "port-restricted": "its router admits only addresses that this machine has contacted (a port-restricted cone)",
    "symmetric": "its router uses another outside port for each destination (symmetric)",
    "unknown": "",
}


def sentence(kind: NatKind) -> str:
    """Return an explanation of the kind; empty for "unknown"."""
    return _SENTENCES[kind]


_BY_PUNCHING: dict[NatKind, str] = {
    "full-cone": "every other machine can connect when both dial at the same time",
    "port-restricted": "others can connect when both dial at the same time, unless their router is symmetric",
    "firewall": "others can connect when both dial at the same time, unless their router is symmetric",
    "symmetric": "of the machines that cannot be dialled either, only those behind a full cone can connect",
}

#: The same for a machine that punches holes over IPv6, whatever its router does with IPv4.
BY_PUNCHING_IPV6 = "others that do so over IPv6 can connect when both dial at the same time"


def by_punching(kind: NatKind) -> str:
    """Return which machines can connect by hole punching (docs/reachability.md); empty: not needed, or unknown."""
    return _BY_PUNCHING.get(kind, "")


def way_round(kind: NatKind, *, punch: bool, p2p: bool) -> str:
    """Return how this machine, while it cannot be dialled, links to others that cannot be dialled either.

    Args:
        punch, p2p: configuration: whether holes are punched, and whether libp2p may relay the remaining links.
    """
    punched = by_punching(kind)
    if not punched:
        return ""
    if kind == "full-cone" and punch:
        return punched
    rest = "other links go through third machines (relays)"
    if not p2p:
        rest = (
            "other links need third machines (relays): install the extra p2p, for which `rollcast doctor` prints the "
            "command, and set link.p2p = true"
        )
    return f"{punched if punch else 'no holes are punched, because link.punch is off'}; {rest}"


def four_steps(kind: NatKind, *, local: str, address: str, port: int) -> str:
    """Return the steps that make this machine dialable, one per line.

    Args:
        local: the machine's own address; empty: unknown.
        address: the address under which the coordinator sees it; empty: unknown.
    """
    mine, outside = local or "this machine", address or "ADDRESS"
    host = f"[{outside}]" if ":" in outside else outside
    first = (
        f"in the router's settings for port forwarding, forward TCP port {port} to {mine}, port {port}; many routers "
        f"do so on request: then set link.port = {port} and link.map_port = true in the configuration instead"
    )
    if kind == "firewall":
        first = f"allow TCP port {port} in the firewall of the network or the provider (a security group)"
        if ":" in outside:
            first += (
                f'; some home routers do so on request: then set link.host = "::", link.port = {port} and '
                "link.map_port = true in the configuration instead"
            )
    again = "run `rollcast peer check` again"
    if kind != "firewall":
        again += (
            f"; if the router's own outside address is not {outside}, the provider translates addresses too: ask it "
            "for a public address, or leave everything as it is"
        )
    steps = (
        first,
        f"allow the port in this machine's own firewall, for example: ufw allow {port}/tcp",
        f'set link.port = {port} and link.advertise = "{host}:{port}" in the configuration (`rollcast config paths` '
        "shows where it is) and restart the peer; a first `rollcast peer join` after steps 1 and 2 does this by itself",
        again,
    )
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
