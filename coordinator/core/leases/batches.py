"""Choose the groups of each step's batch, which is recorded durably before it is served, and never formed twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.core.leases.groups import Group
from rollcast.wire.ids import RolloutId, Step

_USEFUL_WEIGHT = 0.05  # weight of the newest group in the moving share
_USEFUL_SHARE_LEAST = 0.2  # least share of useful groups that is assumed, which bounds how much more work is begun


@dataclass(frozen=True, slots=True)
class FormedBatch:
    """The groups of one step, not yet recorded in the ledger. ``age_max`` was the hard gate when they were chosen."""

    step: Step
    groups: tuple[Group, ...]
    age_max: int

    @property
    def rollout_ids(self) -> tuple[RolloutId, ...]:
        """Ids of the batch's rollouts, by group, then by sample index."""
        return tuple(filling.rollout_id for group in self.groups for filling in group.fillings())

    @property
    def ages(self) -> list[int]:
        """Ages of the batch's rollouts, in learner steps."""
        return [self.step - filling.oldest_version for group in self.groups for filling in group.fillings()]


class Batches:
    """Keeps the position in the sequence of batches: those of steps 0 .. recorded - 1 are durable."""

    def __init__(self, *, groups_per_step: int, recorded: int = 0) -> None:
        self._groups_per_step = groups_per_step
        self.recorded = recorded
        self.next_step = Step(recorded)  # step of the next batch to be formed
        self.wanted: Step | None = None  # step of the batch for which the learner waits
        self.recording: FormedBatch | None = None

    def is_recorded(self, step: Step) -> bool:
        return step < self.recorded

    def choose(self, ready: Sequence[Group], age_max: int) -> tuple[Group, ...]:
        """Return the groups for the wanted batch: first those that would be too old for the next one, then the oldest.

        The result is empty if there are not enough. This is the hard gate (I3): every rollout's age is checked again
        here, whatever was predicted when its lease was issued.
        """
        if self.wanted is None or self.recording is not None:
            return ()
        step = self.wanted
        fresh = [group for group in ready if group.ready and not too_old(group, step, age_max)]
        if len(fresh) < self._groups_per_step:
            return ()
        urgent_first = sorted(fresh, key=lambda group: not too_old(group, Step(step + 1), age_max))
        return tuple(sorted(urgent_first[: self._groups_per_step], key=lambda group: group.group_id))

    def form(self, groups: tuple[Group, ...], age_max: int) -> FormedBatch:
        """Form the wanted batch of these groups, which ``choose`` returned."""
        if self.wanted is None:
            raise ValueError("no batch is wanted")
        self.recording = FormedBatch(self.wanted, groups, age_max)
        self.next_step = Step(self.wanted + 1)
        self.wanted = None
        return self.recording

    def record(self) -> FormedBatch:
        """Count the formed batch as recorded, and return it; it is durable now."""
        if self.recording is None:
            raise ValueError("no batch is being recorded")
        batch, self.recording = self.recording, None
        self.recorded = batch.step + 1
        return batch

    def skip_to(self, step: Step) -> None:
        """Count the batches before this step as recorded: an epoch was opened, and they are empty."""
        if self.recording is not None or step < self.recorded:
            raise ValueError(f"cannot skip to step {step}: batch {self.next_step} is next")
        self.recorded = self.next_step = step
        if self.wanted is not None and self.wanted < step:
            self.wanted = None

    def validate(self) -> None:
        """Raise AssertionError when I2 or I3 is broken."""
        assert self.next_step == self.recorded + (self.recording is not None), "the next step"
        if self.recording is None:
            return
        assert self.recording.step == self.recorded, "batches are recorded in order"
        assert len(set(self.recording.rollout_ids)) == len(self.recording.rollout_ids), "I2: a rollout twice"
        assert max(self.recording.ages) <= self.recording.age_max, "I3: a rollout is too old"
        assert all(group.ready for group in self.recording.groups), "an unscored rollout"


def too_old(group: Group, step: Step, age_max: int) -> bool:
    """Whether a rollout of this group is too old for the batch of this step (I3)."""
    oldest = group.oldest_version
    return oldest is not None and step - oldest > age_max


class Usefulness:
    """Keeps the counts of online selection (see decisions/rollouts.py); a restarted coordinator starts from 0."""

    def __init__(self) -> None:
        self.dropped = 0  # groups without advantage since the last batch
        self.share = 1.0  # moving share of useful groups
        self.groups_per_useful_one = 1.0
        """Groups that must be generated for each one that is trained on."""

    def seen(self, *, useful: bool) -> None:
        """Count a group that was scored."""
        self.share += _USEFUL_WEIGHT * (float(useful) - self.share)
        self.groups_per_useful_one = 1.0 / max(_USEFUL_SHARE_LEAST, self.share)

    def batch_recorded(self) -> None:
        """Count the drops of the next batch from 0: each batch has its own bound."""
        self.dropped = 0
