"""How old a rollout may be, and the pacing that keeps work from being done in vain.

The age of a rollout is the learner step at which its batch is formed minus the version of its oldest segment; it may
not exceed the staleness limit S. Pacing is AReaL's admission rule (arXiv 2505.24298, section 5.1) counted in groups:
work is given out only if it will still be young enough when its turn comes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rollcast.wire.ids import Step, Version


def turn_of(next_step: Step, groups_ahead: int, groups_per_step: int) -> Step:
    """Step of the batch that a group will enter when ``groups_ahead`` open or ready groups go before it.

    ``next_step`` is the step of the next batch to be formed.
    """
    return Step(next_step + groups_ahead // groups_per_step)


def age_at(step: Step, oldest_version: Version) -> int:
    """Age in learner steps; negative never happens for a published version."""
    return step - oldest_version


def oldest_useful_version(step: Step, staleness_limit: int) -> Version:
    """Oldest version whose rollouts may enter the batch of this step."""
    return Version(max(0, step - staleness_limit))


@dataclass(slots=True)
class StalenessFigures:
    """Ages of the rollouts that were trained."""

    histogram: Counter[int] = field(default_factory=Counter)
    gate_broken_by: int = 0  # I3: steps by which the oldest exceeded the gate of its batch; must stay 0

    def trained(self, age: int, age_max: int) -> None:
        """A rollout of this age was trained, where ``age_max`` was the gate."""
        self.histogram[age] += 1
        self.gate_broken_by = max(self.gate_broken_by, age - age_max)

    @property
    def max_trained(self) -> int | None:
        """Age of the oldest rollout trained; None before the first batch."""
        return max(self.histogram, default=None)
