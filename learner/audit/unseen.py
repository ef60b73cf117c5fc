"""Judge rollouts that are not trained on: dropped groups and evaluations, a few beside each batch.

The coordinator chooses them (coordinator.core.members.audit_queue). They go through the pass that recomputes older
versions and are judged and written down as trained ones are, but never reach the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from learner.alignment.audit import Finding, findings, lay_out_bounds
from learner.audit.evidence import Evidence
from learner.publishing.versions import RetainedVersions
from learner.training.batch_check import BatchRules, rows_of
from learner.training.packing import TrainingRow, lay_out
from learner.training.trainer import Trainer, behaviour_by_version
from rollcast.policy.params import Params
from rollcast.wire.ids import Version
from rollcast.wire.proto import rollcast_pb2 as pb


def judge_unseen(
    step: int,
    rollouts: Sequence[pb.TrainingRollout],
    trainer: Trainer,
    retained: RetainedVersions,
    evidence: Evidence,
    *,
    rules: BatchRules,
    row_tokens: int,
    bound: Callable[[str], float],
) -> list[Finding]:
    """Return what these rollouts' tokens gave, without those whose versions are not kept any more.

    Args:
        step: the learner step under which evidence is recorded.
        row_tokens: length of the rows in which they are laid out; beyond ``rules.row_tokens`` they share rows.
        bound: the bound of a sampler's margins in nats (learner.alignment.audit.bounds_for).

    Raises:
        MalformedMessage: a rollout is malformed, which the coordinator should have found.
    """
    kept: set[int] = set(retained.versions())
    rows = [row for row in rows_of(rollouts, rules) if versions_of(row) <= kept]
    if not rows:
        return []
    packed = lay_out(rows, time=row_tokens, shared=row_tokens > rules.row_tokens, routes=rules.routes)
    bounds = lay_out_bounds(rows, packed, bound)
    judged = np.isfinite(bounds)

    def params_of(version: int) -> Params:
        return retained.host_params(Version(version), trainer.model_config)

    scored = behaviour_by_version(trainer, packed, params_of, judged)
    margins = np.where(judged, np.asarray(scored.margins), np.float32(np.nan))
    evidence.add(step, rows, packed, margins, bounds)
    return findings(rows, packed, margins, bounds)


def versions_of(row: TrainingRow) -> set[int]:
    """Return the versions that generated any of a rollout's tokens."""
    return {segment.version for segment in row.segments if segment.is_generated}
