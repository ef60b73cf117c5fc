"""Simulate a member that asks for any number of slots and computes nothing."""

from __future__ import annotations

from typing import Any

from coordinator.core.events import events as ev
from peer.worker.core.events import Action, GenerateBatch, RequestWork, UploadRollouts
from rollcast.sim.nodes.peer import PeerNode

SLOTS = 65_536  # the most that a session may ask for
_ASKS_EVERY_S = 1.0


class HoarderNode(PeerNode):
    """A peer in all but its work: it relays versions, sends heartbeats, and lets every lease expire."""

    def _begin(self) -> None:
        super()._begin()
        self.later(_ASKS_EVERY_S, self._ask)

    def _ask(self) -> None:
        self._say(ev.WorkRequested(self.peer_id, SLOTS))
        self.later(_ASKS_EVERY_S, self._ask)

    def _joined(self) -> ev.PeerJoined:
        address = f"{self.name}:1" if self.line.dialable else ""
        return ev.PeerJoined(self.peer_id, "peer", self.name, address, SLOTS, "simulated")

    def _received(self, kind: str, content: Any) -> None:
        if kind == "stop":
            self._finish(content)
        elif kind not in ("leases", "revoke"):
            super()._received(kind, content)

    def _perform(self, action: Action) -> None:
        if not isinstance(action, RequestWork | GenerateBatch | UploadRollouts):
            super()._perform(action)
