"""Judge rollouts by their tokens' margins: whether each token was sampled from the claimed weights with its seed.

The margin of a token is max over v of (logit_v / temperature + g_v) minus that of the token, where g is the noise of
the seed (rollcast.policy.logits). An honest sampler's margin is 0, except where its rounding and the learner's disagree
about the two highest values. So a bound above what rounding reaches separates honest samplers from all others: from
another temperature, other seeds, other weights. It depends on how both compute; BOUNDS_NATS has what was measured.

A rollout with a token beyond its bound has weight 0 in the step. What each peer's tokens gave is reported to the
coordinator, which decides about the peer (coordinator.core.audit). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from learner.config import AuditConfig
from learner.training.packing import PackedBatch, TrainingRow
from rollcast.policy.config import ModelConfig
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

# (sampler, dtype of the values between layers) -> bound of an honest sampler's margins, in nats, with the learner on a
# CPU. In float32 nothing above 0 was ever measured. In bfloat16 margins grow with the logits, which differ from model
# to model: the bound is several times what `python -m bench adversary --precision bfloat16` finds (docs/trust.md).
BOUNDS_NATS: dict[tuple[str, str], float] = {
    ("jax-cpu", "float32"): 1e-3,
    ("jax-cpu", "bfloat16"): 0.5,
    ("vllm-cpu", "float32"): 1e-3,
    ("vllm-cpu", "bfloat16"): 0.5,
}
# Everything else, such as GPUs, is not measured: far above rounding in 16 bits, and below most margins of tokens that
# were not sampled from their seed at all.
WIDEST_NATS = 2.0
# Engines that do not sample from the seeds of leases.
UNSEEDED = frozenset({"sglang"})
# A token is far beyond its bound at this multiple of it.
FAR = 4.0

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the tokens of one peer in one rollout gave."""

    rollout_id: int
    peer_id: PeerId
    sampler: str
    bound_nats: float
    tokens: int
    beyond: int
    far: int
    worst_nats: float
    worst_at: int  # index of that token in the completion

    def to_pb(self, *, trained: bool) -> pb.RolloutAudit:
        """Return the finding as a message; ``trained``: whether its rollout was trained on."""
        return pb.RolloutAudit(
            rollout_id=self.rollout_id,
            peer_id=self.peer_id,
            tokens=self.tokens,
            beyond=self.beyond,
            far=self.far,
            worst_nats=self.worst_nats,
            bound_nats=self.bound_nats,
            worst_at=self.worst_at,
            sampler=self.sampler,
            trained=trained,
        )


def bounds_for(model: ModelConfig, platform: str, config: AuditConfig) -> Callable[[str], float]:
    """Return the function from a sampler's name to the bound of its margins, in nats.

    It is infinite where margins prove nothing: in fp8, whose rounding depends on the batch, and with experts, whose
    choice flips with rounding. Tokens of samplers without seeds are never within the bound unless they are allowed.

    Args:
        platform: the kind of the learner's devices, as jax names it.
    """
    exact = config.enabled and model.precision in ("float32", "bfloat16") and not model.experts

    def bound(sampler: str) -> float:
        if not exact:
            return math.inf
        if sampler in UNSEEDED:
            return math.inf if config.allow_unseeded else -math.inf
        if sampler in config.bounds_nats:
            return config.bounds_nats[sampler]
        known = BOUNDS_NATS.get((sampler, model.carrier_dtype)) if platform == "cpu" else None
        return WIDEST_NATS if known is None else known

    return bound


def lay_out_bounds(rows: Sequence[TrainingRow], packed: PackedBatch, bound: Callable[[str], float]) -> Array:
    """Return each token's bound, f32 [rows, time] in nats; infinite for tokens that are not trained on."""
    result = np.full(packed.tokens.shape, np.inf, np.float32)
    for row, (line, place) in zip(rows, packed.places, strict=True):
        for segment, span in row.spans(place.start):
            result[line, span] = bound(segment.sampler)
    return np.where(packed.loss_mask, result, np.float32(np.inf))


def without_beyond(packed: PackedBatch, margins: Array, bounds: Array, scored: Array) -> PackedBatch:
    """Return the batch with weight 0 for rollouts that have a scored token beyond its bound.

    Arrays are [rows, time]. If there is none the batch itself is returned.
    """
    beyond = scored & (margins > bounds)
    if not beyond.any():
        return packed
    weights = packed.weights.copy()
    for place in packed.places:
        if beyond[place].any():
            weights[place] = 0.0
    return replace(packed, weights=weights)


def findings(rows: Sequence[TrainingRow], packed: PackedBatch, margins: Array, bounds: Array) -> list[Finding]:
    """Return what each peer's tokens gave, rollout by rollout, for all tokens with a finite bound and a known margin.

    Where margins prove nothing a finding has no tokens: there is nothing that the peer's probation could wait for.

    Args:
        margins: f32 [rows, time], NaN for tokens that the learner did not score.
        bounds: f32 [rows, time], see lay_out_bounds.
    """
    found = []
    for row, (line, place) in zip(rows, packed.places, strict=True):
        first = place.start + len(row.prompt_token_ids)
        generated = (segment for segment in row.segments if segment.is_generated)
        peers = dict.fromkeys((segment.peer_id, segment.sampler) for segment in generated)
        for peer_id, sampler in peers:
            columns = np.concatenate(
                [
                    np.arange(span.start, span.stop)
                    for segment, span in row.spans(place.start)
                    if (segment.peer_id, segment.sampler) == (peer_id, sampler)
                ]
            )
            known = columns[np.isfinite(bounds[line, columns]) & np.isfinite(margins[line, columns])]
            if known.size:
                found.append(
                    _finding(row, peer_id, sampler, margins[line, known], bounds[line, known[0]], known - first)
                )
            elif np.isposinf(bounds[line, columns]).all():
                found.append(Finding(row.rollout_id, peer_id, sampler, 0.0, 0, 0, 0, 0.0, 0))
    return found


def _finding(row: TrainingRow, peer_id: PeerId, sampler: str, margins: Array, bound: float, indices: Array) -> Finding:
    worst = int(np.argmax(margins))
    return Finding(
        rollout_id=row.rollout_id,
        peer_id=peer_id,
        sampler=sampler,
        bound_nats=float(bound),
        tokens=len(margins),
        beyond=int(np.count_nonzero(margins > bound)),
        far=int(np.count_nonzero(margins > FAR * bound)),
        worst_nats=float(margins[worst]),
        worst_at=int(indices[worst]),
    )


def figures(found: Sequence[Finding], packed: PackedBatch, bounds: Array) -> dict[str, float]:
    """Return a step's figures for people."""
    trained = max(1, int(np.count_nonzero(packed.loss_mask)))
    tokens = sum(one.tokens for one in found)
    return {
        "audit_judged_share": tokens / trained,
        "audit_beyond_share": sum(one.beyond for one in found) / max(1, tokens),
        "audit_margin_max": max((one.worst_nats for one in found), default=0.0),
        "audit_left_out": float(len({one.rollout_id for one in found if one.beyond})),
        "audit_refused_share": int(np.count_nonzero(np.isneginf(bounds))) / trained,
    }
