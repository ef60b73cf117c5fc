"""Name the paths between members in the same words for logs, metrics and every screen (docs/reachability.md). Pure."""

from __future__ import annotations

from typing import Literal

Reachability = Literal["dialable", "hole-punchable", "only outwards"]
REACHABILITIES: tuple[Reachability, ...] = ("dialable", "hole-punchable", "only outwards")

PUNCH = "punch"
"""Word in place of an address in a relay plan: the coordinator is asked to have both ends dial at once."""

LAN = "LAN"
_PATHS = {"punched": "hole-punched", "p2p": "libp2p"}
PATHS = (LAN, "direct", "hole-punched", "libp2p", "relayed", "mirror")
"""The names of all paths, the best first."""


def path_of(transport: str, *, lan: bool) -> str:
    """Return the name of a link's path from the fields of its LinkReport."""
    if lan and transport == "direct":
        return LAN
    return _PATHS.get(transport, transport)


def reachability_of(*, dialable: bool, punchable: bool) -> Reachability:
    """Return the name of the way in which a member can be reached."""
    if dialable:
        return "dialable"
    return "hole-punchable" if punchable else "only outwards"
