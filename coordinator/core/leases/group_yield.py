"""How many of the groups that are begun will be trained, where some come too late whatever is done.

A group is as late as its longest rollout. Where lengths have a long tail and S leaves little room, some groups end
unfinished; until then they take places that nobody needs. Counting places by what will come of them keeps the learner
busy, at the price of more work in vain where more groups than expected come in time: so it is done only after the
learner had to wait.
"""

from __future__ import annotations

_FORGETS = 0.98  # what is left of the weight of a group when the next one has ended
_TAKEN_FOR_GRANTED = 8.0  # groups in time, before anything is known


class GroupYield:
    """The share of groups that were ready in time, the newest counting most."""

    def __init__(self) -> None:
        self._ended = 0.0
        self._in_time = 0.0

    def ended(self, groups: int, *, in_time: bool) -> None:
        """So many groups were put into a batch, or were dropped before they were ready."""
        left = _FORGETS**groups
        self._ended = self._ended * left + groups
        self._in_time = self._in_time * left + groups * in_time

    @property
    def share(self) -> float:
        """From 0 to 1; never 0."""
        return (self._in_time + _TAKEN_FOR_GRANTED) / (self._ended + _TAKEN_FOR_GRANTED)

    def expected(self, groups: int, ready: int) -> int:
        """How many of these groups, so many of them ready, will be trained."""
        ready = min(ready, groups)
        return ready + int((groups - ready) * self.share)
