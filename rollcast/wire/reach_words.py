"""The words for ways between members, the same in logs, metrics and on every screen (docs/reachability.md). Pure."""

from __future__ import annotations

from typing import Literal

Reachability = Literal["dialable", "hole-punchable", "only outwards"]
REACHABILITIES: tuple[Reachability, ...] = ("dialable", "hole-punchable", "only outwards")

LAN = "LAN"
_PATHS = {"punched": "hole-punched", "p2p": "libp2p"}
PATHS = (LAN, "direct", "hole-punched", "libp2p", "relayed", "mirror")
"""The better ones first."""


def path_of(transport: str, *, lan: bool) -> str:
    """What a link is called, from its report (LinkReport)."""
    if lan and transport == "direct":
        return LAN
    return _PATHS.get(transport, transport)


def reachability_of(*, dialable: bool, punchable: bool) -> Reachability:
    """What a member is called."""
    if dialable:
        return "dialable"
    return "hole-punchable" if punchable else "only outwards"
