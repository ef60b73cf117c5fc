"""Keep what is being scored, the failures of each rollout, and whether scoring as a whole works.

    to be scored ──► scored
        ▲  └───────► failed ──► to be scored again, elsewhere ──► after ATTEMPTS_MAX failures: unscorable
        └── set aside while scoring is paused

A failure of the verifier says nothing about the completion, so it is never a reward. Scoring is paused, as by a
circuit breaker, when too large a share of the newest verdicts are failures: then the failures are those of the service
or of the reward function, and no rollout is charged for them. While it is paused one rollout at a time is tried.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, replace

from coordinator.core.events.actions import ScoreRollout
from rollcast.wire.ids import RolloutId

ATTEMPTS_MAX = 3
"""Failures after which a rollout counts as unscorable."""
VERDICTS_KEPT = 32
"""Newest verdicts of which the share of failures is taken."""
VERDICTS_LEAST = 8
"""Verdicts below which no share is taken."""
PROBE_FIRST_S = 1.0
"""Seconds from the pause to its first trial; each trial that fails doubles them."""
PROBE_MOST_S = 60.0
SCORES_TO_RESUME = 4
"""Scores in a row that end a pause: after one a function that fails half of the time would be resumed at once."""


@dataclass(slots=True)
class Pending:
    """A rollout without a verdict that counts. ``since``: when it was first to be scored, on the core's clock."""

    action: ScoreRollout
    since: float
    failures: int = 0
    set_aside: bool = False  # not with the scorer, because scoring is paused


@dataclass(frozen=True, slots=True)
class Pause:
    """Why and since when scoring is paused, and when the next rollout is tried, on the core's clock."""

    reason: str
    since: float
    probe_at: float
    probe_s: float
    scores: int = 0  # in a row, since the pause began


class ScoringBook:
    """The rollouts that wait for a score.

    Args:
        failed_share_max: share of failures among the newest verdicts above which scoring is paused; 1: it never is.
    """

    def __init__(self, failed_share_max: float) -> None:
        self.pause: Pause | None = None
        self.failures: Counter[str] = Counter()  # by reason, since the start
        self.last_failure = ""
        self.unscorable_groups = 0  # dropped since the start
        self._failed_share_max = failed_share_max
        self._pending: OrderedDict[RolloutId, Pending] = OrderedDict()
        self._verdicts: deque[bool] = deque(maxlen=VERDICTS_KEPT)  # True: a score

    def __len__(self) -> int:
        """Return how many rollouts wait for a score."""
        return len(self._pending)

    def get(self, rollout_id: RolloutId) -> Pending | None:
        """Return a rollout that waits for a score; None if it does not."""
        return self._pending.get(rollout_id)

    def begin(self, action: ScoreRollout, now: float) -> bool:
        """Add a rollout. Return whether to score it now; otherwise it is set aside until scoring works again."""
        paused = self.pause is not None
        self._pending[action.rollout_id] = Pending(action, now, set_aside=paused)
        return not paused

    def scored(self, rollout_id: RolloutId) -> Pending | None:
        """Remove a rollout that has a score, and return it."""
        self._verdicts.append(True)
        return self._pending.pop(rollout_id, None)

    def failed(self, pending: Pending, reason: str, detail: str) -> None:
        """Count a failure."""
        self._verdicts.append(False)
        self.failures[reason] += 1
        self.last_failure = f"{reason}: {detail}" if detail else reason
        pending.failures += 1

    def discard(self, rollout_id: RolloutId) -> None:
        """Remove a rollout that needs no score any more."""
        self._pending.pop(rollout_id, None)

    # ---------------------------------------------------------------- the pause

    @property
    def failed_share(self) -> float:
        """Share of failures among the newest verdicts; 0 while there are too few."""
        if len(self._verdicts) < VERDICTS_LEAST:
            return 0.0
        return 1.0 - sum(self._verdicts) / len(self._verdicts)

    def must_pause(self) -> bool:
        """Whether scoring is to be paused now."""
        return self.pause is None and self._failed_share_max < 1.0 and self.failed_share > self._failed_share_max

    def begin_pause(self, now: float) -> Pause:
        """Pause scoring because of the last failure."""
        self.pause = Pause(self.last_failure, now, now + PROBE_FIRST_S, PROBE_FIRST_S)
        return self.pause

    def set_aside(self, pending: Pending) -> None:
        """Keep a rollout that failed until scoring works again; it is tried after the others, and is not charged."""
        pending.set_aside, pending.failures = True, 0
        self._pending.move_to_end(pending.action.rollout_id)
        if self.pause is not None:
            self.pause = replace(self.pause, scores=0)

    def recovers(self, now: float) -> bool:
        """Count a score during the pause: the next trial may follow at once. Return whether it is over."""
        if self.pause is None:
            return False
        self.pause = replace(self.pause, scores=self.pause.scores + 1, probe_at=now, probe_s=PROBE_FIRST_S)
        return self.pause.scores >= SCORES_TO_RESUME

    def probe(self, now: float) -> Pending | None:
        """Return the rollout to try now that scoring is paused; None if it is not time for one."""
        pause = self.pause
        if pause is None or now < pause.probe_at or not all(one.set_aside for one in self._pending.values()):
            return None
        found = next(iter(self._pending.values()), None)
        if found is not None:
            found.set_aside = False
            probe_s = min(PROBE_MOST_S, 2.0 * pause.probe_s)
            self.pause = replace(pause, probe_at=now + probe_s, probe_s=probe_s)
        return found

    def end_pause(self) -> list[ScoreRollout]:
        """End the pause, and return what was set aside, oldest first."""
        self.pause = None
        self._verdicts.clear()
        found = [one for one in self._pending.values() if one.set_aside]
        for one in found:
            one.set_aside = False
        return [one.action for one in found]
