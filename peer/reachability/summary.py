"""Summarise how this machine is reached: how the coordinator sees it, and whether other peers could dial it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peer.reachability.nat_kind import BY_PUNCHING_IPV6, NatKind, Seen, by_punching, nat_kind, sentence
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.reach_words import reachability_of

#: Kinds of NAT through which holes can be punched; coordinator/core/reach/holes.py has the same set.
_PUNCHABLE = frozenset({"open", "mapped", "firewall", "full-cone", "port-restricted"})


@dataclass(slots=True)
class ReachabilitySummary:
    """Findings about how this machine is reached.

    Args:
        seen: how the coordinator saw a port of this machine; None: unknown yet.
        verdict: result of the coordinator and other peers dialling the advertised address; None: none yet.
    """

    seen: Seen | None = None
    verdict: pb.DialVerdict | None = None

    @property
    def found_dialable(self) -> bool:
        """Whether the coordinator or a peer could dial the port for links."""
        return self.verdict is not None and self.verdict.asked > 0 and self.verdict.dialable

    @property
    def nat(self) -> NatKind:
        """The kind of router or firewall between this machine and peers that dial it."""
        untouched = self.seen is not None and self.seen.reached and self.seen.local == self.seen.address
        return nat_kind(self.seen, dialled=self.found_dialable or untouched)

    def describe(self, told: pb.Reachability, advertised: str) -> dict[str, Any]:
        """Return the findings for the owner's screens.

        reachability: dialable, hole-punchable or only outwards; nat: kind of router in between; nat_means: text that
        explains it; checked: text with the result of dialling back.

        Args:
            told: what was reported to the coordinator.
            advertised: address that was advertised at startup; empty: none.
        """
        address = told.advertise or advertised
        refuted = self.verdict is not None and self.verdict.asked > 0 and not self.verdict.dialable
        punchable = bool(told.punch_address_ipv6) or (bool(told.punch_address) and told.nat in _PUNCHABLE)
        over_ipv6 = BY_PUNCHING_IPV6 if told.punch_address_ipv6 else ""
        return {
            "reachability": reachability_of(dialable=bool(address) and not refuted, punchable=punchable),
            "address": address,
            "nat": self.nat,
            "nat_means": "; ".join(filter(None, (sentence(self.nat), by_punching(self.nat), over_ipv6))),
            "checked": self._checked(address),
            "punch_address": told.punch_address,
            "punch_address_ipv6": told.punch_address_ipv6,
            "relays": len(told.circuits),
        }

    def _checked(self, address: str) -> str:
        if not address:
            return ""
        if self.verdict is None:
            return "not dialled back yet"
        if not self.verdict.asked:
            return f"not checked: {self.verdict.problem}"
        why = f": {self.verdict.problem}" if self.verdict.problem else ""
        tried = f"{self.verdict.reached} of {self.verdict.asked} peers that tried"
        return f"{tried} could connect to {self.verdict.address}{why}"
