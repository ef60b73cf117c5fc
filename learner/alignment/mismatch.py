"""Measure how far reported log-probabilities are from those recomputed for the same tokens and version.

The difference is zero up to rounding if an engine computes what the learner computes. An engine with another precision,
stale or wrong weights, or another temperature shows up here, peer by peer. By default reported values are evidence
only; with ``learner.behaviour = "reported"`` they enter the loss, and those of audited rollouts are compared here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from learner.alignment.sampling_check import PEER_LENGTH_MAX
from learner.config import MismatchConfig
from learner.training.packing import PackedBatch, TrainingRow
from rollcast.wire.ids import PeerId

# DAPO's clip, independent of the run's objective, so that figures of different runs can be compared.
CLIP = (0.8, 1.28)
# Differences are clipped here, in nats: a peer may report any number, and one of them must not hide all others.
DIFFERENCE_MAX = 20.0
PEERS_MAX = 16  # peers with a figure of their own in a report
PEER_KEY = "kl_k3:"  # prefix of a figure's name, before a peer's id


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The mismatch over the tokens that were reported with a log-probability.

    tokens: how many there are.
    kl_k3: estimator k3 of the KL divergence, the mean of ratio - 1 - log ratio, in nats; ratio is p learner / p engine.
    ratio_mean: mean of the ratio.
    outside_share: share of the tokens whose ratio lies outside CLIP.
    """

    tokens: int
    kl_k3: float
    ratio_mean: float
    outside_share: float

    def alarms(self, config: MismatchConfig) -> bool:
        """Return whether any figure is beyond its configured threshold."""
        return (
            self.kl_k3 > config.kl_k3_max
            or abs(self.ratio_mean - 1.0) > config.ratio_mean_off_max
            or self.outside_share > config.outside_share_max
        )


def compare(
    rows: Sequence[TrainingRow],
    packed: PackedBatch,
    behaviour: np.ndarray[Any, Any],
    scored: np.ndarray[Any, Any] | None = None,
) -> dict[PeerId, Mismatch]:
    """Compare reported with recomputed log-probabilities and return the mismatch by peer.

    Peers without a reported token that was recomputed are left out.

    Args:
        behaviour: f32 [rows, time], recomputed log-probabilities in the layout of ``packed``.
        scored: bool [rows, time], the tokens that were recomputed; None: all that are trained on.
    """
    compared = packed.loss_mask if scored is None else scored
    differences: dict[PeerId, list[np.ndarray[Any, Any]]] = {}
    for row, (line, place) in zip(rows, packed.places, strict=True):
        for segment, span in row.spans(place.start):
            if segment.reported_logprobs:
                reported = np.array(segment.reported_logprobs, np.float64)
                found = behaviour[line, span].astype(np.float64) - reported
                differences.setdefault(segment.peer_id, []).append(found[compared[line, span]])
    joined = {peer: np.concatenate(parts) for peer, parts in differences.items()}
    return {peer: _mismatch(found) for peer, found in joined.items() if found.size}


def figures(
    by_peer: Mapping[PeerId, Mismatch], *, tokens: int, reported: int, config: MismatchConfig
) -> dict[str, float]:
    """Return a step's figures; empty if no reported log-probability was compared.

    Args:
        tokens: the batch's trained tokens.
        reported: how many of them were reported with a log-probability.
    """
    compared = sum(one.tokens for one in by_peer.values())
    if not compared:
        return {}

    def mean(values: Sequence[float]) -> float:
        weights = [one.tokens for one in by_peer.values()]
        return sum(value * weight for value, weight in zip(values, weights, strict=True)) / compared

    whole = Mismatch(
        compared,
        mean([one.kl_k3 for one in by_peer.values()]),
        mean([one.ratio_mean for one in by_peer.values()]),
        mean([one.outside_share for one in by_peer.values()]),
    )
    named = [peer for peer in by_peer if len(peer) <= PEER_LENGTH_MAX]
    worst = sorted(named, key=lambda peer: -by_peer[peer].kl_k3)[:PEERS_MAX]
    return {
        "mismatch_kl_k3": whole.kl_k3,
        "mismatch_ratio_mean": whole.ratio_mean,
        "mismatch_outside_share": whole.outside_share,
        "mismatch_reported_share": reported / tokens,
        "mismatch_compared_share": compared / tokens,
        "mismatch_peers_alarming": float(sum(one.alarms(config) for one in by_peer.values())),
        **{f"{PEER_KEY}{peer}": by_peer[peer].kl_k3 for peer in worst},
    }


def _mismatch(differences: np.ndarray[Any, Any]) -> Mismatch:
    """Compute the mismatch from log p learner - log p engine; NaN and infinities count as DIFFERENCE_MAX."""
    finite = np.nan_to_num(differences, nan=DIFFERENCE_MAX, posinf=DIFFERENCE_MAX, neginf=-DIFFERENCE_MAX)
    cut = np.clip(finite, -DIFFERENCE_MAX, DIFFERENCE_MAX)
    ratios = np.exp(cut)
    outside = (ratios < CLIP[0]) | (ratios > CLIP[1])
    return Mismatch(len(cut), float(np.mean(ratios - 1.0 - cut)), float(np.mean(ratios)), float(np.mean(outside)))
