"""Decide where each token's behaviour log-probability comes from: passes of the learner, or the peers' reports.

The learner scores a token under the version that generated it. For tokens of the policy that is being trained the
training pass itself does so; older versions need a forward pass of their own. With ``learner.behaviour = "reported"``
the loss takes what peers report, and the learner scores only a sample of rollouts, to audit the reports. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from learner.config import BehaviourSource
from learner.training.packing import PackedBatch, TrainingRow
from rollcast.policy.logprobs import TokenStatistics

# Reported log-probabilities are kept within [LOWEST, 0] nats. Tokens less probable than e^-20 are not sampled in
# practice, and a probability near 0 would make the ratio of a single token decide the step.
LOWEST = -20.0

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class BehaviourPlan:
    """The source of each token's log-probability; arrays are [rows, time]."""

    reported: Array  # f32, what peers report, kept within [LOWEST, 0]; 0 where nothing was reported
    has_report: Array  # bool, trained tokens with a report
    from_report: Array  # bool, tokens for which the loss takes the report
    own: Array  # bool, tokens that the training pass scores under the policy that generated them
    recomputed: Array  # bool, tokens that passes of older versions score, for the loss or for an audit

    @property
    def on_policy(self) -> Array:
        """Return the tokens, bool [rows, time], for which the loss takes the training pass's own values."""
        return self.own & ~self.from_report

    def for_loss(self, recomputed: TokenStatistics) -> Array:
        """Return the behaviour log-probabilities f32 [rows, time] of the loss; 0 where it does not read them.

        Args:
            recomputed: f32 [rows, time], statistics of the tokens ``recomputed``.
        """
        scored = np.where(self.recomputed, np.asarray(recomputed.logprobs), np.float32(0.0))
        result: Array = np.where(self.from_report, self.reported, scored)
        return result

    def known(self, recomputed: TokenStatistics, own: TokenStatistics | None) -> TokenStatistics:
        """Return the learner's statistics of the tokens that it scored, f32 [rows, time]; NaN for all others.

        Args:
            own: f32 [rows, time], statistics from the training pass; None if no token is ``own``.
        """
        found = [np.where(self.recomputed, np.asarray(leaf), np.float32(np.nan)) for leaf in recomputed]
        if own is not None:
            found = [np.where(self.own, np.asarray(leaf), rest) for leaf, rest in zip(own, found, strict=True)]
        return TokenStatistics(*found)


def plan_behaviour(
    rows: Sequence[TrainingRow],
    packed: PackedBatch,
    source: BehaviourSource,
    *,
    own_version: int | None,
    step: int,
    audited_rollouts: int,
    caches_kept: bool = False,
) -> BehaviourPlan:
    """Plan the sources for a batch.

    Args:
        rows: the batch's rollouts.
        packed: the same rollouts as they were laid out.
        source: the configured source. Tokens without a report are recomputed whatever it is.
        own_version: the version whose parameters are being trained; None if there is none, or if the training pass
            cannot score it because the batch takes several optimiser steps.
        step: the learner step, by which the audited rollouts are chosen.
        audited_rollouts: how many rollouts are recomputed although their log-probabilities were reported.
        caches_kept: whether rollouts keep keys and values across versions. The training pass then gives the
            probability only of the tokens of a rollout's first version.
    """
    mask = packed.loss_mask
    own = mask & (packed.token_versions == own_version) if own_version is not None else np.zeros_like(mask)
    if caches_kept:
        own &= _of_first_versions(packed)
    reported, has_report = _lay_out_reports(rows, packed)
    from_report = has_report if source == "reported" else np.zeros_like(mask)
    audited = _audited(rows, packed, from_report & ~own, step, audited_rollouts)
    recomputed = (mask & ~own & ~from_report) | audited
    return BehaviourPlan(reported, has_report, from_report, own, recomputed)


def _of_first_versions(packed: PackedBatch) -> Array:
    """Return the trained tokens, bool [rows, time], of the first version that generated any of their rollout."""
    result = np.zeros_like(packed.loss_mask)
    for place in packed.places:
        versions, trained = packed.token_versions[place], packed.loss_mask[place]
        if trained.any():
            result[place] = trained & (versions == versions[trained][0])
    return result


def _lay_out_reports(rows: Sequence[TrainingRow], packed: PackedBatch) -> tuple[Array, Array]:
    """Return the reported log-probabilities, f32 [rows, time], and which trained tokens have one, bool [rows, time]."""
    values, present = np.zeros(packed.tokens.shape, np.float32), np.zeros(packed.tokens.shape, bool)
    for row, (line, place) in zip(rows, packed.places, strict=True):
        for segment, span in row.spans(place.start):
            if segment.reported_logprobs:
                values[line, span] = np.clip(segment.reported_logprobs, LOWEST, 0.0)
                present[line, span] = True
    return values, present & packed.loss_mask


def _audited(rows: Sequence[TrainingRow], packed: PackedBatch, candidates: Array, step: int, rollouts: int) -> Array:
    """Return the tokens to audit, bool [rows, time]: those candidates of a few rollouts that one version generated.

    One version, because each version that is recomputed is copied to the devices. Rollouts are chosen by a hash of step
    and rollout id, which repeats in a replay and which a peer does not know while it generates.
    """
    order = sorted(range(len(rows)), key=lambda index: zlib.crc32(f"{step}/{rows[index].rollout_id}".encode()))
    having = [index for index in order if candidates[packed.places[index]].any()]
    result = np.zeros_like(candidates)
    if not having or not rollouts:
        return result
    first = packed.places[having[0]]
    version = packed.token_versions[first][candidates[first]][0]
    made = candidates & (packed.token_versions == version)
    for index in [index for index in having if made[packed.places[index]].any()][:rollouts]:
        result[packed.places[index]] = made[packed.places[index]]
    return result
