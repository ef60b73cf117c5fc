"""Let a simulated peer receive versions chunk by chunk, through the real relay core."""

from __future__ import annotations

from typing import Any

from peer.relay.core.state.actions import Accuse
from rollcast.sim.nodes.peer import PeerNode
from rollcast.sim.nodes.relay import Relay
from rollcast.sim.nodes.relay_links import RelayHost
from rollcast.wire.ids import Version
from rollcast.wire.versions.records import VerifiedVersion


class ChunkReceiver:
    """The relay of a peer's process, in the form that the peer expects of a receiver."""

    def __init__(self, node: PeerNode, hosts: dict[str, RelayHost]) -> None:
        self._node = node
        self._hosts = hosts
        self.relay = Relay(node.ground, node, "peer", node.disk, hosts, node.verified, self._accuse, self._has_session)
        self.relay.links.dialable = node.line.dialable

    def begin(self) -> None:
        self.relay.begin()

    def killed(self) -> None:
        self.relay.killed()

    def announced(self, verified: VerifiedVersion) -> None:
        if not self.relay.handle_announcement(verified, announced=True):
            what = f"{self._node.name} knows another version {verified.version}"
            self._node.ground.oracle.failed(what, self._node.agenda.now)

    def planned(self, plan: Any) -> None:
        self.relay.planned(plan)

    def loadable(self, version: Version) -> bool:
        kept = self.relay.disk.get(version)
        return kept is not None and kept.whole and kept.passes

    def as_signed(self, version: Version) -> bool:
        kept = self.relay.disk.get(version)
        return kept is None or kept.right

    def complete(self, version: Version) -> bool:
        kept = self.relay.disk.get(version)
        return kept is None or kept.complete

    def received_s(self, now: float) -> float:
        return 0.0

    def facts(self) -> dict[str, Any]:
        return {}

    def _has_session(self) -> bool:
        return self._node.link is not None and self._node.link.open

    def _accuse(self, action: Accuse) -> None:
        """Report the sender, with its receipt if it is one that signs what it sent."""
        version = action.key.version
        sender = self._hosts.get(action.peer_id)
        receipt = sender.receipt if sender is not None else b""
        self._node.accuse(action.peer_id, version, action.index, action.reason, receipt)
