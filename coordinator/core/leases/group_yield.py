"""How many of the groups that are begun will be trained, where some come too late whatever is done.

A group is as late as its longest rollout. Where lengths have a long tail and S leaves little room, some groups end
unfinished; until then they take places that nobody needs. Counting places by what will come of them keeps the learner
busy, at the price of more work in vain where more groups than expected come in time: so it is done only after the
learner had to wait.

How many groups turn out to teach something, so that enough of them are under way.
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


_WEIGHT = 0.05  # of the newest group in the moving share
_SHARE_LEAST = 0.2  # of useful groups that is reckoned with: bounds how much more work is begun


class Usefulness:
    """Counts of online selection. A coordinator that starts again counts anew."""

    def __init__(self) -> None:
        self.dropped = 0  # groups without advantage since the last batch
        self.share = 1.0  # of useful groups, lately

    def seen(self, *, useful: bool) -> None:
        """A group was scored."""
        self.share += _WEIGHT * (float(useful) - self.share)

    def batch_recorded(self) -> None:
        """The next batch has its own bound."""
        self.dropped = 0

    @property
    def groups_per_useful_one(self) -> float:
        """How many groups must be made for each that is trained on."""
        return 1.0 / max(_SHARE_LEAST, self.share)
