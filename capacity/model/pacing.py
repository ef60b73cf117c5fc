"""Model the coordinator's pacing for predictions: decide from measured times which prompt group may begin.

It follows coordinator/core/decisions/issuing.py and coordinator/core/leases/forecast.py on a fleet without faults:
groups are counted, and predictions are compared with the staleness limit. The rules that both share are in
capacity/model/pacing_rules.py; docs/capacity-prediction.md lists the omissions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from capacity.model.pacing_rules import (
    CHANCE_ONCE_BEGUN,
    LAGS_WINDOW,
    PERIODS,
    SPREAD_NEEDED,
    SPREAD_WINDOW,
    Caution,
    GroupYield,
)

_LENGTHS_AT_FIRST = 64  # after each of which their median is computed; then once in a learner step


class Pace:
    """Measurements of a modelled fleet, and the work that they allow; times are seconds of the model's clock."""

    def __init__(self, t_score_s: float, samples_per_group: int = 1) -> None:
        self.caution = Caution()
        self.group_yield = GroupYield()
        self.period_s = self.learner_s = 0.0  # 0: not measured yet
        self.recorded_at = 0.0
        self.asked_at: float | None = 0.0
        self._t_score_s, self._in_group = t_score_s, samples_per_group
        self._periods: deque[float] = deque(maxlen=PERIODS)
        self._busy: deque[float] = deque(maxlen=PERIODS)
        self._spread: deque[float] = deque(maxlen=SPREAD_WINDOW)
        self._turnarounds: deque[float] = deque(maxlen=SPREAD_WINDOW)
        self._lengths: deque[float] = deque(maxlen=SPREAD_WINDOW)
        self.usual_tokens = 1.0  # median length of a rollout, in the unit of the lengths that are recorded
        self._spread_sorted: list[float] = []
        self._spread_of: dict[tuple[int, bool], float] = {}  # the quantiles asked for since they were last sorted
        self._lags: deque[float] = deque(maxlen=LAGS_WINDOW)
        self._lag_steps: float | None = None
        self._under_way: float | None = None
        self._usual_s = math.inf

    # ---------------------------------------------------------------- measurements

    def answered(self, per_s: float, load: int, turnaround_s: float, tokens: float) -> None:
        """Record a rollout of so many tokens of a worker that generates ``per_s`` slots a second; 0: not known yet."""
        self._lengths.append(tokens)
        if len(self._lengths) < _LENGTHS_AT_FIRST:
            self.usual_tokens = median(self._lengths)
        if per_s:
            self._spread.append(turnaround_s * per_s / load)
        self._turnarounds.append(turnaround_s)

    def came(self, steps_behind: int, now: float) -> None:
        """Record that a worker holds a newer version, which is this many steps behind the learner's current step."""
        if self.period_s and steps_behind >= 0:
            self._lags.append(steps_behind + min(1.0, (now - self.recorded_at) / self.period_s))

    def waits(self, now: float) -> None:
        """Record that the learner asks for a batch that is not complete yet."""
        self.asked_at = now
        self._was_busy(now)

    def _was_busy(self, now: float) -> None:
        self._busy.append(now - self.recorded_at)
        self.learner_s = median(self._busy)

    def formed(self, now: float, trained: int, stale: int) -> None:
        """Record a batch, and how many rollouts were trained, and dropped for their age, since the batch before."""
        if self.asked_at is None:
            self._was_busy(now)
        self._periods.append(now - self.recorded_at)
        self.period_s = median(self._periods)
        waited_s = 0.0 if self.asked_at is None else now - self.asked_at
        share, beginning = waited_s / max(self._periods[-1], 1e-9), len(self._periods) < PERIODS
        self.caution.learn(share, trained, stale, beginning=beginning)
        self.recorded_at, self.asked_at = now, None
        self._sort()

    def _sort(self) -> None:
        self._spread_sorted = sorted(self._spread)
        self._spread_of = {}
        if self._lengths:
            self.usual_tokens = median(self._lengths)
        if self._lags:
            self._lag_steps = median(self._lags)
        turnarounds = sorted(self._turnarounds)
        if turnarounds:
            self._usual_s = _quantile(turnarounds, 0.5)
        if len(turnarounds) >= SPREAD_NEEDED and self.learner_s:
            self._under_way = (_quantile(turnarounds, 0.9 ** (1.0 / self._in_group)) + self._t_score_s) / self.learner_s

    # ---------------------------------------------------------------- questions

    def groups_of_use(self, groups_per_step: int, lead_margin_steps: float) -> float:
        """Return how many open and ready groups keep the learner busy; inf before enough is measured."""
        if self._under_way is None:
            return math.inf
        return groups_per_step * (1.0 + self._under_way + lead_margin_steps) / self.group_yield.share

    def steps_old(self, ahead: int, groups_per_step: int, of_use: float, kappa: int) -> float:
        """Return how old the version of a group at this place may be when it begins; inf: any age will do.

        Args:
            of_use: as ``groups_of_use`` gives it.
        """
        if self._lag_steps is None or ahead < groups_per_step:
            return math.inf
        spare_steps = max(0.0, (of_use - ahead) * self.group_yield.share / groups_per_step)
        return math.inf if spare_steps > 1.0 else kappa + self._lag_steps + spare_steps

    def places_ahead(self, ahead: int, ready: int) -> int:
        """Return how many of the groups ahead will probably be trained."""
        return self.group_yield.expected(ahead, ready) if self.caution.learner_waited else ahead

    def starves_at(self) -> float:
        """Return when the learner will have waited longer than attempts usually take; inf if it does not wait."""
        return math.inf if self.asked_at is None else self.asked_at + self._usual_s

    def typical_s(self, per_s: float, load: int) -> float:
        """Return the median seconds that a worker of this speed takes for a slot; of all workers if it is 0."""
        return load / per_s if per_s else self._usual_s

    def steps_until_ready(self, per_s: float, load: int, unfilled: int, now: float, *, begun: bool) -> int | None:
        """Return the batches formed before so many slots, begun now, are ready with the required chance, if known."""
        if len(self._spread) < SPREAD_NEEDED or not self.period_s:
            return None
        spread = self._spread_of.get((unfilled, begun))
        if spread is None:
            spread = self._spread_of[unfilled, begun] = self._longest_spread(unfilled, begun=begun)
        next_in_s = max(0.0, self.recorded_at + self.period_s - now) if self.asked_at is None else 0.0
        ready_in_s = self.typical_s(per_s, load) * spread + self._t_score_s
        return max(0, math.ceil((ready_in_s - next_in_s) / self.period_s))

    def _longest_spread(self, unfilled: int, *, begun: bool) -> float:
        """Return how many times longer than typical the longest of so many slots takes, with the required chance."""
        if not self._spread_sorted:
            return 1.0
        chance = min(self.caution.chance, CHANCE_ONCE_BEGUN) if begun else self.caution.chance
        return _quantile(self._spread_sorted, chance ** (1.0 / max(1, unfilled)))


def median(values: Sequence[float]) -> float:
    """Return the median; of an even number of values, the upper one of the middle two."""
    return sorted(values)[len(values) // 2]


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered), max(1, math.ceil(share * len(ordered)))) - 1]
