"""Decide between which routers a hole can be punched. Pure.

Method and terms: Ford, Srisuresh and Kegel 2005, "Peer-to-Peer Communication Across Network Address Translators";
RFC 4787 for what routers do. The table is what `python -m bench holes` measures through real routers.
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
OUTWARDS, RESTRICTED, UNRESTRICTED = 1, 2, 3
ENOUGH = 4  # the least sum of two classes between which a punch works: 3 + 1 or 2 + 2


def hole_class(nat: str, punch_address: str) -> int:
    """Return the class, 0 to 3 as above, of a member that reported this NAT and punch address."""
    known = _CLASSES.get(nat, 0)
    return known if punch_address or known <= OUTWARDS else 0


def can_punch(one: int, other: int) -> bool:
    """Whether two members of these classes can connect by dialing each other at the same time."""
    return one + other >= ENOUGH
