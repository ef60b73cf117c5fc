"""The limits in force: how old a rollout may be, what is done about those that come late, and how often to publish.

S, kappa and the rate at which work is given out are separate. S limits what is begun (admission) and, together with the
policy for what is late anyway, what is trained (the hard gate at batch formation):

    drop      what is older than S when its batch is formed is dropped
    wait      the same, but a batch is held back for a while for a group under way that would be too old for the next
    correct   up to ``late_steps_max`` steps more are trained on as well; importance ratios correct for them
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

LatePolicy = Literal["drop", "wait", "correct"]


@dataclass(frozen=True, slots=True)
class StalenessRules:
    """What an operator sets. Steps are learner steps, durations seconds.

    ``publish_every_steps`` is kappa; 0 stands for ``auto``: as often as versions can reach everybody.
    """

    limit: int
    publish_every_steps: int
    late_policy: LatePolicy = "drop"
    late_wait_s: float = 0.0
    late_steps_max: int = 0


class RulesInForce:
    """The rules as they hold now, with what is measured to follow them; the one place that changes at run time."""

    def __init__(self, rules: StalenessRules) -> None:
        self.rules = rules
        self.limit_most = rules.limit  # that ever holds: versions so old are kept by everybody
        self._auto_steps = 1

    @property
    def limit(self) -> int:
        """S: the age, in learner steps, that work which is begun may reach."""
        return self.rules.limit

    @property
    def age_max(self) -> int:
        """The hard gate: the age, in learner steps, up to which a rollout is trained."""
        return self.limit + (self.rules.late_steps_max if self.rules.late_policy == "correct" else 0)

    @property
    def age_max_ever(self) -> int:
        """The largest that the gate may become again: what is kept for training is kept for so long."""
        return self.age_max + self.limit_most - self.limit

    def change_limit(self, limit: int) -> None:
        """S from now on.

        Raises:
            ValueError: above the one at the start, for which nobody keeps versions, or too small for kappa.
        """
        if not self.limit_least <= limit <= self.limit_most:
            raise ValueError(f"S must be {self.limit_least} to {self.limit_most}")
        self.rules = replace(self.rules, limit=limit)

    def change_period(self, publish_every_steps: int) -> None:
        """kappa from now on; 0: auto.

        Raises:
            ValueError: the newest version would be older than S at times.
        """
        if not 0 <= publish_every_steps <= self.limit + 1:
            raise ValueError(f"kappa must be 0 to {self.limit + 1}")
        self.rules = replace(self.rules, publish_every_steps=publish_every_steps)

    @property
    def limit_least(self) -> int:
        """With a smaller S the newest version would be too old at times."""
        return max(0, self.rules.publish_every_steps - 1)

    @property
    def publish_every_steps(self) -> int:
        """kappa now."""
        return min(self.rules.publish_every_steps or self._auto_steps, self.limit + 1)

    @property
    def follows_broadcasts(self) -> bool:
        """Whether kappa is measured rather than set."""
        return not self.rules.publish_every_steps

    def follow(self, *, t_bcast_p95_s: float | None, t_gen_p90_s: float | None, step_period_s: float | None) -> None:
        """Let kappa follow what broadcasts and learner steps take, if it is set so; None: not measured yet.

        A version is published no sooner than the one before it is everywhere, but never so seldom that S would be too
        small for it (capacity.model.staleness.staleness_needed), as long as there is a choice.
        """
        if t_bcast_p95_s is not None and step_period_s:
            room = self.limit - math.ceil((t_bcast_p95_s + (t_gen_p90_s or 0.0)) / step_period_s)
            self._auto_steps = max(1, min(math.ceil(t_bcast_p95_s / step_period_s), room))


@dataclass(slots=True)
class LateCounts:
    """What the policies did. ``corrected`` counts rollouts, the others batches."""

    corrected: int = 0  # trained though older than S
    waits: int = 0  # batches held back for a group that would have been too old for the next one
    waits_in_vain: int = 0  # of those: formed without it after all
    waited_s: float = 0.0


class LateWait:
    """How long the batch that is wanted has been held back, and until when it may be."""

    def __init__(self, counts: LateCounts) -> None:
        self._counts = counts
        self._since: float | None = None

    @property
    def running(self) -> bool:
        return self._since is not None

    def hold(self, now: float, wait_max_s: float, *, for_somebody: bool) -> bool:
        """Whether to hold the batch back still; called when it could be formed."""
        if not for_somebody:
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
        """No batch is wanted any more."""
        self._end(now, in_vain=False)

    def _end(self, now: float, *, in_vain: bool) -> None:
        if self._since is not None:
            self._counts.waited_s += now - self._since
            self._counts.waits_in_vain += in_vain
            self._since = None
