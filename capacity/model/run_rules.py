"""How a run is operated, as far as it decides for how long its rollouts wait: what a prediction must know beside sizes
and speeds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """Defaults are those of the coordinator's and the peers' settings.

    Args:
        samples_per_group: rollouts of one prompt: a group enters a batch when its last one is scored.
        lead_margin_steps: prompt groups kept open beyond a batch and what is under way, in batches.
        prefetch_batches, prefetch_s: slots that a worker may hold: so many times what it draws at once, and what it
            works off in so long.
        whole_batches: whether rollouts drawn together are uploaded together, when the longest has ended. Else each
            is uploaded when it ends, and another one takes its place.
        continue_across_versions: whether running rollouts go on with a new version; else those that run come to an
            end first, and nothing takes their places meanwhile.
        t_publish_s: from the end of a learner step to its version's announcement: hashing, writing, pushing.
        t_notice_s: a message there and one back: an announcement, and the word that its version is held.
        t_turn_s: from a rollout's end to the lease that takes its place: a round trip and what is durable in between.
        reconnect_grace_s: after which the work of a worker that is away is given to others.
    """

    samples_per_group: int = 1
    lead_margin_steps: float = 0.5
    prefetch_batches: float = 2.0
    prefetch_s: float = 10.0
    whole_batches: bool = False
    continue_across_versions: bool = False
    t_publish_s: float = 0.0
    t_notice_s: float = 0.0
    t_turn_s: float = 0.0
    reconnect_grace_s: float = 3.0
