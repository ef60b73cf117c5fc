"""Track where a resumed learner enters a new epoch, and how long it repeats recorded batches. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The run stopped after ``step_from`` learner steps, and continued at ``step`` in this epoch."""

    epoch: int
    step_from: int
    step: int


class Replay:
    """The run's past, as the coordinator reported it when the session opened.

    Args:
        epoch: epoch of the state that was resumed from.
        starts: every epoch that was ever opened.
        recorded_batches: number of recorded batches; earlier steps are repeated with them.
    """

    def __init__(self, epoch: int, starts: Sequence[EpochStart], recorded_batches: int) -> None:
        by_epoch = {start.epoch: start for start in starts}
        #: First version of the epoch in which the learner resumed.
        self.epoch_starts_at = by_epoch[epoch].step if epoch in by_epoch else 0
        self._ahead = sorted((start for start in starts if start.epoch > epoch), key=lambda start: start.epoch)
        self._recorded = recorded_batches
        self._over = False

    def jump(self, step: int) -> EpochStart | None:
        """Return the epoch that began when the run was at ``step``, once; None: none did. Call it before each step."""
        if self._ahead and self._ahead[0].step_from <= step:
            return self._ahead.pop(0)
        return None

    @property
    def epoch_ahead(self) -> bool:
        """Whether another epoch has begun since; then nothing more is announced in the present one.

        Such versions are missing where a run was restored from a backup: its last steps are repeated from recorded
        batches, and the versions that followed from them were announced after the backup, or never.
        """
        return bool(self._ahead)

    def extend(self, recorded_batches: int) -> None:
        """Repeat more batches, which were recorded meanwhile."""
        self._recorded, self._over = recorded_batches, False

    def ends(self, step: int) -> bool:
        """Return whether all recorded batches have been repeated; True only once."""
        if self._over or step < self._recorded:
            return False
        self._over = True
        return True
