"""Define groups and workers of the fleet model: plain state, and functions of it alone."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from capacity.model.demand import Conduct
from capacity.model.pacing import median
from capacity.model.pacing_rules import SPEED_WINDOW


@dataclass(slots=True)
class Measured:
    """Counts of a measurement. ``t_bcast_s``: of each version, from its announcement to the last worker's copy."""

    seconds: float
    train_s: float
    trained: int
    dropped: int
    age_steps: int
    t_bcast_s: list[float]


@dataclass(frozen=True, slots=True)
class Counts:
    """What a run has counted so far: of the learner's steps, of rollouts, and of versions that reached every worker."""

    stepped_at: float
    steps_done: int
    trained: int
    dropped: int
    age_steps: int
    versions: int


@dataclass(slots=True, eq=False)
class Group:
    """One prompt's rollouts.

    Args:
        vacant: slots that no worker holds, each by the length of its rollout, a quantile from 0 to 1. Every attempt at
            a slot has the same seed and so the same length: those that a preemption loses are long ones.
        unfilled: slots without a rollout.
        oldest: version of its rollouts so far; None before the first.
        versions: sum over its rollouts.
        number: groups have rising numbers in the order in which they begin.
    """

    vacant: list[float]
    unfilled: int
    oldest: int | None = None
    versions: int = 0
    over: bool = False  # it is in a batch, or was dropped
    number: int = 0

    def too_old(self, step: int, limit: int) -> bool:
        """Return whether the group is too old for the batch of this step."""
        return self.oldest is not None and step - self.oldest > limit


@dataclass(slots=True, eq=False)
class Slot:
    """A slot leased to a worker. ``needs``: the oldest version that may generate it."""

    group: Group
    length: float
    load: int
    issued_at: float
    needs: int
    version: int = -1


@dataclass(slots=True, eq=False)
class ModelWorker:
    """One worker. Times are seconds of the model's clock; versions are learner steps, -1 before the first.

    Args:
        mean_s: mean time of one slot.
        shape: times of slots in multiples of the mean, at the middles of equal shares.
        swap_s: time for which its rollouts make no progress at a swap of versions.
        copy_s: time from the announcement of a version to the worker's verified copy.
        lives_s: mean time between two preemptions; None: none.
        away_s: time from a preemption until the worker, or its replacement, works again.
    """

    number: int
    concurrency: int
    mean_s: float
    shape: tuple[float, ...]
    copy_s: float
    swap_s: float = 0.0
    lives_s: float | None = None
    away_s: float = 0.0
    held: int = -1  # newest verified copy
    loaded: int = -1
    active: int = -1
    receiving: int = -1
    following: int = -1  # newest version announced meanwhile
    keeps: bool = False  # the copy in progress replaced another one, and is not replaced in turn
    receive_until: float = 0.0
    receive_from: float = 0.0
    received_before_s: float = 0.0
    swapped_s: float = 0.0  # total time of swaps while rollouts were running
    waiting: list[Slot] = field(default_factory=list)
    running: dict[Slot, None] = field(default_factory=dict)  # an ordered set
    life: int = 0
    away: bool = False
    aside: bool = False
    virtual_s: float = 0.0
    per_s: float = 0.0  # measured, in slots of the usual length a second
    most: int = 0  # slots that it holds at most
    most_ever: int = 0  # slots that it holds at most until its speed is known
    ahead_s: float = 0.0  # seconds of work that it holds besides what it generates
    speeds: deque[float] = field(default_factory=lambda: deque(maxlen=SPEED_WINDOW))  # in tokens a second
    delivers: bool = False  # it has delivered a rollout

    @property
    def holds(self) -> int:
        """Slots that wait or run on this worker."""
        return len(self.waiting) + len(self.running)

    def free_slots(self) -> int:
        """Return how many more slots the worker can take now."""
        if self.away or self.held < 0 or (self.active < 0 and self.loaded < 0):
            return 0
        return self.most - len(self.waiting) - len(self.running)

    def prefetches(self, conduct: Conduct) -> None:
        """Take over how many slots it holds at most, and for how many seconds of work."""
        self.most = self.most_ever = int(conduct.prefetch_batches * self.concurrency)
        self.ahead_s = conduct.prefetch_s

    def answered(self, load: int, turnaround_s: float, tokens: float, usual_tokens: float) -> None:
        """Record the seconds that a slot of so many tokens took while it held ``load`` slots.

        Args:
            tokens, usual_tokens: in the same unit, whichever that is.
        """
        if not self.delivers:
            self.speeds.clear()
            self.delivers = True
        self._measured(load * tokens / turnaround_s, usual_tokens)

    def gave_up(self, load: int, so_far_s: float, usual_tokens: float) -> None:
        """Record a slot that was revoked, of a worker that has delivered none: it would have taken at least as long."""
        if not self.delivers:
            self._measured(load * usual_tokens / so_far_s, usual_tokens)

    def _measured(self, tokens_per_s: float, usual_tokens: float) -> None:
        self.speeds.append(tokens_per_s)
        self.per_s = per_s = median(self.speeds) / usual_tokens
        self.most = min(self.most_ever, self.concurrency + math.ceil(per_s * self.ahead_s))

    def served(self, slots: int) -> None:
        """Count so many slots as its share of the work."""
        self.virtual_s += slots / (self.per_s or self.concurrency / self.mean_s)

    def announced(self, version: int, now: float) -> bool:
        """Begin to receive this version, if at all, and return whether; a copy more than half complete is finished."""
        if self.receiving >= 0:
            if self.keeps or 2.0 * (self.receive_until - now) < self.receive_until - self.receive_from:
                self.following = version
                return False
            self.stop_receiving(now)
            self.keeps = True
        self.receiving, self.receive_from, self.receive_until = version, now, now + self.copy_s
        return True

    def stop_receiving(self, now: float) -> None:
        """Stop receiving: the copy is complete, or another version replaces it."""
        self.received_before_s = self.received_s(now)
        self.receiving, self.following, self.keeps = -1, -1, False

    def received_s(self, now: float) -> float:
        """Return the total seconds for which it was receiving versions."""
        return self.received_before_s + (now - self.receive_from if self.receiving >= 0 else 0.0)

    def take(self, most: int) -> list[Slot]:
        """Take up to so many slots that the active version may generate."""
        taken: list[Slot] = []
        if most > 0:
            for slot in self.waiting:
                if slot.needs <= self.active:
                    slot.version = self.active
                    taken.append(slot)
                    if len(taken) == most:
                        break
            for slot in taken:  # mostly the first ones, so that this is no search
                self.waiting.remove(slot)
        return taken

    def tokens(self, length: float) -> float:
        """Return the tokens of a slot of this length, in means of all lengths."""
        return self.shape[int(length * len(self.shape))]

    def slot_s(self, length: float) -> float:
        """Return the seconds that a slot of this length takes."""
        return self.mean_s * self.tokens(length)

    def gives_up(self, group: Group, *, running: bool) -> None:
        """Give up the slots of a group that was dropped, ``running`` ones too."""
        self.waiting = [slot for slot in self.waiting if slot.group is not group]
        if running:
            self.running = {slot: None for slot in self.running if slot.group is not group}


def t_bcast_of(measured: Measured, share: float = 0.5) -> float | None:
    """Return a quantile of T_bcast, the lower of two; None without a version that reached every worker."""
    ordered = sorted(measured.t_bcast_s)
    return ordered[int((len(ordered) - 1) * share)] if ordered else None
