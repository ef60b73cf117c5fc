"""Decide which copy of an identity may hold its session: one machine at a time. Pure.

An identity's key may be copied, with a backup or with a whole machine. Each place that uses it has its own instance id.
Two instances that are connected at once are a clone: the second is refused once a message of the first has arrived
after the second connected. An instance that connects while the other is disconnected or silent has moved.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from rollcast.wire.ids import PeerId

INSTANCE_ID_LENGTH_MAX = 64
_IDENTITIES_KEPT = 16384
_SECOND_EXPIRES_S = 300.0  # seconds without a second instance, after which its return counts as a first visit

#: welcome and moved admit the instance (moved: the identity was elsewhere before); later: it retries until it is
#: certain which of the two instances is alive; cloned: it is refused.
Verdict = Literal["welcome", "moved", "later", "cloned"]


@dataclass(slots=True)
class _Known:
    instance_id: str
    is_connected: bool = True
    last_message_s: float = 0.0
    second_id: str = ""  # another instance that connected with the same identity
    second_s: float = float("-inf")  # when it first connected


class Clones:
    """The last instances of each identity; the identity that was away longest is discarded first."""

    def __init__(self) -> None:
        self._known: OrderedDict[PeerId, _Known] = OrderedDict()

    def verdict(self, peer_id: PeerId, instance_id: str, now: float) -> Verdict:
        """Decide whether this instance may open a session. Software that sends no id, an empty one, is admitted."""
        known = self._known.get(peer_id)
        if known is None or not instance_id or known.instance_id in ("", instance_id):
            return "welcome"
        if not known.is_connected:
            return "moved"
        if known.second_id != instance_id or now - known.second_s > _SECOND_EXPIRES_S:
            known.second_id, known.second_s = instance_id, now
        return "cloned" if known.last_message_s > known.second_s else "later"

    def session_opened(self, peer_id: PeerId, instance_id: str, now: float) -> None:
        """Note that a session of this instance is open."""
        self._known[peer_id] = _Known(instance_id, last_message_s=now)
        self._known.move_to_end(peer_id)
        if len(self._known) > _IDENTITIES_KEPT:
            away = next((one for one, known in self._known.items() if not known.is_connected), None)
            self._known.pop(away if away is not None else next(iter(self._known)))

    def message_received(self, peer_id: PeerId, now: float) -> None:
        """Note that the open session sent a message."""
        if (known := self._known.get(peer_id)) is not None:
            known.last_message_s = now

    def session_closed(self, peer_id: PeerId) -> None:
        """Note that the identity's session ended, and no other has replaced it."""
        if (known := self._known.get(peer_id)) is not None:
            known.is_connected = False
