"""Decide which copy of an identity may hold its session: one machine at a time. Pure.

An identity's key may be copied, with a backup or with a whole machine. Each place that uses it has its own instance id.
Two instances that are connected at once are a clone: the second is refused once the first was heard of again after the
second came. An instance that comes when the other is disconnected or silent has moved.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from rollcast.wire.ids import PeerId

INSTANCE_ID_LENGTH_MAX = 64
_IDENTITIES_KEPT = 16384
_FORGET_S = 300.0  # a second instance that stayed away so long starts over

#: moved: it may, and was elsewhere before; later: it may retry, until it is certain which of the two holds.
Verdict = Literal["welcome", "moved", "later", "cloned"]


@dataclass(slots=True)
class _Known:
    instance_id: str
    is_here: bool = True
    heard_s: float = 0.0
    second_id: str = ""  # another instance that wants the same identity
    second_s: float = float("-inf")  # when it came first


class Clones:
    """The known instances of identities; the identity that was away longest is discarded first."""

    def __init__(self) -> None:
        self._known: OrderedDict[PeerId, _Known] = OrderedDict()

    def arrives(self, peer_id: PeerId, instance_id: str, now: float) -> Verdict:
        """Decide whether this instance may open a session. An empty id is from software that sends none: welcome."""
        known = self._known.get(peer_id)
        if known is None or not instance_id or known.instance_id in ("", instance_id):
            return "welcome"
        if not known.is_here:
            return "moved"
        if known.second_id != instance_id or now - known.second_s > _FORGET_S:
            known.second_id, known.second_s = instance_id, now
        return "cloned" if known.heard_s > known.second_s else "later"

    def opened(self, peer_id: PeerId, instance_id: str, now: float) -> None:
        """Note that a session of this instance is open."""
        self._known[peer_id] = _Known(instance_id, heard_s=now)
        self._known.move_to_end(peer_id)
        if len(self._known) > _IDENTITIES_KEPT:
            away = next((one for one, known in self._known.items() if not known.is_here), None)
            self._known.pop(away if away is not None else next(iter(self._known)))

    def heard(self, peer_id: PeerId, now: float) -> None:
        """Note that the open session sent a message."""
        if (known := self._known.get(peer_id)) is not None:
            known.heard_s = now

    def gone(self, peer_id: PeerId) -> None:
        """Note that the identity's session ended, and no other has replaced it."""
        if (known := self._known.get(peer_id)) is not None:
            known.is_here = False
