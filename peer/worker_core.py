"""What a worker does next: leases in, batches to generate, uploads out, versions swapped between batches. Pure.

Promises, checked by tests: no slot is generated twice under one lease; the active version only rises; a finished
rollout is kept until its verdict or until it is too late, and then counted; what is held is bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal, assert_never

from peer.lease_book import HeldLease, LeaseBook
from peer.spool import Spool
from peer.worker_events import (
    Action,
    ActivateVersion,
    BatchGenerated,
    Event,
    Finish,
    GenerateBatch,
    LeasesGranted,
    LeasesRevoked,
    LoadVersion,
    ReportVersionHeld,
    RequestWork,
    ReturnLeases,
    RolloutsDropped,
    SessionLost,
    SessionOpened,
    StopRequested,
    Tick,
    UploadAnswered,
    UploadFailed,
    UploadRollouts,
    VersionActivated,
    VersionHeardOf,
    VersionKey,
    VersionLoaded,
    VersionVerified,
)
from rollcast.wire.ids import LeaseId

PeerState = Literal["starting", "generating", "idle", "receiving", "draining"]

HELD_BATCHES_MAX = 8  # batches of slots held at most, whatever the coordinator allows
SPOOL_BATCHES = 16  # finished batches kept while the coordinator is away
FULL_BATCH_WAIT_S = 0.02  # leases arrive in bursts: a batch that is not full waits this long for the rest of one
DRAIN_UPLOAD_S = 1.0  # of the 2 s that a stopping worker has, what uploads may take
RATE_WINDOW_S = 10.0  # tokens per second are averaged over this long


@dataclass(frozen=True, slots=True)
class Receiving:
    """Progress of the version that the relay is receiving."""

    version: int
    chunks_have: int
    chunks_total: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a heartbeat says."""

    state: PeerState
    reason: str
    active: VersionKey | None
    tokens_generated: int
    tokens_per_second: float


class WorkerCore:
    """A worker's decisions; ``handle`` is told what happened and says what to do."""

    def __init__(self, *, concurrent_rollouts: int) -> None:
        self._batch_slots = concurrent_rollouts
        self._held_slots_wanted = concurrent_rollouts
        self._spool_max = concurrent_rollouts * SPOOL_BATCHES
        self._book = LeaseBook()
        self._spool = Spool()
        self._connected = False
        self._last_loss = ""
        # What the coordinator believes that we can take: our last word less what it granted since.
        self._free_slots_told: int | None = None
        self._active: VersionKey | None = None
        self._newest_heard_of: VersionKey | None = None
        self._newest_verified: VersionKey | None = None
        self._loading: VersionKey | None = None
        self._loaded: VersionKey | None = None
        self._activating = False
        self._batch_id = 0
        self._batch_slots_running = 0
        self._stopping: str | None = None
        self._drain_until_s = 0.0
        self._finished = False
        self._recent_tokens: deque[tuple[float, int]] = deque()
        self.accepted = 0
        self.dropped: Counter[str] = Counter()
        self.tokens_generated = 0

    @property
    def finished(self) -> bool:
        """Drained: nothing more will be asked for."""
        return self._finished

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take an event in; ``now`` is monotonic seconds.

        Returns:
            what to do, in order.
        """
        if self._finished:
            return []
        actions = self._take_in(event, now)
        actions += self._expire(now)
        actions += self._swap_version()
        actions += self._generate(now)
        actions += self._upload(now)
        actions += self._ask_for_work()
        actions += self._end_drain(now)
        return actions

    def next_wake_s(self) -> float | None:
        """When a Tick is due, on the clock of ``now``; None: only an event changes anything."""
        if self._finished:
            return None
        times = [self._book.next_expiry_s(), self._spool.next_wake_s() if self._connected else None]
        if self._stopping is not None:
            times.append(self._drain_until_s)
        if self._can_generate() and self._active is not None:
            times += [lease.received_s + FULL_BATCH_WAIT_S for lease in self._book.servable(self._active)[:1]]
        return min((time for time in times if time is not None), default=None)

    def status(self, now: float, receiving: Receiving | None = None) -> WorkerStatus:
        """State and reason in words, and the counters."""
        state, reason = self._state(receiving)
        while self._recent_tokens and self._recent_tokens[0][0] < now - RATE_WINDOW_S:
            self._recent_tokens.popleft()
        rate = sum(tokens for _, tokens in self._recent_tokens) / RATE_WINDOW_S
        return WorkerStatus(state, reason, self._active, self.tokens_generated, rate)

    # ------------------------------------------------------------ events

    def _take_in(self, event: Event, now: float) -> list[Action]:
        match event:
            case SessionOpened(held_batches):
                self._connected, self._free_slots_told = True, None
                self._held_slots_wanted = int(self._batch_slots * max(1.0, min(held_batches, HELD_BATCHES_MAX)))
                self._spool.retry_now()
                return [] if self._newest_verified is None else [ReportVersionHeld(self._newest_verified)]
            case SessionLost(reason):
                self._connected, self._last_loss = False, reason
            case LeasesGranted():
                return self._grant(event, now)
            case LeasesRevoked(lease_ids, _):
                return self._drop("revoked", self._book.give_up(lease_ids) + self._spool.revoke(lease_ids))
            case VersionHeardOf(key):
                self._newest_heard_of = _newer(key, self._newest_heard_of)
            case VersionVerified(key):
                self._newest_verified = _newer(key, self._newest_verified)
                return [ReportVersionHeld(key)] if self._connected else []
            case VersionLoaded(key):
                self._loading, self._loaded = None, key
            case VersionActivated(key):
                return self._activated(key)
            case BatchGenerated():
                return self._batch_generated(event, now)
            case UploadAnswered():
                return self._upload_answered(event, now)
            case UploadFailed(upload_id, _, retry_after_s):
                self._spool.failed(upload_id, now + retry_after_s)
            case StopRequested(reason):
                return self._begin_drain(reason, now)
            case Tick():
                pass
            case _:
                assert_never(event)
        return []

    def _grant(self, event: LeasesGranted, now: float) -> list[Action]:
        surplus = []
        for grant in event.leases:
            if self._free_slots_told is not None:
                self._free_slots_told = max(0, self._free_slots_told - len(grant.slots))
            if self._book.knows(grant.lease_id):
                continue
            # Leases may cross our last word on the way, so up to twice what we ask for is taken.
            held = self._book.unfinished + len(grant.slots)
            room = held <= 2 * self._held_slots_wanted and held + len(self._spool) <= self._spool_max
            if self._stopping is not None or not room:
                surplus.append(grant.lease_id)
            else:
                self._book.add(grant, now)
        if not surplus:
            return []
        return [ReturnLeases(tuple(surplus), "stopping" if self._stopping is not None else "more than asked for")]

    def _activated(self, key: VersionKey) -> list[Action]:
        self._active, self._loaded, self._activating = key, None, False
        known = max(filter(None, (key, self._newest_heard_of, self._newest_verified)))

        def out_of_reach(lease: HeldLease) -> bool:
            grant = lease.grant
            return grant.epoch < key.epoch or grant.oldest_useful_version > known.version

        lease_ids = self._book.ids_where(out_of_reach)
        return self._return_leases(lease_ids, f"no version here is useful for them: version {key.version} is active")

    def _batch_generated(self, event: BatchGenerated, now: float) -> list[Action]:
        self._batch_slots_running = 0
        useless = 0
        for rollout in event.rollouts:
            tokens = len(rollout.completion_token_ids)
            self.tokens_generated += tokens
            self._recent_tokens.append((now, tokens))
            lease = self._book.generated(rollout.lease_id, rollout.sample_index)
            if lease is None:
                useless += 1
                continue
            # A restarted coordinator extends live leases by one period, and takes a late result for an empty slot.
            self._spool.add(rollout, lease.expires_s + lease.grant.deadline_s)
        return self._drop("given_up_while_generating", useless)

    def _upload_answered(self, event: UploadAnswered, now: float) -> list[Action]:
        refused: Counter[str] = Counter()
        for verdict in self._spool.answered(event.upload_id, event.verdicts, now + event.retry_after_s):
            if verdict.accepted:
                self.accepted += 1
            else:
                refused[verdict.reason] += 1
        return [action for reason, count in sorted(refused.items()) for action in self._drop(reason, count)]

    def _begin_drain(self, reason: str, now: float) -> list[Action]:
        if self._stopping is not None:
            return []
        self._stopping, self._drain_until_s = reason, now + DRAIN_UPLOAD_S
        # Returning a lease ends it: those with finished rollouts are returned once these are uploaded.
        finished = self._spool.lease_ids()
        unfinished = self._book.ids_where(lambda lease: lease.grant.lease_id not in finished)
        return [*self._ask_for_work(), *self._return_leases(unfinished, f"stopping: {reason}")]

    # ------------------------------------------------------------ what follows

    def _expire(self, now: float) -> list[Action]:
        return self._drop("lease_expired", self._book.expire(now) + self._spool.expire(now))

    def _swap_version(self) -> list[Action]:
        if self._stopping is not None:
            return []
        if self._loaded is not None and not self._activating and not self._batch_slots_running:
            self._activating = True
            return [ActivateVersion(self._loaded)]
        newest = self._newest_verified
        if newest is None or self._loading is not None or self._loaded is not None:
            return []
        if self._active is not None and newest.version <= self._active.version:
            return []
        self._loading = newest
        return [LoadVersion(newest)]

    def _can_generate(self) -> bool:
        return (
            self._active is not None
            and self._stopping is None
            and not self._activating
            and not self._batch_slots_running
        )

    def _generate(self, now: float) -> list[Action]:
        if self._active is None or not self._can_generate():
            return []
        servable = self._book.servable(self._active)
        slots = sum(len(lease.waiting) for lease in servable)
        if not slots or (slots < self._batch_slots and now < servable[0].received_s + FULL_BATCH_WAIT_S):
            return []
        work = self._book.take(self._active, self._batch_slots)
        self._batch_id += 1
        self._batch_slots_running = len(work)
        return [GenerateBatch(self._batch_id, work)]

    def _upload(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self._connected and (upload := self._spool.start_upload(now)) is not None:
            actions.append(UploadRollouts(*upload))
        return actions

    def _ask_for_work(self) -> list[Action]:
        free = self._free_slots()
        if not self._connected or free == self._free_slots_told or (free == 0 and self._free_slots_told is None):
            return []
        self._free_slots_told = free
        return [RequestWork(free)]

    def _free_slots(self) -> int:
        if self._active is None or self._stopping is not None:
            return 0
        unfinished = self._book.unfinished
        room = self._spool_max - len(self._spool) - unfinished
        return max(0, min(self._held_slots_wanted - unfinished, room))

    def _end_drain(self, now: float) -> list[Action]:
        if self._stopping is None:
            return []
        if self._connected and len(self._spool) and now < self._drain_until_s:
            return []
        self._finished = True
        actions = self._drop("stopped", self._spool.clear())
        actions += self._return_leases(self._book.ids_where(lambda _: True), f"stopping: {self._stopping}")
        return [*actions, Finish(self._stopping)]

    def _return_leases(self, lease_ids: tuple[LeaseId, ...], reason: str) -> list[Action]:
        if not lease_ids:
            return []
        self.dropped["returned"] += self._book.give_up(lease_ids)
        return [ReturnLeases(lease_ids, reason)] if self._connected else []

    def _drop(self, reason: str, count: int) -> list[Action]:
        if not count:
            return []
        self.dropped[reason] += count
        return [RolloutsDropped(reason, count)]

    def _state(self, receiving: Receiving | None) -> tuple[PeerState, str]:
        if self._stopping is not None:
            return "draining", f"{self._stopping}; {len(self._spool)} finished rollouts to upload"
        if self._batch_slots_running and self._active is not None:
            return "generating", f"{self._batch_slots_running} rollouts with version {self._active.version}"
        if receiving is not None:
            have = f"{receiving.chunks_have} of {receiving.chunks_total} chunks"
            return "receiving", f"version {receiving.version}: {have}"
        if self._active is None:
            return "starting", self._why_not_active()
        return "idle", self._why_idle(self._active)

    def _why_not_active(self) -> str:
        if self._loading is not None:
            return f"loading version {self._loading.version} and compiling"
        if self._newest_heard_of is not None:
            return f"waiting for the chunks of version {self._newest_heard_of.version}"
        return "waiting for the first version to be announced"

    def _why_idle(self, active: VersionKey) -> str:
        if not self._connected:
            return f"the coordinator is away: {self._last_loss or 'not reached yet'}"
        if self._free_slots() == 0 and len(self._spool) >= self._spool_max - self._book.unfinished:
            return f"{len(self._spool)} finished rollouts wait for the coordinator's verdict"
        waiting = [lease.grant.oldest_useful_version for lease in self._book if not lease.servable_by(active)]
        if waiting:
            return f"{len(waiting)} leases need version {min(waiting)} or newer; version {active.version} is active"
        return "no lease; waiting for the coordinator's pacing"


def _newer(key: VersionKey, other: VersionKey | None) -> VersionKey:
    return key if other is None else max(key, other)
