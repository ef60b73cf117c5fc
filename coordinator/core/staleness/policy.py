"""Keep the limits in force: how old a rollout may be, what is done about late rollouts, and how often to publish.

The age of a rollout is the learner step of its batch minus the version of its oldest segment.

S, kappa and the rate at which work is given out are separate. S limits what is begun (admission) and, together with the
policy for what is late anyway, what is trained (the hard gate at batch formation):

    drop      a rollout older than S when its batch is formed is dropped
    wait      the same, but a batch is held back for a while for a group in flight that would be too old for the next
    correct   up to ``late_steps_max`` steps more are trained on as well; importance ratios correct for them

S may be raised during the run. The learner has discarded what S did not need until then, so the gate grows by one with
each step from its value before, until it has reached the new one: no batch needs a version that is gone.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal

from coordinator.core.events.versions_kept import VersionsKept
from rollcast.wire.ids import Version

LatePolicy = Literal["drop", "wait", "correct"]
PacingRule = Literal["predict", "count", "none"]


@dataclass(frozen=True, slots=True)
class StalenessRules:
    """Staleness settings of the operator. Steps are learner steps, durations are in seconds.

    ``publish_every_steps`` is kappa; 0 stands for ``auto``: as often as versions can reach all peers.
    """

    limit: int
    publish_every_steps: int
    late_policy: LatePolicy = "drop"
    late_wait_s: float = 0.0
    late_steps_max: int = 0

    @property
    def age_max(self) -> int:
        """Return the age, in learner steps, up to which rollouts may be trained with these rules."""
        return self.limit + (self.late_steps_max if self.late_policy == "correct" else 0)


class RulesInForce:
    """The rules in force, which an operator may change during the run, and kappa where it follows measurements.

    Args:
        kept: what an earlier coordinator of the run had the learner keep; None at the run's first start.
        at_step: the step of the next batch to be formed.
    """

    def __init__(self, rules: StalenessRules, kept: VersionsKept | None = None, at_step: int = 0) -> None:
        self.kept = kept or VersionsKept(rules.age_max)
        self._auto_steps = 1
        self._set(rules, at_step)

    def _set(self, rules: StalenessRules, at_step: int) -> None:
        self.rules = rules
        self.limit = rules.limit
        """S, the age in learner steps that newly begun work may reach."""
        self.age_max = rules.age_max
        """The age, in learner steps, up to which a rollout is trained once all such versions are kept; see gate."""
        if rules.age_max > self.kept.age_max:
            oldest = max(self.kept.oldest, at_step - self.kept.age_max)
            self.kept = VersionsKept(rules.age_max, Version(oldest))
        self._set_period()

    def _set_period(self) -> None:
        self.publish_every_steps = min(self.rules.publish_every_steps or self._auto_steps, self.limit + 1)
        """kappa now, in learner steps."""

    def gate(self, step: int) -> int:
        """Return the hard gate of a step's batch: the age, in learner steps, up to which a rollout is trained."""
        return min(self.age_max, step - self.kept.oldest)

    def change_limit(self, limit: int, at_step: int) -> None:
        """Set S from now on, where the next batch to be formed is that of ``at_step``.

        Raises:
            ValueError: S is too small for kappa.
        """
        if limit < self.limit_least:
            raise ValueError(f"S must be {self.limit_least} or more")
        self._set(replace(self.rules, limit=limit), at_step)

    def change_period(self, publish_every_steps: int) -> None:
        """Set kappa from now on; 0 for auto.

        Raises:
            ValueError: the newest version would be older than S at times.
        """
        if not 0 <= publish_every_steps <= self.limit + 1:
            raise ValueError(f"kappa must be 0 to {self.limit + 1}")
        self.rules = replace(self.rules, publish_every_steps=publish_every_steps)
        self._set_period()

    @property
    def limit_least(self) -> int:
        """The smallest S allowed: with a smaller one the newest version would be too old at times."""
        return max(0, self.rules.publish_every_steps - 1)

    @property
    def follows_broadcasts(self) -> bool:
        """Whether kappa is measured rather than set."""
        return not self.rules.publish_every_steps

    def follow(self, *, t_bcast_p95_s: float | None, t_gen_p90_s: float | None, step_period_s: float | None) -> None:
        """Set kappa, if it is auto, from the measured durations of broadcasts and learner steps; None if not measured.

        A version is published no sooner than all peers have the previous one, but never so seldom that S would be too
        small for it (capacity.model.staleness.staleness_needed), as long as there is a choice.
        """
        if t_bcast_p95_s is not None and step_period_s:
            room = self.limit - math.ceil((t_bcast_p95_s + (t_gen_p90_s or 0.0)) / step_period_s)
            self._auto_steps = max(1, min(math.ceil(t_bcast_p95_s / step_period_s), room))
            self._set_period()


@dataclass(slots=True)
class LateCounts:
    """Counts of what the late policies did. ``corrected`` counts rollouts, the others batches."""

    corrected: int = 0  # trained though older than S
    waits: int = 0  # batches held back for a group that would have been too old for the next one
    waits_in_vain: int = 0  # of those: formed without it after all
    waited_s: float = 0.0


@dataclass(slots=True)
class StalenessFigures:
    """Ages of the rollouts that were trained, in learner steps."""

    histogram: Counter[int] = field(default_factory=Counter)
    gate_broken_by: int = 0  # I3: steps by which the oldest exceeded the gate of its batch; must stay 0

    def trained(self, age: int, age_max: int) -> None:
        """Count a rollout of this age that was trained, where ``age_max`` was the gate."""
        self.histogram[age] += 1
        self.gate_broken_by = max(self.gate_broken_by, age - age_max)

    @property
    def max_trained(self) -> int | None:
        """Age of the oldest rollout trained; None before the first batch."""
        return max(self.histogram, default=None)


class LateWait:
    """Measures for how long the wanted batch has been held back for a late group."""

    def __init__(self, counts: LateCounts) -> None:
        self._counts = counts
        self._since: float | None = None

    @property
    def running(self) -> bool:
        """Whether a batch is held back now."""
        return self._since is not None

    def hold(self, now: float, wait_max_s: float, *, for_late_group: bool) -> bool:
        """Return whether to hold the batch back (still); called when it could be formed.

        ``for_late_group``: whether a group that is not ready would be too old for the next batch.
        """
        if not for_late_group:
            self._end(now, in_vain=False)
            return False
        if self._since is None:
            self._since = now
            self._counts.waits += 1
        if now - self._since < wait_max_s:
            return True
        self._end(now, in_vain=True)
        return False

    def cancel(self, now: float) -> None:
        """End the wait: no batch is wanted any more."""
        self._end(now, in_vain=False)

    def _end(self, now: float, *, in_vain: bool) -> None:
        if self._since is not None:
            self._counts.waited_s += now - self._since
            self._counts.waits_in_vain += in_vain
            self._since = None
