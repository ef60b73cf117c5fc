"""Simulate the row of the leadership in the database that two coordinators share, and the fence of its epoch.

The rules are those of `coordinator/stores/leadership.py`: a standby takes the row once its time is over, by the
database's clock alone, and raises the epoch; a transaction of an earlier epoch commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.stores.leadership import TTL_S
from rollcast.runtime.errors import LeadershipLost


class LeadershipRow:
    """The row: who leads, in which epoch, and until when if the leader does not renew it."""

    def __init__(self) -> None:
        self.epoch = 0
        self._until_s = 0.0

    def take(self, now: float) -> int | None:
        """Lead from now on if the time of the last leader is over; return the new epoch, or None."""
        if self.epoch and now <= self._until_s:
            return None
        self.epoch += 1
        self._until_s = now + TTL_S
        return self.epoch

    def renew(self, epoch: int, now: float) -> bool:
        """Renew the leadership; return False if another coordinator has led since."""
        if epoch != self.epoch:
            return False
        self._until_s = now + TTL_S
        return True


class Fence:
    """What every transaction of a leader checks first: that the row still names its epoch.

    Args:
        committed: called with the epoch when a transaction commits; for the judge.
    """

    def __init__(self, row: LeadershipRow, epoch: int, committed: Callable[[int], None]) -> None:
        self._row = row
        self._epoch = epoch
        self._committed = committed

    def refusal(self) -> LeadershipLost | None:
        """Return why a transaction of this epoch does not commit; None if it does."""
        return None if self._row.epoch == self._epoch else LeadershipLost("this coordinator leads no longer")

    def committed(self) -> None:
        """Note that a transaction commits now."""
        self._committed(self._epoch)
