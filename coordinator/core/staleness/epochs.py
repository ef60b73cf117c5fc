"""Which epoch a version belongs to, and which versions are orphans.

When a resumed learner reaches another state than the one it had published, the run goes on in a new epoch, whose
versions are numbered above all before. So a number belongs to one epoch for ever, and the ages of rollouts, step minus
version, stay true. What was published after the newest state that both have in common is orphaned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.core.events.actions import RecordEpoch
from rollcast.wire.ids import Epoch, Step, Version
from rollcast.wire.rollouts import Segment


class EpochBook:
    """Epochs in order; the first one, 0, is not opened by anything."""

    def __init__(self, opened: Sequence[RecordEpoch] = ()) -> None:
        self.opened = list(opened)

    @property
    def current(self) -> Epoch:
        return self.opened[-1].epoch if self.opened else Epoch(0)

    @property
    def newest(self) -> RecordEpoch | None:
        """How the current epoch was opened; None for the first one."""
        return self.opened[-1] if self.opened else None

    def epoch_of(self, version: Version) -> Epoch:
        """The epoch in which this number is or will be published."""
        for one in reversed(self.opened):
            if version >= one.step_to:
                return one.epoch
        return Epoch(0)

    def is_orphan(self, version: Version) -> bool:
        """Whether this version, if it was published, does not count any more."""
        for one in self.opened:
            if (one.common_version is None or version > one.common_version) and version < one.step_to:
                return True
        return False

    def is_any_orphan(self, segments: Iterable[Segment]) -> bool:
        """Whether something here was made with an orphan."""
        return bool(self.opened) and any(self.is_orphan(one.version) for one in segments)

    def valid(self, epoch: Epoch, version: Version) -> bool:
        """Whether such a version may exist and count: its number is one of that epoch, and no orphan."""
        return self.epoch_of(version) == epoch and not self.is_orphan(version)

    def may_announce(self, epoch: Epoch, version: Version) -> bool:
        """Whether a version of this epoch may still be announced under this number."""
        return epoch == self.current == self.epoch_of(version)

    def after_empty(self, step: Step) -> Step:
        """Where a learner goes on that has completed ``step`` steps: past batches that are recorded as empty."""
        for one in self.opened:
            if one.step_from <= step < one.step_to:
                step = one.step_to
        return step

    def validate(self) -> None:
        """Raise AssertionError when epochs do not rise, or their steps run backwards."""
        for before, after in zip(self.opened, self.opened[1:], strict=False):
            assert before.epoch < after.epoch, "epochs rise"
            assert before.step_to <= after.step_from, "an epoch begins where the one before it has been"
        assert all(one.step_from <= one.step_to for one in self.opened), "an epoch goes forward"
