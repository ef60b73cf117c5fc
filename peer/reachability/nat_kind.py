"""What stands between this machine and those who would dial it: a name for it, and what to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: RFC 4787's behaviours by their older names (RFC 3489). "open": nothing in between; "mapped": a router that passes the
#: port on; "firewall": no translation, and nobody gets through; "unknown": it could not be told.
NatKind = Literal["open", "mapped", "firewall", "full-cone", "port-restricted", "symmetric", "unknown"]


@dataclass(frozen=True, slots=True)
class Seen:
    """How one port of this machine is seen by the coordinator.

    Args:
        local: the machine's own address on the way there.
        address, port: as seen there.
        second_port: as seen through the coordinator's other port; None: that one could not be reached.
        reached: whether a dial to ``address`` and ``port``, from a port that was never spoken to, got through.
    """

    local: str
    address: str
    port: int
    second_port: int | None
    reached: bool


def nat_kind(seen: Seen | None, *, dialled: bool) -> NatKind:
    """Args:
    dialled: whether others get through to the port for links.
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
    "mapped": "its router passes the port on",
    "firewall": "no router translates its address: a firewall drops what comes",
    "full-cone": "its router keeps one outside port for each of its own, open to all (a full cone)",
    "port-restricted": "its router lets in only who was spoken to (a port-restricted cone)",
    "symmetric": "its router draws another port for each conversation (symmetric)",
    "unknown": "",
}


def sentence(kind: NatKind) -> str:
    """The kind for a person; empty where nothing is known."""
    return _SENTENCES[kind]


_BY_PUNCHING: dict[NatKind, str] = {
    "full-cone": "every other machine gets through when both dial at the same time",
    "port-restricted": "others get through when both dial at the same time, unless their router is symmetric",
    "firewall": "others get through when both dial at the same time, unless their router is symmetric",
    "symmetric": "of those that cannot be dialled either, only machines behind a full cone get through",
}


def by_punching(kind: NatKind) -> str:
    """Who gets through a hole (docs/reachability.md); empty where nobody needs one, or nothing is known."""
    return _BY_PUNCHING.get(kind, "")


def way_round(kind: NatKind, *, punch: bool, p2p: bool) -> str:
    """What becomes of links to others that cannot be dialled either, as long as nobody gets through to this machine.

    Args:
        punch, p2p: as configured: whether holes are punched, and whether libp2p may relay the rest.
    """
    punched = by_punching(kind)
    if not punched:
        return ""
    if kind == "full-cone" and punch:
        return punched
    rest = "the rest comes through third machines (relays)"
    if not p2p:
        rest = "the rest needs third machines (relays): install rollcast[p2p], and set link.p2p = true"
    return f"{punched if punch else 'no holes are punched, as link.punch is off'}; {rest}"


def four_steps(kind: NatKind, *, local: str, address: str, port: int) -> str:
    """What opens this machine to others, one step a line.

    Args:
        local: the machine's own address; empty: not known.
        address: under which the coordinator sees it; empty: not known.
    """
    mine, outside = local or "this machine", address or "ADDRESS"
    host = f"[{outside}]" if ":" in outside else outside
    first = (
        f"on the router's page for port forwarding, pass TCP port {port} on to {mine}, port {port}; many routers do it "
        f"when asked: then link.port = {port} and link.map_port = true in the configuration are all that it takes"
    )
    if kind == "firewall":
        first = f"let TCP port {port} in where the network's or the provider's firewall is set (a security group)"
    again = "`rollcast peer check` once more"
    if kind != "firewall":
        again += (
            f"; if the router's own outside address is not {outside}, the provider translates too: ask it for a public "
            "address, or leave all as it is"
        )
    steps = (
        first,
        f"let it through this machine's own firewall, for example: ufw allow {port}/tcp",
        f'set link.port = {port} and link.advertise = "{host}:{port}" in the configuration, which `rollcast config '
        "paths` names, and start the peer again; a first `rollcast peer join` after steps 1 and 2 does that by itself",
        again,
    )
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
