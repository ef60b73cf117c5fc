"""Between which routers a hole can be punched. Pure.

Method and terms: Ford, Srisuresh and Kegel 2005, "Peer-to-Peer Communication Across Network Address Translators";
RFC 4787 for what routers do. The table is what `python -m bench holes` measures through real routers.
"""

from __future__ import annotations

NAT_KINDS = ("open", "mapped", "firewall", "full-cone", "port-restricted", "symmetric", "unknown")

#: What the port for holes takes part in: 0: nothing; 1: it dials out, from a port that nobody can know; 2: it lets in
#: whom it dialled, at an address that is known; 3: it lets in everybody there.
_CLASSES = {
    "open": 3,
    "full-cone": 3,
    "mapped": 2,  # the port for links is passed on, the one for holes is not
    "firewall": 2,
    "port-restricted": 2,
    "symmetric": 1,
    "unknown": 0,
}
OUTWARDS, RESTRICTED, ANYBODY = 1, 2, 3
ENOUGH = 4  # 3 + 1, 2 + 2


def hole_class(nat: str, punch_address: str) -> int:
    """Of a member that told these: 0 to 3, see above."""
    known = _CLASSES.get(nat, 0)
    return known if punch_address or known <= OUTWARDS else 0


def can_punch(one: int, other: int) -> bool:
    """Whether two members of these classes can get through to each other by dialling at the same time."""
    return one + other >= ENOUGH
