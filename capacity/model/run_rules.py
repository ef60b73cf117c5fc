"""Describe how a run is operated, as far as that decides how long its rollouts wait.

A prediction needs these settings besides sizes and speeds.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.wire.rollouts import AtVersionSwap


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """The rules by which a run is operated; defaults are those of the coordinator's and the peers' settings.

    Args:
        samples_per_group: rollouts of one prompt: a group enters a batch when its last one is scored.
        lead_margin_steps: prompt groups kept open beyond a batch and the work in flight, in batches.
        prefetch_batches, prefetch_s: limits on the slots that a worker may hold: generation batches, and seconds of
            work.
        whole_batches: whether rollouts generated together are uploaded together, when the longest has ended.
            Otherwise each is uploaded when it ends, and another one takes its place.
        at_version_swap: what rollouts in flight do when a new version is active (rollcast.wire.rollouts). With
            "finish" nothing takes the places of those that end meanwhile.
        t_publish_s: from the end of a learner step to its version's announcement: hashing, writing, pushing.
        t_notice_s: a round trip: the announcement of a version, and the report that it is held.
        t_turn_s: from a rollout's end to the lease that takes its place: a round trip and a durable write.
        reconnect_grace_s: seconds after which a disconnected worker's slots are also leased to others.
    """

    samples_per_group: int = 1
    lead_margin_steps: float = 0.5
    prefetch_batches: float = 2.0
    prefetch_s: float = 10.0
    whole_batches: bool = False
    at_version_swap: AtVersionSwap = "finish"
    t_publish_s: float = 0.0
    t_notice_s: float = 0.0
    t_turn_s: float = 0.0
    reconnect_grace_s: float = 3.0
