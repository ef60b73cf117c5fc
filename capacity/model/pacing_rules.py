"""Decide how cautiously a run begins prompt groups; the coordinator and the predictions apply these same rules.

``capacity/model/pacing.py`` predicts what the coordinator will do on a fleet that does not exist yet; it would mislead
as soon as one of these rules or constants were changed on one side only. Pure.
"""

from __future__ import annotations

SPEED_WINDOW = 16  # newest attempts of one peer that its speed is measured from
SPREAD_WINDOW = 1024  # newest attempts of all peers that the spread of turnarounds is measured from
SPREAD_NEEDED = 24  # attempts measured before anything is predicted
PERIODS = 16  # newest learner steps that the step's period is measured from
LAGS_WINDOW = 256  # newest versions that reached peers
CHANCE_ONCE_BEGUN = 0.2  # chance of being in time that a group needs whose other slots are in flight or done

_CHANCE_MIN, _CHANCE_AT_FIRST, _CHANCE_MAX = 0.1, 0.25, 0.97  # chance of being in time that a new group needs
_BOLDER, _BOLDER_MAX = (
    5.0,
    0.3,
)  # lowers the chance after a step in which the learner waited: times the share, and at most
_MORE_CAUTIOUS = 0.05  # raises the chance after a step in which work was wasted
_CEILING_BELOW, _CEILING_RISES = (
    0.1,
    0.002,
)  # keeps the chance below its value before the last wait; the ceiling rises slowly
_WAITED_SHARE_MAX = 0.01  # share of a step's period up to which waiting does not count
_STALE_SHARE_MAX = 0.01  # share of the rollouts that ended during a step, beyond which caution rises
_DECAY = 0.98  # factor on the weight of all earlier groups when another one has ended
_PRIOR_GROUPS = 8.0  # groups assumed to have been in time before any has ended


class Caution:
    """The chance of being in time that a new prompt group must have, learned from waiting and from wasted work.

    A learner that waits is worse than wasted work, so waiting lowers the chance at once and by much, and stale rollouts
    raise it slowly. While neither happens it stays.
    """

    def __init__(self) -> None:
        self.chance = _CHANCE_AT_FIRST
        self.learner_waited = False
        """Whether the learner had to wait for a batch in one of its newest steps, the run's beginning apart."""
        self._ceiling = _CHANCE_MAX
        self._steps_since_wait = PERIODS

    def learn(self, waited_share: float, trained: int, stale: int, *, beginning: bool) -> None:
        """Adjust the chance after a learner step.

        Args:
            waited_share: of the step's period, in which the learner waited for its batch.
            trained: rollouts trained since the step before.
            stale: rollouts dropped for their age since then.
            beginning: whether the run has too few steps behind it for a wait to count as the pacing's fault.
        """
        waited = waited_share > _WAITED_SHARE_MAX and not beginning
        self._steps_since_wait = 0 if waited else self._steps_since_wait + 1
        self.learner_waited = self._steps_since_wait < PERIODS
        self._ceiling = min(_CHANCE_MAX, self._ceiling + _CEILING_RISES)
        if waited_share > _WAITED_SHARE_MAX:
            self._ceiling = max(_CHANCE_MIN, min(self._ceiling, self.chance) - _CEILING_BELOW)
            self.chance = max(_CHANCE_MIN, self.chance - min(_BOLDER * waited_share, _BOLDER_MAX))
        elif stale > _STALE_SHARE_MAX * (trained + stale):
            self.chance += _MORE_CAUTIOUS
        self.chance = min(self.chance, self._ceiling)


class GroupYield:
    """The share of begun groups that are trained, where some are too late under any pacing.

    A group is as late as its longest rollout. Where lengths have a long tail and S is small, some groups end
    unfinished; until then they take places that no other group gets. Counting only the expected share of places keeps
    the learner busy, at the price of more wasted work where more groups than expected are in time: so the coordinator
    does it only after the learner had to wait.
    """

    def __init__(self) -> None:
        self._ended = 0.0
        self._in_time = 0.0
        self.share = 1.0
        """A share above 0 and at most 1, in which the newest groups count most."""

    def ended(self, groups: int, *, in_time: bool) -> None:
        """Record that so many groups were put into a batch, or were dropped before they were ready."""
        left = _DECAY**groups
        self._ended = self._ended * left + groups
        self._in_time = self._in_time * left + groups * in_time
        self.share = (self._in_time + _PRIOR_GROUPS) / (self._ended + _PRIOR_GROUPS)

    def expected(self, groups: int, ready: int) -> int:
        """Return how many of these groups, so many of them ready, will probably be trained."""
        ready = min(ready, groups)
        return ready + int((groups - ready) * self.share)
