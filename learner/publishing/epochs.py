"""Where a resumed learner must jump, and until when it trains again on batches of the life before. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The run left off after ``step_from`` learner steps and went on at ``step``, in this epoch."""

    epoch: int
    step_from: int
    step: int


class Replay:
    """The run's past, as the coordinator said it when the session was opened.

    Args:
        epoch: that of the state that we resumed from.
        starts: every epoch that was ever opened.
        recorded_batches: batches of steps below are trained on again.
    """

    def __init__(self, epoch: int, starts: Sequence[EpochStart], recorded_batches: int) -> None:
        by_epoch = {start.epoch: start for start in starts}
        #: First version of the epoch that we resumed in.
        self.epoch_starts_at = by_epoch[epoch].step if epoch in by_epoch else 0
        self._ahead = sorted((start for start in starts if start.epoch > epoch), key=lambda start: start.epoch)
        self._recorded = recorded_batches
        self._over = False

    def jump(self, step: int) -> EpochStart | None:
        """The epoch that began when the run was at ``step``, once; ask before each step."""
        if self.leaves_off(step):
            return self._ahead.pop(0)
        return None

    def leaves_off(self, step: int) -> bool:
        """Whether an epoch began when the run was at ``step``: nothing more is published in the one before."""
        return bool(self._ahead) and self._ahead[0].step_from <= step

    def extend(self, recorded_batches: int) -> None:
        """More batches were recorded meanwhile."""
        self._recorded, self._over = recorded_batches, False

    def ends(self, step: int) -> bool:
        """Whether nothing recorded is left to train on again; True once."""
        if self._over or step < self._recorded:
            return False
        self._over = True
        return True
