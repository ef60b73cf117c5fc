"""Describe staleness for people: limits in force, what was done about late rollouts, and what ages consist of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.core.decisions.state import CoreState
from coordinator.core.staleness.age_breakdown import PARTS, SECONDS_BOUNDS

STEPS_SHOWN = 64


@dataclass(frozen=True, slots=True)
class LateStatus:
    """Effects of the late policy: ``corrected`` counts rollouts trained beyond S, the rest batches held back.

    ``waits_in_vain`` counts waits after which the group was left out; ``waited_s`` is their total in seconds.
    """

    corrected: int
    waits: int
    waits_in_vain: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class SplitStatus:
    """Mean age of trained rollouts, in learner steps and seconds, and the mean seconds of its components.

    ``last`` covers the newest batch, and is None before the first one; ``total`` covers the whole run; ``steps`` has
    the newest steps. ``parts`` counts, since the coordinator started, the rollouts in which each component took at most
    each of ``bounds_s``, and has its sum in seconds.
    """

    last: dict[str, Any] | None
    total: dict[str, Any]
    steps: tuple[dict[str, Any], ...]
    bounds_s: tuple[float, ...]
    parts: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StalenessStatus:
    """Limits in learner steps. ``age_max`` is the hard gate: S, or more where late rollouts are corrected.

    ``gate_broken_by`` is 0, or else the steps by which a trained rollout exceeded the gate of its own batch. The oldest
    rollout of the run may be above ``age_max`` without that, if S was lowered.
    """

    limit: int
    age_max: int
    gate_broken_by: int
    late_policy: str
    publish_every_steps: int
    publish_auto: bool
    step_period_s: float | None
    late: LateStatus
    split: SplitStatus


def build_staleness_status(state: CoreState) -> StalenessStatus:
    """Build the status of staleness from the core's state."""
    rules, late = state.rules, state.late
    return StalenessStatus(
        limit=rules.limit,
        age_max=rules.age_max,
        gate_broken_by=state.staleness.gate_broken_by,
        late_policy=rules.rules.late_policy,
        publish_every_steps=rules.publish_every_steps,
        publish_auto=rules.follows_broadcasts,
        step_period_s=state.forecast.step_period_s,
        late=LateStatus(late.corrected, late.waits, late.waits_in_vain, late.waited_s),
        split=_split(state),
    )


def _split(state: CoreState) -> SplitStatus:
    ledger = state.ages
    parts = {part: ledger.parts[part] for part in PARTS}
    return SplitStatus(
        last=None if ledger.last is None else ledger.last.means(),
        total=ledger.total.means(),
        steps=tuple({"step": step, **split.means()} for step, split in ledger.newest_steps(STEPS_SHOWN)),
        bounds_s=SECONDS_BOUNDS,
        parts={part: {"at_most": one.at_most(), "sum_s": one.sum} for part, one in parts.items()},
    )
