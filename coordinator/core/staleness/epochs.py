"""Keep the epochs of a run, its orphaned versions, and the versions that were announced.

When a resumed learner reaches another state than the one it had published, the run continues in a new epoch, whose
versions are numbered above all before. So a number belongs to one epoch for ever, and the age of a rollout, step minus
version, stays true. Versions published after the newest state that both have in common are orphans.

Announced versions are those that a rollout may claim to be made with, and that an accusation may be about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coordinator.core.events.actions import RecordEpoch
from rollcast.wire.ids import Epoch, Step, Version
from rollcast.wire.rollouts import Segment


class EpochBook:
    """Keeps the epochs in order; epoch 0, the first one, has no record that opened it."""

    def __init__(self, opened: Sequence[RecordEpoch] = ()) -> None:
        self.opened = list(opened)
        self.current = self.opened[-1].epoch if self.opened else Epoch(0)

    def open(self, record: RecordEpoch) -> None:
        """Add the next epoch, which is the current one from now on."""
        self.opened.append(record)
        self.current = record.epoch

    @property
    def newest(self) -> RecordEpoch | None:
        """The record that opened the current epoch; None for the first one."""
        return self.opened[-1] if self.opened else None

    def epoch_of(self, version: Version) -> Epoch:
        """Return the epoch in which this number is or will be published."""
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
        """Whether any of these segments was generated with an orphan."""
        return bool(self.opened) and any(self.is_orphan(one.version) for one in segments if one.is_generated)

    def valid(self, epoch: Epoch, version: Version) -> bool:
        """Whether such a version may exist and count: its number is one of that epoch, and no orphan."""
        return self.epoch_of(version) == epoch and not self.is_orphan(version)

    def may_announce(self, epoch: Epoch, version: Version) -> bool:
        """Whether a version of this epoch may still be announced under this number."""
        return epoch == self.current == self.epoch_of(version)

    def after_empty(self, step: Step) -> Step:
        """Return where a learner with ``step`` completed steps continues: past batches recorded as empty."""
        for one in self.opened:
            if one.step_from <= step < one.step_to:
                step = one.step_to
        return step

    def validate(self) -> None:
        """Raise AssertionError if epochs do not rise, or their steps go backwards."""
        for before, after in zip(self.opened, self.opened[1:], strict=False):
            assert before.epoch < after.epoch, "epochs rise"
            assert before.step_to <= after.step_from, "an epoch begins at or after the end of the previous one"
        assert all(one.step_from <= one.step_to for one in self.opened), "an epoch goes forward"


NEWEST_KEPT = 8  # versions remembered however old they are: peers may still be receiving them


class AnnouncedVersions:
    """Announced versions that are no orphans, with their chunk counts; those too old for any batch are discarded."""

    def __init__(self, chunk_counts: Mapping[Version, int], epochs: EpochBook) -> None:
        self._epochs = epochs
        self._chunk_counts = dict(sorted(chunk_counts.items()))
        self._discarded_below = min(self._chunk_counts, default=Version(0))

    def __len__(self) -> int:
        return len(self._chunk_counts)

    def add(self, version: Version, chunk_count: int, *, oldest_useful: Version) -> None:
        """Add a version newer than all before. Discard those older than ``oldest_useful``, except the newest few."""
        self._chunk_counts[version] = chunk_count
        for old in list(self._chunk_counts)[:-NEWEST_KEPT]:
            if old >= oldest_useful:
                break
            del self._chunk_counts[old]
            self._discarded_below = Version(old + 1)

    def withdraw_orphans(self) -> None:
        """Discard the versions that do not count any more since an epoch was opened."""
        self._chunk_counts = {
            one: count for one, count in self._chunk_counts.items() if not self._epochs.is_orphan(one)
        }

    def is_published(self, epoch: Epoch, version: Version) -> bool:
        """Whether rollouts may be made with this version: it was announced in this epoch, and is no orphan."""
        return self._epochs.valid(epoch, version) and self.may_contain(version)

    def latest(self, count: int) -> list[Version]:
        """Return the newest ``count`` versions, oldest first."""
        return sorted(self._chunk_counts)[-count:]

    def may_contain(self, version: Version) -> bool:
        """Whether this version was announced, or is so old that its record is discarded.

        Rollouts of a version that old are stale in any case, so it need not be known whether it ever existed.
        """
        return version in self._chunk_counts or version < self._discarded_below

    def chunk_count(self, version: Version) -> int | None:
        """Return the number of chunks of its largest encoding; None if it was not announced, or is discarded."""
        return self._chunk_counts.get(version)
