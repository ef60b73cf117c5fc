"""Simulate a member that keeps every version that is young enough and chooses the one with which it answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from peer.worker.core.events import UploadRollouts, VersionKey
from rollcast.sim.nodes.peer import PeerNode
from rollcast.wire.rollouts import Rollout, Segment


class PickerNode(PeerNode):
    """A peer in all but its answers: each comes from a random version of those that may still be trained on.

    The best of several answers to one slot comes from any of their versions alike, so no reward is simulated.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._kept: list[VersionKey] = []

    def _activated(self, key: VersionKey) -> None:
        self._kept = [*self._kept[-self.ground.settings.staleness_limit :], key]
        super()._activated(key)

    def _upload(self, action: UploadRollouts) -> None:
        super()._upload(replace(action, rollouts=tuple(self._chosen(one) for one in action.rollouts)))

    def _chosen(self, rollout: Rollout) -> Rollout:
        epoch = rollout.segments[-1].epoch
        key = self._random.choice([one for one in self._kept if one.epoch == epoch] or self._kept)
        return replace(rollout, segments=tuple(self._made_with(one, key) for one in rollout.segments))

    def _made_with(self, segment: Segment, key: VersionKey) -> Segment:
        own = segment.peer_id == self.peer_id
        return replace(segment, epoch=key.epoch, version=key.version) if own else segment
