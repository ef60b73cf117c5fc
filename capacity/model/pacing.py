"""The coordinator's pacing in small: which group may be begun, from measured times. For predictions only.

The same rules as coordinator/core/decisions/admission.py, forecast.py and group_yield.py, on a fleet without faults
of its own: groups
are counted, and what is predicted is compared with the staleness limit. docs/capacity-prediction.md says what is left
out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

_PERIODS = 16  # learner steps, and attempts of a worker
_SPREAD_WINDOW = 1024
_LAGS_WINDOW = 256
_SPREAD_NEEDED = 24
_CHANCE_MIN, _CHANCE_FIRST, _CHANCE_MAX = 0.1, 0.25, 0.97
_BOLDER, _BOLDER_MAX, _MORE_CAUTIOUS = 5.0, 0.3, 0.05
_CEILING_BELOW, _CEILING_RISES = 0.1, 0.002
_SHARE_MAX = 0.01  # of a step waited, or of the rollouts dropped, before caution changes
_FORGETS, _TAKEN_FOR_GRANTED = 0.98, 8.0  # of the share of groups that come in time
_CHANCE_ONCE_BEGUN = 0.2


class Pace:
    """What is measured of a fleet, and what it lets begin. Seconds of the model's clock."""

    def __init__(self, t_score_s: float) -> None:
        self.chance = _CHANCE_FIRST
        self.period_s = self.learner_s = 0.0  # 0: not measured yet
        self.recorded_at = 0.0
        self.asked_at: float | None = 0.0
        self._t_score_s = t_score_s
        self._ceiling = _CHANCE_MAX
        self._since_wait = _PERIODS
        self._periods: deque[float] = deque(maxlen=_PERIODS)
        self._busy: deque[float] = deque(maxlen=_PERIODS)
        self._spread: deque[float] = deque(maxlen=_SPREAD_WINDOW)
        self._turnarounds: deque[float] = deque(maxlen=_SPREAD_WINDOW)
        self._spread_sorted: list[float] = []
        self._lags: deque[float] = deque(maxlen=_LAGS_WINDOW)
        self._lag_steps: float | None = None
        self._under_way: float | None = None
        self._usual_s = math.inf
        self._ended = self._in_time = 0.0

    # ---------------------------------------------------------------- measurements

    def answered(self, per_s: float, load: int, turnaround_s: float) -> None:
        """A rollout came of a worker that was known to make so many slots a second; 0: not known."""
        if per_s:
            self._spread.append(turnaround_s * per_s / load)
        self._turnarounds.append(turnaround_s)

    def came(self, steps_behind: int, now: float) -> None:
        """A worker holds a newer version: so many steps before the one that the learner works at."""
        if self.period_s and steps_behind >= 0:
            self._lags.append(steps_behind + min(1.0, (now - self.recorded_at) / self.period_s))

    def waits(self, now: float) -> None:
        """The learner wants a batch that is not there yet."""
        self.asked_at = now
        self._was_busy(now)

    def _was_busy(self, now: float) -> None:
        self._busy.append(now - self.recorded_at)
        self.learner_s = median(self._busy)

    def formed(self, now: float, trained: int, stale: int) -> None:
        """A batch was formed; so many rollouts were trained, and dropped for their age, since the one before."""
        if self.asked_at is None:
            self._was_busy(now)
        self._periods.append(now - self.recorded_at)
        self.period_s = median(self._periods)
        self._learn_caution(now, trained, stale)
        self.recorded_at, self.asked_at = now, None
        self._sort()

    def _sort(self) -> None:
        self._spread_sorted = sorted(self._spread)
        if self._lags:
            self._lag_steps = median(self._lags)
        turnarounds = sorted(self._turnarounds)
        if turnarounds:
            self._usual_s = _quantile(turnarounds, 0.5)
        if len(turnarounds) >= _SPREAD_NEEDED and self.learner_s:
            self._under_way = (_quantile(turnarounds, 0.9) + self._t_score_s) / self.learner_s

    def _learn_caution(self, now: float, trained: int, stale: int) -> None:
        waited_s = 0.0 if self.asked_at is None else now - self.asked_at
        share = waited_s / max(self._periods[-1], 1e-9)
        waited = share > _SHARE_MAX and len(self._periods) == _PERIODS
        self._since_wait = 0 if waited else self._since_wait + 1
        self._ceiling = min(_CHANCE_MAX, self._ceiling + _CEILING_RISES)
        if share > _SHARE_MAX:
            self._ceiling = max(_CHANCE_MIN, min(self._ceiling, self.chance) - _CEILING_BELOW)
            self.chance = max(_CHANCE_MIN, self.chance - min(_BOLDER * share, _BOLDER_MAX))
        elif stale > _SHARE_MAX * (trained + stale):
            self.chance += _MORE_CAUTIOUS
        self.chance = min(self.chance, self._ceiling)

    def ended(self, groups: int, *, in_time: bool) -> None:
        """So many groups were put into a batch, or were dropped before they were ready."""
        left = _FORGETS**groups
        self._ended = self._ended * left + groups
        self._in_time = self._in_time * left + groups * in_time

    # ---------------------------------------------------------------- questions

    @property
    def yield_share(self) -> float:
        """Of the groups begun, those that will be trained."""
        return (self._in_time + _TAKEN_FOR_GRANTED) / (self._ended + _TAKEN_FOR_GRANTED)

    def groups_of_use(self, groups_per_step: int, lead_margin_steps: float) -> float:
        """Open and ready groups that keep the learner busy."""
        if self._under_way is None:
            return math.inf
        return groups_per_step * (1.0 + self._under_way + lead_margin_steps) / self.yield_share

    def steps_old(self, ahead: int, groups_per_step: int, lead_margin_steps: float, kappa: int) -> float:
        """How old a version may be that a group in this place is begun with; infinite: no wait for a newer one."""
        if self._lag_steps is None or ahead < groups_per_step:
            return math.inf
        of_use = self.groups_of_use(groups_per_step, lead_margin_steps)
        spare_steps = max(0.0, (of_use - ahead) * self.yield_share / groups_per_step)
        return math.inf if spare_steps > 1.0 else kappa + self._lag_steps + spare_steps

    def places_ahead(self, ahead: int, ready: int) -> int:
        """Of the groups ahead, those that will probably be of use."""
        if self._since_wait >= _PERIODS:
            return ahead
        ready = min(ready, ahead)
        return ready + int((ahead - ready) * self.yield_share)

    def starves_at(self) -> float:
        """When the learner will have waited for longer than attempts usually take."""
        return math.inf if self.asked_at is None else self.asked_at + self._usual_s

    def steps_until_ready(self, per_s: float, load: int, unfilled: int, now: float, *, begun: bool) -> int | None:
        """Batches formed before so many slots, begun now, are ready with the chance wanted; None: not known."""
        if len(self._spread) < _SPREAD_NEEDED or not self.period_s:
            return None
        chance = min(self.chance, _CHANCE_ONCE_BEGUN) if begun else self.chance
        typical_s = load / per_s if per_s else self._usual_s
        spread = _quantile(self._spread_sorted, chance ** (1.0 / max(1, unfilled))) if self._spread_sorted else 1.0
        next_in_s = max(0.0, self.recorded_at + self.period_s - now) if self.asked_at is None else 0.0
        return max(0, math.ceil((typical_s * spread + self._t_score_s - next_in_s) / self.period_s))


def median(values: Sequence[float]) -> float:
    """The upper one of two."""
    return sorted(values)[len(values) // 2]


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered), max(1, math.ceil(share * len(ordered)))) - 1]
