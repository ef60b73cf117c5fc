"""Decide how long a run's store keeps its rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollcast.wire.ids import Step, Version

GROUPS_FIRST = 16  # in the first transaction, before its duration is known
GROUPS_MAX = 256
#: What an event takes in a shared store, with its index entry: its bound is in bytes, and rows are counted.
EVENT_BYTES = 256


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits on what the store keeps."""

    margin_steps: int = 256
    """Steps kept beyond those that the learner could still request."""
    events_kept: int = 20_000
    """Newest events that stay in the store; older ones move to segment files."""
    segment_events: int = 5_000
    """Events per segment file."""
    segments_bytes_max: int = 1 << 30
    """Most bytes of all segment files together, compressed; the oldest are deleted. In a shared store, which has no
    such files, of the events in it.
    """
    steps_kept: int = 10_000
    """Newest learner steps whose metrics stay in the store; metrics.jsonl has all."""

    @property
    def shared_events_kept(self) -> int:
        """Return the number of newest events that stay in a store without segment files."""
        return max(self.events_kept, self.segments_bytes_max // EVENT_BYTES)


def horizon_step(
    retention: Retention, *, oldest_checkpoint_step: Step | None, recorded_batches: int, oldest_trained_age: int
) -> Step:
    """Return the step before which everything that was over may be compacted; 0: nothing.

    At worst a learner resumes from its oldest checkpoint and requests the batches from there on. The versions of
    those batches' rollouts are up to ``oldest_trained_age`` steps older.
    """
    if oldest_checkpoint_step is None:
        return Step(0)
    asked_for = min(oldest_checkpoint_step, recorded_batches)
    return Step(max(0, asked_for - oldest_trained_age - retention.margin_steps))


def horizon_of_cell(recorded_batches: int, newest: Version | None) -> Step:
    """Return the step before which what is over may be compacted in a cell, where no learner requests it again.

    Versions before that step are compacted too, so it is not beyond the newest one.
    """
    return Step(min(recorded_batches + 1, newest or 0))


def next_group_count(count: int, took_s: float, *, aim_s: float) -> int:
    """Return how many groups the next transaction compacts, so that it takes about ``aim_s`` seconds.

    Other commits wait for that long.
    """
    if took_s > aim_s:
        return max(1, count // 2)
    return min(GROUPS_MAX, count * 2) if took_s < aim_s / 4 else count


def segments_to_delete(sizes_bytes: Sequence[int], bytes_max: int) -> int:
    """Return how many of the oldest segments to delete; ``sizes_bytes`` are in order, oldest first."""
    total = sum(sizes_bytes)
    for count, size in enumerate(sizes_bytes):
        if total <= bytes_max:
            return count
        total -= size
    return len(sizes_bytes)
