"""Build the core's settings from the process's configuration. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from blake3 import blake3

from coordinator.config.config import CoordinatorConfig
from coordinator.config.tasks import MixtureTask
from coordinator.core.broadcast.nodes import PlanShape
from coordinator.core.broadcast.probing import ProbeSettings
from coordinator.core.decisions.settings import CoreSettings, EpisodeRules
from coordinator.core.leases.stages import LengthStage
from coordinator.core.reach.dial_settings import DialBackSettings
from rollcast.wire.identity.identity import peer_id_of
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.rollouts import Sampling

TICK_S = 0.2  # between two ticks of the core
STEPS_OF_CELL = 1 << 40  # a cell never has all the work that it can use


def _learner_peer_id(public_key: str) -> PeerId | None:
    return peer_id_of(bytes.fromhex(public_key)) if public_key else None


def core_settings(
    config: CoordinatorConfig, run_id: RunId, sampling: Sampling, *, vocabulary_size: int, seed_secret: bytes
) -> CoreSettings:
    """Return the core's settings for a configuration.

    Args:
        seed_secret: 32 bytes that only this run's coordinators know. Seeds of slots follow from it, so that no peer
            knows a seed before its lease.
    """
    settings = CoreSettings(
        run_id=run_id,
        run_name=config.run.name,
        learner_peer_id=_learner_peer_id(config.learner_public_key),
        seed=int.from_bytes(blake3(config.run.seed.to_bytes(8, "little"), key=seed_secret).digest(length=8), "little"),
        steps=config.run.steps,
        staleness_limit=config.run.staleness_limit,
        publish_every_steps=_kappa(config),
        late_policy=config.run.late_policy,
        late_wait_s=config.run.late_wait_s,
        late_steps_max=config.run.late_steps_max,
        groups_per_step=config.run.groups_per_step,
        samples_per_group=config.run.samples_per_group,
        sampling=sampling,
        drop_without_advantage=config.selection.drop_without_advantage,
        drops_per_step_max=int(config.selection.drops_per_step_max * config.run.groups_per_step),
        stages=tuple(
            LengthStage(
                stage.name,
                stage.from_step,
                stage.new_tokens_max or sampling.max_new_tokens,
                stage.until_reward,
                stage.until_steps,
                stage.reward_steps,
            )
            for stage in config.stages
        ),
        staged_prompts=(isinstance(config.task, MixtureTask) and bool(config.task.stages))
        or any(stage.is_selective for stage in config.stages),
        vocabulary_size=vocabulary_size,
        lease_deadline_s=config.lease.deadline_s,
        lease_deadline_most_s=config.lease.deadline_most_s,
        prefetch_batches=config.lease.prefetch_batches,
        prefetch_s=config.lease.prefetch_s,
        reconnect_grace_s=config.lease.reconnect_grace_s,
        pacing=config.lease.pacing,
        lead_margin_steps=config.lease.lead_margin_steps,
        duplicate_share=config.lease.duplicate_share,
        evaluation_share=config.lease.evaluation_share,
        episodes=EpisodeRules(
            turns_max=config.environments.turns_max,
            seconds_max=config.environments.episode_seconds_max,
            sticky_s=config.environments.sticky_s,
            answer_s=config.environments.answer_s,
            failures_max=config.environments.failures_max,
        ),
        partial_tokens_max=config.lease.partial_tokens_max if config.lease.is_continued_elsewhere else 0,
        heartbeat_timeout_s=config.membership.heartbeat_timeout_s,
        tick_s=TICK_S,
        no_peer_timeout_s=config.membership.no_peer_timeout_s,
        start_timeout_s=config.membership.start_timeout_s,
        learner_timeout_s=config.membership.learner_timeout_s,
        scoring_queue_max=config.verifier.queue_max,
        scoring_failed_share_max=config.verifier.failed_share_max,
        plan_shape=PlanShape(
            mesh_peers_max=config.relay.mesh_peers_max,
            stripes=config.relay.stripes,
            fallbacks_max=config.relay.fallbacks_max,
            unknown_uplink_bytes_per_second=config.relay.unknown_uplink_bytes_per_second,
            mirrors=tuple(config.relay.mirrors),
        ),
        probes=ProbeSettings(config.relay.probe_bytes_max, config.relay.probe_seconds_max),
        dial_backs=DialBackSettings(config.relay.dial_back, tuple(config.relay.dial_back_networks)),
        lan_preferred=config.relay.lan_preferred,
        activation=config.capacity.settings(
            unknown_upload_bytes_per_second=config.relay.unknown_uplink_bytes_per_second,
            usd_total_max=config.providers.usd_max,
        ),
    )
    return settings if config.cell.invite_file is None else _of_cell(settings)


def _of_cell(settings: CoreSettings) -> CoreSettings:
    """Return the settings of a cell: each slot of the head is a group, and the head decides about age and length."""
    return replace(
        settings,
        is_cell=True,
        steps=STEPS_OF_CELL,
        pacing="none",
        groups_per_step=settings.groups_per_step * settings.samples_per_group,
        samples_per_group=1,
        no_peer_timeout_s=math.inf,  # the head goes on without it, and peers may join at any time
    )


def _kappa(config: CoordinatorConfig) -> int:
    """Return kappa in the form of the core's settings: 0 means auto."""
    return 0 if config.run.publish_every_steps == "auto" else config.run.publish_every_steps
