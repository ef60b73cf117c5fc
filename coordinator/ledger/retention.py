"""How long a run's store keeps what: decisions only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollcast.wire.ids import Step

GROUPS_FIRST = 16  # of one transaction, until it is known how long one takes
GROUPS_MAX = 256


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept at least, and at most."""

    margin_steps: int = 256
    """Steps kept beyond those that a learner could still ask for."""
    events_kept: int = 20_000
    """Newest entries of the story that stay in the store; older ones go to segment files."""
    segment_events: int = 5_000
    """Entries of one segment file."""
    segments_bytes_max: int = 1 << 30
    """Segment files of a run, all together, compressed; the oldest ones are deleted."""
    steps_kept: int = 10_000
    """Newest learner steps whose figures stay in the store; metrics.jsonl has all."""


def horizon_step(
    retention: Retention, *, oldest_checkpoint_step: Step | None, recorded_batches: int, oldest_trained_age: int
) -> Step:
    """What was over before this step may be compacted; 0: nothing.

    A learner resumes from its oldest checkpoint at worst, and asks for the batches from there on. Versions that
    rollouts of those batches come from are up to ``oldest_trained_age`` steps older.
    """
    if oldest_checkpoint_step is None:
        return Step(0)
    asked_for = min(oldest_checkpoint_step, recorded_batches)
    return Step(max(0, asked_for - oldest_trained_age - retention.margin_steps))


def next_group_count(count: int, took_s: float, *, aim_s: float) -> int:
    """Groups of the next transaction, so that it takes about ``aim_s``: who commits meanwhile waits that long."""
    if took_s > aim_s:
        return max(1, count // 2)
    return min(GROUPS_MAX, count * 2) if took_s < aim_s / 4 else count


def segments_to_delete(sizes_bytes: Sequence[int], bytes_max: int) -> int:
    """How many of the oldest segments are too many; ``sizes_bytes`` are in order, the oldest first."""
    total = sum(sizes_bytes)
    for count, size in enumerate(sizes_bytes):
        if total <= bytes_max:
            return count
        total -= size
    return len(sizes_bytes)
