"""What is known of how this machine is reached, put together: how it is seen, and what others found. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peer.reachability.nat_kind import NatKind, Seen, by_punching, nat_kind, sentence
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.reach_words import reachability_of

#: From behind these a hole can be punched to others; the same as coordinator/core/reach/holes.py has it.
_PUNCHABLE = frozenset({"open", "mapped", "firewall", "full-cone", "port-restricted"})


@dataclass(slots=True)
class ReachabilitySummary:
    """Args:
    seen: how the coordinator saw a port of ours; None: not yet.
    verdict: what the coordinator and others found who dialled the advertised address; None: nobody has yet.
    """

    seen: Seen | None = None
    verdict: pb.DialVerdict | None = None

    @property
    def found_dialable(self) -> bool:
        """Whether somebody got through to the port for links."""
        return self.verdict is not None and self.verdict.asked > 0 and self.verdict.dialable

    @property
    def nat(self) -> NatKind:
        """What stands between this machine and those who would dial it."""
        untouched = self.seen is not None and self.seen.reached and self.seen.local == self.seen.address
        return nat_kind(self.seen, dialled=self.found_dialable or untouched)

    def describe(self, told: pb.Reachability, advertised: str) -> dict[str, Any]:
        """For the owner's screens.

        reachability: dialable, hole-punchable or only outwards; nat: what is in between; checked: in words, what those
        found who dialled back; means: in words, what comes of it.
        """
        address = told.advertise or advertised
        refuted = self.verdict is not None and self.verdict.asked > 0 and not self.verdict.dialable
        punchable = bool(told.punch_address) and told.nat in _PUNCHABLE
        return {
            "reachability": reachability_of(dialable=bool(address) and not refuted, punchable=punchable),
            "address": address,
            "nat": self.nat,
            "nat_means": "; ".join(filter(None, (sentence(self.nat), by_punching(self.nat)))),
            "checked": self._checked(address),
            "punch_address": told.punch_address,
            "relays": len(told.circuits),
        }

    def _checked(self, address: str) -> str:
        if not address:
            return ""
        if self.verdict is None:
            return "nobody has dialled back yet"
        if not self.verdict.asked:
            return f"not checked: {self.verdict.problem}"
        why = f": {self.verdict.problem}" if self.verdict.problem else ""
        return f"{self.verdict.reached} of {self.verdict.asked} got through to {self.verdict.address}{why}"
