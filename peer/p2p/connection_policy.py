"""Decide which peers may keep a connection to a libp2p host. Pure.

This part stands apart from the gate that applies it, because the gate imports libp2p, which is an extra.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from rollcast.wire.ids import PeerId

_REMEMBERED_MOST = 4096  # peers; bounds what an attacker with many identities can make this host remember
_REFUSED_FOR_S = 60.0  # before a refused peer may try again
Verdict = Literal["member", "stranger", "refused"]


@dataclass(slots=True)
class ConnectionPolicy:
    """The rules by which one host accepts or refuses peers.

    Args:
        strangers_most: connections of strangers on probation at a time.
    """

    strangers_most: int = 16
    _expected: frozenset[PeerId] = frozenset()
    _banned: frozenset[PeerId] = frozenset()
    _shown: OrderedDict[PeerId, None] = field(default_factory=OrderedDict)
    _refused_until_s: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)

    def expect(self, peer_ids: Iterable[PeerId]) -> None:
        """Replace the peers that count as members because the coordinator or a verified record names them."""
        self._expected = frozenset(peer_ids)

    def keep_out(self, banned: frozenset[PeerId]) -> None:
        """Replace the banned peers, which are no members whatever certificate they show."""
        self._banned = banned

    def showed(self, peer_id: PeerId) -> None:
        """Remember a peer that showed a certificate of the run, or that was dialled as one that has."""
        self._refused_until_s.pop(peer_id, None)
        self._shown[peer_id] = None
        self._shown.move_to_end(peer_id)
        while len(self._shown) > _REMEMBERED_MOST:
            self._shown.popitem(last=False)

    def refuse(self, peer_id: PeerId, now: float) -> None:
        """Refuse a peer for a while: its certificate was invalid, or it asked for something that it may not have."""
        self._shown.pop(peer_id, None)
        self._refused_until_s[peer_id] = now + _REFUSED_FOR_S
        self._refused_until_s.move_to_end(peer_id)
        while len(self._refused_until_s) > _REMEMBERED_MOST:
            self._refused_until_s.popitem(last=False)

    def is_refused(self, peer_id: PeerId, now: float) -> bool:
        """Return whether the peer is banned, or was refused less than _REFUSED_FOR_S ago."""
        return peer_id in self._banned or now < self._refused_until_s.get(peer_id, now)

    def is_member(self, peer_id: PeerId) -> bool:
        """Return whether the peer is known as a member of the run."""
        return peer_id not in self._banned and (peer_id in self._shown or peer_id in self._expected)

    def judge(self, peer_id: PeerId, strangers: int, now: float) -> Verdict:
        """Decide about a connection of this peer.

        Args:
            strangers: number of other connections on probation now.
        """
        if self.is_member(peer_id):
            return "member"
        if self.is_refused(peer_id, now) or strangers >= self.strangers_most:
            return "refused"
        return "stranger"
