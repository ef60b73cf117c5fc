"""Keep the leases that a worker holds: which slots wait, which are being generated, and until when."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from peer.worker.core.events import SlotWork, VersionKey
from rollcast.wire.ids import LeaseId, Version
from rollcast.wire.rollouts import LeaseGrant, Slot

# Ids of leases that are over are kept, so that a lease delivered twice is not generated twice.
_CLOSED_IDS_MAX = 8192


@dataclass(slots=True)
class HeldLease:
    """One lease and its slots that wait or are being generated. A lease without either is over."""

    grant: LeaseGrant
    received_s: float
    waiting: dict[int, Slot]
    generating: set[int] = field(default_factory=set)

    @property
    def expires_s(self) -> float:
        """Return the deadline. It is counted from receipt, so that clocks of two machines are never compared."""
        return self.received_s + self.grant.deadline_s

    @property
    def gone_s(self) -> float:
        """Return when its results are no longer accepted: a restarted coordinator extends live leases by one period."""
        return self.expires_s + self.grant.deadline_s

    @property
    def unfinished(self) -> int:
        """Return the number of slots that have not been generated yet."""
        return len(self.waiting) + len(self.generating)

    def servable_by(self, active: VersionKey) -> bool:
        """Return whether the weights of ``active`` are of the lease's epoch and new enough for it.

        An evaluation measures one version: no other may serve it.
        """
        grant = self.grant
        if grant.kind == "evaluation" and grant.oldest_useful_version != active.version:
            return False
        return grant.epoch == active.epoch and self.needs_version <= active.version

    @property
    def needs_version(self) -> Version:
        """Return the oldest version that may generate here."""
        return max(self.grant.oldest_useful_version, self.grant.oldest_own_version)


def _lease_id(lease: HeldLease) -> LeaseId:
    return lease.grant.lease_id


class LeaseBook:
    """The leases held, oldest first."""

    def __init__(self) -> None:
        self._held: dict[LeaseId, HeldLease] = {}
        self._closed: dict[LeaseId, None] = {}
        self._evaluated: tuple[HeldLease, float] | None = None  # the newest whose version stays, and until when
        self._next_expiry_s = math.inf  # valid while _expiry_known
        self._expiry_known = True
        self.unfinished = 0
        """The slots of all leases that have not been generated yet."""

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def knows(self, lease_id: LeaseId) -> bool:
        """Return whether this lease is held or was held."""
        return lease_id in self._held or lease_id in self._closed

    def add(self, grant: LeaseGrant, now: float) -> HeldLease:
        """Hold a lease from now on."""
        lease = HeldLease(grant, now, {slot.sample_index: slot for slot in grant.slots})
        self._held[grant.lease_id] = lease
        self.unfinished += lease.unfinished
        self._expiry_known = False
        return lease

    def is_generating(self, lease_id: LeaseId, sample_index: int) -> bool:
        """Return whether this slot was taken and its result is still wanted."""
        lease = self._held.get(lease_id)
        return lease is not None and sample_index in lease.generating

    def servable(self, active: VersionKey) -> list[HeldLease]:
        """Return the leases with slots that ``active`` may generate, oldest first."""
        return [lease for lease in self if lease.waiting and lease.servable_by(active)]

    def evaluates(self, key: VersionKey, now: float) -> bool:
        """Return whether a lease is held that this version alone may generate, or was held: another turn may follow."""
        if self._evaluated is not None and now < self._evaluated[1] and self._evaluated[0].servable_by(key):
            return True
        return any(lease.grant.kind == "evaluation" and lease.servable_by(key) for lease in self)

    def kept_until_s(self) -> float:
        """Return until when the version of the newest evaluation stays; infinity if none does."""
        return math.inf if self._evaluated is None else self._evaluated[1]

    def keep_version(self, lease: HeldLease, now: float) -> None:
        """Note that a rollout of a lease is done, after which its version may have to stay."""
        if lease.grant.keep_version_s:
            newest = lease if self._evaluated is None else max(self._evaluated[0], lease, key=_lease_id)
            self._evaluated = newest, now + lease.grant.keep_version_s

    def release_version(self, lease_ids: Iterable[LeaseId], now: float) -> None:
        """Let the version go if its newest lease is among these, or it has stayed long enough."""
        if self._evaluated is not None:
            lease, until_s = self._evaluated
            if lease.grant.lease_id in lease_ids or now >= until_s:
                self._evaluated = None

    def why_not_servable(self, active: VersionKey) -> str:
        """Return in words which version the leases need that ``active`` may not serve; empty if there are none."""
        oldest = [lease.needs_version for lease in self if not lease.servable_by(active)]
        if not oldest:
            return ""
        return f"{len(oldest)} leases need version {min(oldest)} or newer; version {active.version} is active"

    def take(self, active: VersionKey, count: int) -> tuple[SlotWork, ...]:
        """Move up to ``count`` slots from waiting to generating, and return them."""
        work: list[SlotWork] = []
        for lease in self.servable(active):
            for index in list(lease.waiting)[: count - len(work)]:
                work.append(SlotWork(lease.grant, lease.waiting.pop(index)))
                lease.generating.add(index)
            if len(work) == count:
                break
        self._expiry_known = False
        return tuple(work)

    def generated(self, lease_id: LeaseId, sample_index: int) -> HeldLease | None:
        """Note that a slot is generated; return its lease, or None if the lease was given up meanwhile."""
        lease = self._held.get(lease_id)
        if lease is None or sample_index not in lease.generating:
            return None
        lease.generating.remove(sample_index)
        self.unfinished -= 1
        if not lease.unfinished:
            self._close(lease_id)
        return lease

    def skip(self, lease_id: LeaseId, sample_index: int) -> None:
        """Remove a waiting slot that need not be generated."""
        lease = self._held[lease_id]
        del lease.waiting[sample_index]
        self.unfinished -= 1
        self._expiry_known = False
        if not lease.unfinished:
            self._close(lease_id)

    def expire(self, now: float) -> int:
        """Give up slots not begun before their lease's end, and those still being generated one period later.

        Returns:
            The number of slots that were given up.
        """
        if now < (self._next_expiry_s if self._expiry_known else self.next_expiry_s()):
            return 0
        given_up = 0
        for lease_id, lease in list(self._held.items()):
            if now < lease.expires_s:
                continue
            given_up += len(lease.waiting)
            lease.waiting.clear()
            if now >= lease.gone_s:
                given_up += len(lease.generating)
                lease.generating.clear()
            if not lease.unfinished:
                self._close(lease_id)
        self.unfinished -= given_up
        self._expiry_known = False
        return given_up

    def give_up(self, lease_ids: Iterable[LeaseId]) -> int:
        """Discard leases and the results still to come; return how many of their slots were unfinished."""
        given_up = 0
        for lease_id in lease_ids:
            lease = self._held.get(lease_id)
            if lease is not None:
                given_up += lease.unfinished
                self._close(lease_id)
        self.unfinished -= given_up
        return given_up

    def ids_where(self, unwanted: Callable[[HeldLease], bool]) -> tuple[LeaseId, ...]:
        """Return the ids of the leases for which ``unwanted`` holds, oldest first."""
        return tuple(lease_id for lease_id, lease in self._held.items() if unwanted(lease))

    def next_expiry_s(self) -> float:
        """Return when ``expire`` next gives up a slot; infinity if never."""
        if not self._expiry_known:
            times = [lease.expires_s if lease.waiting else lease.gone_s for lease in self._held.values()]
            self._next_expiry_s, self._expiry_known = min(times, default=math.inf), True
        return self._next_expiry_s

    def _close(self, lease_id: LeaseId) -> None:
        del self._held[lease_id]
        self._expiry_known = False
        self._closed[lease_id] = None
        if len(self._closed) > _CLOSED_IDS_MAX:
            del self._closed[next(iter(self._closed))]
