"""Derive the coordinator core's settings from those of a simulated fleet."""

from __future__ import annotations

import math

from coordinator.core.decisions.settings import CoreSettings, EpisodeRules
from coordinator.core.reach.dial_settings import DialBackSettings
from rollcast.sim.settings import FleetSettings
from rollcast.sim.versions import RUN_ID
from rollcast.wire.rollouts import Sampling

VOCABULARY = 64


def core_settings(settings: FleetSettings, seed: int) -> CoreSettings:
    """Return the core's settings for a fleet and a seed.

    The timeouts for missing peers and learners are infinite: invariant I10 judges how long the run may stall.
    """
    return CoreSettings(
        run_id=RUN_ID,
        run_name=RUN_ID,
        seed=seed,
        steps=settings.steps,
        staleness_limit=settings.staleness_limit,
        publish_every_steps=settings.publish_every_steps,
        late_policy=settings.late_policy,
        late_wait_s=settings.late_wait_s,
        late_steps_max=settings.late_steps_max,
        drop_without_advantage=settings.drop_without_advantage,
        drops_per_step_max=4 * settings.groups_per_step,
        groups_per_step=settings.groups_per_step,
        samples_per_group=settings.samples_per_group,
        sampling=Sampling(temperature=1.0, max_new_tokens=settings.lengths.most, stop_token_ids=(1,)),
        vocabulary_size=VOCABULARY,
        episodes=EpisodeRules(
            turns_max=max(1, settings.turns_most),
            sticky_s=1.0,
            answer_s=settings.environment_deadline_s,
            failures_max=1_000_000,  # those that are simulated fail by chance, and a dropped group says nothing
        ),
        lease_deadline_s=settings.lease_deadline_s,
        prefetch_batches=settings.prefetch_batches,
        prefetch_s=settings.prefetch_s,
        reconnect_grace_s=settings.reconnect_grace_s,
        pacing=settings.pacing,
        lead_margin_steps=settings.lead_margin_steps,
        duplicate_share=settings.duplicate_share,
        partial_tokens_max=settings.partial_tokens_max,
        evaluation_share=settings.evaluation_share,
        dial_backs=DialBackSettings(enabled=False),  # the network is simulated: there is nothing to dial
        heartbeat_timeout_s=settings.heartbeat_timeout_s,
        no_peer_timeout_s=math.inf,
        start_timeout_s=math.inf,
        learner_timeout_s=math.inf,
        scoring_queue_max=settings.scoring_queue_max,
        finished_attempts_kept=settings.finished_attempts_kept,
        activation=settings.activation,
    )
