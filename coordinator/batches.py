"""Which groups make the batch of a step. A batch is recorded durably before it is served, and never formed twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.leases import Group
from coordinator.staleness import age_at
from rollcast.wire.ids import RolloutId, Step


@dataclass(frozen=True, slots=True)
class FormedBatch:
    """Groups of one step, on their way to the ledger."""

    step: Step
    groups: tuple[Group, ...]

    @property
    def rollout_ids(self) -> tuple[RolloutId, ...]:
        """By group, then by sample index."""
        return tuple(filling.rollout_id for group in self.groups for filling in group.fillings())

    @property
    def ages(self) -> list[int]:
        return [age_at(self.step, filling.oldest_version) for group in self.groups for filling in group.fillings()]


class Batches:
    """Position in the sequence of batches: ``recorded`` batches of steps 0 .. recorded - 1 are durable."""

    def __init__(self, *, groups_per_step: int, staleness_limit: int, recorded: int = 0) -> None:
        self._groups_per_step = groups_per_step
        self._staleness_limit = staleness_limit
        self.recorded = recorded
        self.wanted: Step | None = None  # the learner waits for this one
        self.recording: FormedBatch | None = None

    @property
    def next_step(self) -> Step:
        """Step of the next batch to be formed."""
        return Step(self.recorded + (self.recording is not None))

    def is_recorded(self, step: Step) -> bool:
        return step < self.recorded

    def too_old(self, group: Group, step: Step) -> bool:
        """Whether a rollout of this group is older than S in the batch of this step (I3)."""
        oldest = group.oldest_version
        return oldest is not None and age_at(step, oldest) > self._staleness_limit

    def form(self, ready: Sequence[Group]) -> FormedBatch | None:
        """The wanted batch from the oldest ready groups, if there are enough.

        This is the hard gate: every rollout's age is looked at again here, whatever was believed before.
        """
        if self.wanted is None or self.recording is not None:
            return None
        step = self.wanted
        fresh = [group for group in ready if group.ready and not self.too_old(group, step)]
        if len(fresh) < self._groups_per_step:
            return None
        self.recording = FormedBatch(step, tuple(fresh[: self._groups_per_step]))
        self.wanted = None
        return self.recording

    def record(self) -> FormedBatch:
        """The formed batch is durable."""
        if self.recording is None:
            raise ValueError("no batch is being recorded")
        batch, self.recording = self.recording, None
        self.recorded = batch.step + 1
        return batch

    def validate(self) -> None:
        """Raise AssertionError when I2 or I3 is broken."""
        if self.recording is None:
            return
        assert self.recording.step == self.recorded, "batches are recorded in order"
        assert len(set(self.recording.rollout_ids)) == len(self.recording.rollout_ids), "I2: a rollout twice"
        assert max(self.recording.ages) <= self._staleness_limit, "I3: a rollout is too old"
        assert all(group.ready for group in self.recording.groups), "an unscored rollout"
