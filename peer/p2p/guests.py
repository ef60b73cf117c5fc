"""Who may keep a connection to our libp2p host: members of the run. Strangers get seconds to show that they are one.

libp2p has no list of peers that it takes connections from (trap 10 of its 0.8): this is looked at after each handshake,
which has proved the PeerId. Decisions only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from rollcast.wire.ids import PeerId

_REMEMBERED_MOST = 4096
_REFUSED_FOR_S = 60.0
Verdict = Literal["member", "stranger", "refused"]


@dataclass(slots=True)
class Guests:
    """Of one host.

    Args:
        strangers_most: on probation at a time.
    """

    strangers_most: int = 16
    _expected: frozenset[PeerId] = frozenset()
    _banned: frozenset[PeerId] = frozenset()
    _shown: OrderedDict[PeerId, None] = field(default_factory=OrderedDict)
    _refused_until_s: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)

    def expect(self, peer_ids: Iterable[PeerId]) -> None:
        """The coordinator, or a record that proved itself, names these as members; in place of those named before."""
        self._expected = frozenset(peer_ids)

    def keep_out(self, banned: frozenset[PeerId]) -> None:
        """These are members no more, whatever they show; in place of those before."""
        self._banned = banned

    def showed(self, peer_id: PeerId) -> None:
        """It has shown a certificate of the run, or we dialled it as one that has."""
        self._refused_until_s.pop(peer_id, None)
        self._shown[peer_id] = None
        self._shown.move_to_end(peer_id)
        while len(self._shown) > _REMEMBERED_MOST:
            self._shown.popitem(last=False)

    def refuse(self, peer_id: PeerId, now: float) -> None:
        """It has shown something else, or may not have what it asked for: it need not come back for a while."""
        self._shown.pop(peer_id, None)
        self._refused_until_s[peer_id] = now + _REFUSED_FOR_S
        self._refused_until_s.move_to_end(peer_id)
        while len(self._refused_until_s) > _REMEMBERED_MOST:
            self._refused_until_s.popitem(last=False)

    def is_refused(self, peer_id: PeerId, now: float) -> bool:
        """Whether it was refused and has to wait still."""
        return peer_id in self._banned or now < self._refused_until_s.get(peer_id, now)

    def is_member(self, peer_id: PeerId) -> bool:
        """Whether it is one of the run, as far as is known."""
        return peer_id not in self._banned and (peer_id in self._shown or peer_id in self._expected)

    def judge(self, peer_id: PeerId, strangers: int, now: float) -> Verdict:
        """What to do about a connection of this peer.

        Args:
            strangers: other connections that are on probation now.
        """
        if self.is_member(peer_id):
            return "member"
        if self.is_refused(peer_id, now) or strangers >= self.strangers_most:
            return "refused"
        return "stranger"
