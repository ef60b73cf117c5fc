"""Decide between which routers a hole can be punched. Pure.

Method and terms: Ford, Srisuresh and Kegel 2005, "Peer-to-Peer Communication Across Network Address Translators";
RFC 4787 for what routers do. The table is what `python -m bench holes` measures through real routers. Routers do not
translate IPv6: they drop incoming connections that nothing inside has asked for (RFC 6092), and let in whom the machine
dials, at its own address and port.
"""

from __future__ import annotations

NAT_KINDS = ("open", "mapped", "firewall", "full-cone", "port-restricted", "symmetric", "unknown")

#: Class of the port from which holes are punched: 0: of no use; 1: it dials out, from a port that others cannot know;
#: 2: it lets in members that it dialled, at a known address; 3: it lets in all members at that address.
_CLASSES = {
    "open": 3,
    "full-cone": 3,
    "mapped": 2,  # the router forwards the port for links, but not the one for holes
    "firewall": 2,
    "port-restricted": 2,
    "symmetric": 1,
    "unknown": 0,
}
OUTWARDS, RESTRICTED = 1, 2
IPV6 = 4  # added to the class of a member that punches holes over IPv6 too
CLASSES = 8
_OVER_IPV4 = 3  # the bits of a class that hold what it does over IPv4
_ENOUGH = 4  # the least sum of two classes between which a punch over IPv4 works: 3 + 1 or 2 + 2


def hole_class(nat: str, punch_address: str, punch_address_ipv6: str = "") -> int:
    """Return the class, 0 to 7 as above, of a member that reported this NAT and these punch addresses."""
    known = _CLASSES.get(nat, 0)
    over_ipv4 = known if punch_address or known <= OUTWARDS else 0
    return over_ipv4 + (IPV6 if punch_address_ipv6 else 0)


def can_punch(one: int, other: int) -> bool:
    """Whether two members of these classes can connect by dialing each other at the same time."""
    return bool(one & other & IPV6) or can_punch_over_ipv4(one, other)


def can_punch_over_ipv4(one: int, other: int) -> bool:
    """Whether they can connect so over IPv4."""
    return (one & _OVER_IPV4) + (other & _OVER_IPV4) >= _ENOUGH


def classes_within(hole: int) -> frozenset[int]:
    """Return the classes that reach no member which this one does not reach."""
    return frozenset(
        one for one in range(CLASSES) if one & _OVER_IPV4 <= hole & _OVER_IPV4 and one & IPV6 <= hole & IPV6
    )


def lets_in(hole: int) -> bool:
    """Whether members can reach the port from which a member of this class punches holes."""
    return hole & _OVER_IPV4 >= RESTRICTED or hole & IPV6 != 0
