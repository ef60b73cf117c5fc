"""Decide how many slots a peer may hold, by what it delivered and not by what it asks for.

A member that computes nothing may ask for any number of slots, and each slot that it holds is missing from the batch
until its lease expires. So capacity starts slowly, grows with each accepted rollout and is halved when leases expire,
like a congestion window (RFC 5681, section 3.1): what an identity wastes is at most what it delivered, and a constant.
Deadlines leave time for the longest rollout, and second attempts or the age of a group end most idle attempts long
before. So being overtaken costs something too: see Earned.overtaken.
New identities are cheap, so those of one invite that have delivered nothing yet share one allowance.

While no other one delivers a peer has its fair share at least: there is no one else to do its work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

_FAIR_BATCHES = 2.0  # slots that all workers together may begin with: a batch in flight and the next one
_GROUPS_LEAST = 2  # whole ones that a newcomer may begin with
_TRIAL_SHARE = 0.1  # of a batch: what the newcomers of one invite hold together at most, beside many other workers
_TRIAL_LEAST = 0.125  # of that, however many newcomers delivered nothing
_LOSSES_FREE = 2  # times in a row that leases may expire without a pause; a machine may be suspended once
_REST_DOUBLINGS_MAX = 5
_SHARE_MOST = 0.1  # of a batch, for one identity or invite, where as many others work as such a share needs


@dataclass(slots=True)
class Earned:
    """What one identity, or the newcomers of one invite, delivered and lost. Times are the core's clock in seconds."""

    slots: float = 0.0  # that it may hold; 0: it has delivered nothing and lost nothing
    has_delivered: bool = False
    losses: int = 0  # times in a row that leases were lost since something was delivered
    lost_at: float = -math.inf
    delivered_at: float = -math.inf

    @property
    def works(self) -> bool:
        """Whether the last thing that it did with a lease was to deliver."""
        return self.has_delivered and not self.losses

    def delivered(self, first: int, most: int, now: float) -> None:
        """Count an accepted rollout: one slot more, up to ``most``. ``first`` is what it may hold at the beginning."""
        self.slots = min(max(self.slots or first, 1) + 1.0, max(most, 1))
        self.has_delivered, self.losses, self.delivered_at = True, 0, now

    def lost(self, issued_at: float, first: int, now: float) -> bool:
        """Count a lease that expired, or whose rollout was malformed. Returns whether this halved what it may hold.

        Leases that were issued before the last halving are one loss together: a machine that fails loses all at once.
        """
        if issued_at < self.lost_at:
            return False
        self.slots = max(1.0, (self.slots or first) / 2.0)
        self.losses += 1
        self.lost_at = now
        return True

    def overtaken(self, issued_at: float, first: int, now: float) -> bool:
        """Count a lease that lasted longer than usual until another peer was first, or its group was too old.

        It is lost if nothing was delivered since it was issued; else it costs the slot that one delivery earns. Returns
        whether it was lost.
        """
        if self.delivered_at < issued_at:
            return self.lost(issued_at, first, now)
        self.slots = max(1.0, self.slots - 1.0)
        return False

    def rest_s(self, lease_deadline_s: float) -> float:
        """Return the seconds without work that follow the newest loss; doubled with each loss in a row."""
        times = self.losses - _LOSSES_FREE
        return 0.0 if times <= 0 else lease_deadline_s * 2.0 ** min(times - 1, _REST_DOUBLINGS_MAX)


class Allowances(msgspec.Struct, frozen=True):
    """The slots that members may hold at one moment: a struct, which takes less time to make than a frozen dataclass.

    Args:
        workers: connected peers that may work.
        working: those of them whose last lease was delivered.
        delivered: rollouts accepted since this coordinator started.
    """

    slots_per_step: int
    samples_per_group: int
    workers: int
    working: int
    delivered: int

    @property
    def first(self) -> int:
        """Slots that a peer may hold before it has delivered anything: its fair share of two batches."""
        return self._at_least_groups(_FAIR_BATCHES / max(1, self.workers))

    @property
    def most_in_flight(self) -> int:
        """Slots that all workers together may begin with."""
        return math.ceil(_FAIR_BATCHES * self.slots_per_step)

    def most_of(self, earned: Earned) -> int:
        """Return the most slots that a peer may hold: its fair share at least, while no other one delivers."""
        others_work = self.working - earned.works > 0
        if earned.slots and others_work:
            return math.floor(earned.slots)
        return max(math.floor(earned.slots), self.first)

    def most_on_trial(self, newcomers: Earned) -> float:
        """Return the most slots that an invite's newcomers may hold together; infinite while most peers are new.

        After the start of a run, or of a coordinator, every peer is a newcomer.
        """
        if not self.working or self.delivered < self.most_in_flight:
            return math.inf
        most = self._at_least_groups(max(_TRIAL_SHARE, _FAIR_BATCHES / self.working))
        if not newcomers.slots:
            return most
        return max(math.ceil(_TRIAL_LEAST * most), min(most, math.floor(newcomers.slots)))

    @property
    def are_shared(self) -> bool:
        """Whether enough peers work that none of them needs more than the largest share of a batch."""
        return self.working * _SHARE_MOST >= 1.0

    def is_above_share(self, slots: int, slots_in_all: int) -> bool:
        """Whether so many slots are more than one identity or invite should have of a batch.

        slots_in_all: slots of all open and ready groups, which may be more than a batch has.
        """
        return slots >= _SHARE_MOST * max(self.slots_per_step, slots_in_all)

    def _at_least_groups(self, batches: float) -> int:
        """Return the slots of so many batches, or of a few groups if that is more."""
        return max(_GROUPS_LEAST * self.samples_per_group, math.ceil(batches * self.slots_per_step))
