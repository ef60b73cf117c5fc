"""Decide what a worker does next: take leases, generate batches slice by slice, upload, and swap versions.

Invariants, checked by tests: no slot is generated twice under one lease; the active version only rises; a finished
rollout is kept until its verdict or until its lease is too old, and is then counted; the rollouts held are bounded; a
drain ends.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import assert_never

from peer.worker.core.events import (
    Action,
    ActivationChanged,
    ContinueBatch,
    EndBatch,
    Event,
    Finish,
    FinishRequested,
    GenerateBatch,
    LeasesGranted,
    LeasesRevoked,
    ReportVersionHeld,
    RequestWork,
    Rest,
    ReturnLeases,
    RolloutsDropped,
    SendPartials,
    SessionLost,
    SessionOpened,
    SliceGenerated,
    StopRequested,
    Tick,
    UploadAnswered,
    UploadFailed,
    UploadRollouts,
    VersionActivated,
    VersionAnnounced,
    VersionKey,
    VersionLoaded,
    VersionReplaced,
    VersionVerified,
)
from peer.worker.core.lease_book import HeldLease, LeaseBook
from peer.worker.core.pacing import PARTIALS_AT_ONCE_MAX, BatchPatience, PartialPace, SlotsAsked
from peer.worker.core.pause_reasons import Halt
from peer.worker.core.running_batch import RunningBatch, finished_by_prefix, fits_prefixes, rollout_of
from peer.worker.core.spool import Spool, counted
from peer.worker.core.status import GenerationSpeed, PeerState, Receiving, WorkerStatus
from peer.worker.core.version_swap import VersionSwap
from rollcast.wire.ids import LeaseId
from rollcast.wire.rollouts import LeaseGrant, Rollout
from rollcast.wire.version_swap import AtVersionSwap

HELD_BATCHES_MAX = 8  # batches of slots held at most, whatever the coordinator allows
SPOOL_BATCHES = 16  # finished batches kept while the coordinator is unreachable
DRAIN_SLICE_S = 0.7  # how much of the 2 s that a stopping worker has the running slice may take
DRAIN_UPLOAD_S = 1.0  # how much that slice and the uploads may take together


class WorkerCore:
    """A worker's decisions; ``handle`` takes an event and returns the actions to carry out.

    Args:
        concurrent_rollouts: rollouts that the engine generates together.
        slice_tokens: tokens of one slice at most: stopping and swapping wait for a slice to end.
        slice_s: seconds that one slice should take at most.
        spool_bytes_max: memory of finished rollouts from which on no batch begins.
    """

    def __init__(
        self,
        *,
        concurrent_rollouts: int,
        slice_tokens: int = 256,
        slice_s: float = 0.5,
        spool_bytes_max: int = 256 << 20,
    ) -> None:
        self._batch_slots = concurrent_rollouts
        self._held_slots_wanted = concurrent_rollouts
        self._speed = GenerationSpeed(slice_tokens=slice_tokens, slice_s=slice_s)
        self._spool_max = concurrent_rollouts * SPOOL_BATCHES
        self._spool_bytes_max = spool_bytes_max
        self._book = LeaseBook()
        self._spool = Spool()
        self._swap = VersionSwap()
        self._batch: RunningBatch | None = None
        self._batch_id = 0
        self._abandoned: int | None = None  # a batch that was given up while the engine still generates a slice of it
        self._patience = BatchPatience()
        self._connected = False
        self._last_loss = ""
        self._slots_asked = SlotsAsked()
        self._partial_pace = PartialPace()
        self._at_swap: AtVersionSwap = "finish"
        self._halt = Halt()
        self._finished = False
        self.accepted, self.dropped = 0, Counter[str]()

    @property
    def finished(self) -> bool:
        """Return whether the drain has ended: no further actions follow."""
        return self._finished

    @property
    def held_leases(self) -> list[LeaseId]:
        """Return every lease of which a rollout may still be uploaded."""
        return sorted({*self._book.ids_where(lambda _: True), *self._spool.lease_ids()})

    def handle(self, event: Event, now: float) -> list[Action]:
        """Apply an event at ``now`` in monotonic seconds; return the actions to carry out, in order."""
        if self._finished:
            return []
        actions = self._apply(event, now)
        expired = self._book.expire(now) + self._spool.expire(now)
        if expired:
            actions += self._drop("lease_expired", expired)
        self._book.release_version((), now)
        actions += self._swap_version(now) if self._halt.may_generate else self._interrupt(now)
        if self._batch is not None:
            actions += self._continue_batch(self._batch, now)
        if self._batch is None:
            actions += self._generate(now)
        if self._connected:
            actions += self._upload(now)
            actions += self._ask_for_work()
        if self._halt.stopping or self._halt.finishing:
            actions += self._end_drain(now)
        return actions

    def next_wake_s(self) -> float | None:
        """Return when a Tick is due, on the clock of ``now``; None if only an event changes anything."""
        if self._finished:
            return None
        wake_s = min(self._book.next_expiry_s(), self._book.kept_until_s())
        wake_s = min(wake_s, self._spool.next_wake_s() if self._connected else math.inf)
        if not self._halt.may_generate and self._batch is not None:
            wake_s = min(wake_s, self._halt.since_s + DRAIN_SLICE_S)
        elif self._halt.stopping:
            wake_s = min(wake_s, self._halt.since_s + DRAIN_UPLOAD_S)
        active = self._swap.active
        if active is not None and self._batch is None and self._can_begin():
            for lease in self._book.servable(active)[:1]:
                wake_s = min(wake_s, self._patience.until_s(lease.received_s))
        return None if wake_s == math.inf else wake_s

    def status(self, now: float, receiving: Receiving | None = None) -> WorkerStatus:
        """Return the state and its reason in words, and the counters."""
        return WorkerStatus(*self._state(receiving), self._swap.active, self._speed.tokens, self._speed.per_second(now))

    # ------------------------------------------------------------ events

    def _apply(self, event: Event, now: float) -> list[Action]:
        match event:
            case SessionOpened():
                return self._opened(event, now)
            case SessionLost():
                self._connected, self._last_loss = False, event.reason
            case LeasesGranted():
                return self._grant(event, now)
            case LeasesRevoked():
                self._book.release_version(event.lease_ids, now)
                return self._drop("revoked", self._book.give_up(event.lease_ids) + self._spool.revoke(event.lease_ids))
            case VersionAnnounced():
                self._swap.announced(event.key)
            case VersionVerified():
                self._swap.verified(event.key)
                return [ReportVersionHeld(event.key)] if self._connected else []
            case VersionLoaded():
                self._swap.loaded(event.key)
            case VersionReplaced():
                self._swap.replaced(event.key)
            case VersionActivated():
                return self._activated(event.key)
            case SliceGenerated():
                return self._slice_generated(event, now)
            case UploadAnswered():
                return self._upload_answered(event, now)
            case UploadFailed():
                self._spool.failed(event.upload_id, now + event.retry_after_s)
            case Rest():
                self._halt.rest(event.reason, event.state, now)
            case FinishRequested():
                self._halt.finishing, self._halt.ends = event.reason, event.ends
            case ActivationChanged():
                self._halt.standby = "" if event.active else event.reason or "switched off"
            case StopRequested():
                return self._begin_drain(event.reason, now)
            case Tick():
                pass
            case _:
                assert_never(event)
        return []

    def _opened(self, event: SessionOpened, now: float) -> list[Action]:
        self._connected, self._slots_asked = True, SlotsAsked()
        self._halt.standby = ""  # the coordinator repeats it if it still holds
        self._held_slots_wanted = int(self._batch_slots * max(1.0, min(event.held_batches, HELD_BATCHES_MAX)))
        self._partial_pace = PartialPace(event.partial_interval_s, now)
        self._at_swap = event.at_version_swap
        self._spool.retry_now()
        if self._batch is not None:
            self._batch.report_again()
        newest = self._swap.newest_verified
        return [] if newest is None else [ReportVersionHeld(newest)]

    def _grant(self, event: LeasesGranted, now: float) -> list[Action]:
        refused: dict[str, list[LeaseId]] = {}
        for grant in event.leases:
            self._slots_asked.granted(len(grant.slots))
            if self._book.knows(grant.lease_id):
                continue
            reason = self._why_refused(grant)
            if reason:
                refused.setdefault(reason, []).append(grant.lease_id)
            else:
                self._add(grant, now)
        return [ReturnLeases(tuple(lease_ids), reason) for reason, lease_ids in refused.items()]

    def _why_refused(self, grant: LeaseGrant) -> str:
        # Leases may cross the last request on the way, so up to twice the slots that are wanted are accepted.
        held = self._book.unfinished + len(grant.slots)
        if not self._halt.takes_work:
            return self._halt.in_words
        if held > 2 * self._held_slots_wanted or held + len(self._spool) > self._spool_max:
            return "more than requested"
        if self._swap.active is not None and grant.epoch < self._swap.active.epoch:
            return "their epoch is over"
        if self._is_behind(grant, self._swap.active):
            return "they evaluate a version that is not active any more"
        return "" if fits_prefixes(grant) else "their prefixes are of another epoch or too old"

    def _is_behind(self, grant: LeaseGrant, active: VersionKey | None) -> bool:
        """Whether the lease evaluates a version before the active one: versions only rise."""
        return grant.kind == "evaluation" and active is not None and grant.oldest_useful_version < active.version

    def _add(self, grant: LeaseGrant, now: float) -> None:
        lease = self._book.add(grant, now)
        for slot in grant.slots:
            reason = finished_by_prefix(slot, grant)
            if reason is not None:
                self._spool.add(rollout_of(grant, slot, (), reason, 0.0), lease.gone_s)
                self._book.skip(grant.lease_id, slot.sample_index)

    def _activated(self, key: VersionKey) -> list[Action]:
        self._swap.activated(key)
        known = self._swap.newest_known or key

        def out_of_reach(lease: HeldLease) -> bool:
            grant = lease.grant
            if grant.epoch < key.epoch or self._is_behind(grant, key):
                return True
            return lease.needs_version > known.version

        reason = f"no version here is useful for them: version {key.version} is active"
        return self._return_leases(self._book.ids_where(out_of_reach), reason)

    def _slice_generated(self, event: SliceGenerated, now: float) -> list[Action]:
        batch = self._batch
        if event.batch_id == self._abandoned:
            self._abandoned = None
        if batch is None or batch.batch_id != event.batch_id:
            return []
        tokens = sum(item.segment.token_count for item in event.added if item.segment is not None)
        batch.keep(self._book.is_generating)
        finished, token_s = batch.end_slice(event.added, now, event.versions_free)
        self._speed.count(tokens, token_s, now)
        for rollout in finished:
            self._spool_rollout(rollout, now)
        if not len(batch):
            return self._end_batch(batch, now)
        if not self._partial_pace.is_due(now) or not self._connected or not self._halt.may_generate:
            return []
        partials = batch.partials(PARTIALS_AT_ONCE_MAX)
        self._partial_pace.sent(len(partials), now)
        return [SendPartials(partials)]

    def _spool_rollout(self, rollout: Rollout, now: float) -> None:
        lease = self._book.generated(rollout.lease_id, rollout.sample_index)
        if lease is not None:
            self._book.keep_version(lease, now)
            self._spool.add(rollout, lease.gone_s)

    def _upload_answered(self, event: UploadAnswered, now: float) -> list[Action]:
        answered = self._spool.answered(event.upload_id, event.verdicts, now + event.retry_after_s)
        accepted, refused = counted(answered)
        self.accepted += accepted
        return [action for reason, count in sorted(refused.items()) for action in self._drop(reason, count)]

    def _begin_drain(self, reason: str, now: float) -> list[Action]:
        if not self._halt.stop(reason, now):
            return []
        self._spool.retry_now()
        return [*self._ask_for_work(), *self._return_idle_leases()]

    def _return_idle_leases(self) -> list[Action]:
        """Return the leases without rollouts in flight. Returning a lease ends it, so the others wait for uploads."""
        busy = self._spool.lease_ids() | (set() if self._batch is None else self._batch.lease_ids())
        idle = self._book.ids_where(lambda lease: lease.grant.lease_id not in busy)
        return self._return_leases(idle, self._halt.in_words)

    # ------------------------------------------------------------ what follows

    def _interrupt(self, now: float) -> list[Action]:
        """End the batch if the worker must stop generating, once its slice has ended or takes too long; keep its
        tokens.
        """
        batch = self._batch
        if batch is None:
            return self._return_idle_leases() if len(self._book) else []
        if batch.slice_running and now < self._halt.since_s + DRAIN_SLICE_S:
            return []
        self._batch, self._abandoned = None, batch.batch_id if batch.slice_running else None
        for rollout in batch.interrupted(now):
            self._spool_rollout(rollout, now)
        return [EndBatch(batch.batch_id), *self._return_idle_leases()]

    def _swap_version(self, now: float) -> list[Action]:
        batch = self._batch
        may_swap = self._at_rest or (batch is not None and not batch.slice_running and self._may_renew(batch))
        active, loaded = self._swap.active, self._swap.waiting
        if active is None or loaded is None:
            return self._swap.step(may_swap)
        # A version that is to be evaluated here stays until that is done, or its leases expire.
        return self._swap.step(
            may_swap and not self._book.evaluates(active, now), not self._book.evaluates(loaded, now)
        )

    def _may_renew(self, batch: RunningBatch) -> bool:
        """Return whether a running batch may take a newer version: its rollouts change, or end under theirs."""
        return bool(batch.versions_free) if self._at_swap == "finish" else batch.may_renew()

    def _continue_batch(self, batch: RunningBatch, now: float) -> list[Action]:
        active = self._swap.active
        if batch.slice_running or active is None or self._swap.activating:
            return []
        batch.keep(self._book.is_generating)
        if not len(batch):
            return self._end_batch(batch, now)
        # If the engine has rollouts of one version at a time, these must end before the swap, and none is added.
        drains = self._at_swap == "finish" and batch.versions_free is None
        swap_is_near = self._swap.waits and not self._book.evaluates(active, now)
        fill = self._may_begin() and not (drains and swap_is_near)
        more = self._book.take(active, self._batch_slots - len(batch)) if fill else ()
        renew: AtVersionSwap | None = None
        if batch.key != active:
            # With "finish" versions are swapped at rest, or where another has room; unless the rule has just changed.
            renew = self._at_swap if self._at_swap != "finish" or batch.versions_free else "continue"
        batch.begin_slice(active, now, more)
        return [ContinueBatch(batch.batch_id, self._speed.next_slice_tokens(), renew, more)]

    def _may_begin(self) -> bool:
        return self._halt.may_generate and not self._spool.is_full(self._spool_bytes_max)

    def _end_batch(self, batch: RunningBatch, now: float) -> list[Action]:
        self._batch = None
        self._patience.ended(batch.begun_s, now, connected=self._connected)
        return [EndBatch(batch.batch_id)]

    @property
    def _at_rest(self) -> bool:
        return self._batch is None and self._abandoned is None

    def _can_begin(self) -> bool:
        swap = self._swap
        return self._at_rest and swap.active is not None and not swap.activating and self._may_begin()

    def _generate(self, now: float) -> list[Action]:
        active = self._swap.active
        if active is None or not self._can_begin():
            return []
        servable = self._book.servable(active)
        slots = sum(len(lease.waiting) for lease in servable)
        more_may_come = slots < self._batch_slots and self._halt.takes_work
        if not slots or (more_may_come and now < self._patience.until_s(servable[0].received_s)):
            return []
        work = self._book.take(active, self._batch_slots)
        self._batch_id += 1
        self._batch = RunningBatch(self._batch_id, work, active, now)
        self._partial_pace.began(now)
        return [GenerateBatch(self._batch_id, work, self._speed.next_slice_tokens())]

    def _upload(self, now: float) -> list[Action]:
        uploads: list[Action] = []
        while (upload := self._spool.start_upload(now)) is not None:
            uploads.append(UploadRollouts(*upload))
        return uploads

    def _ask_for_work(self) -> list[Action]:
        free = self._free_slots()
        return [RequestWork(free)] if self._connected and self._slots_asked.is_news(free) else []

    def _free_slots(self) -> int:
        if self._swap.active is None or not self._halt.takes_work or self._spool.is_full(self._spool_bytes_max):
            return 0
        return max(0, min(self._held_slots_wanted, self._spool_max - len(self._spool)) - self._book.unfinished)

    def _end_drain(self, now: float) -> list[Action]:
        if not self._halt.stopping:
            held = self._batch is not None or self._book.unfinished or len(self._spool)
            if held or not self._halt.ends:
                return []
            self._halt.stop(self._halt.finishing, now)
        unsent = self._batch is not None or len(self._spool) > 0
        if self._connected and unsent and now < self._halt.since_s + DRAIN_UPLOAD_S:
            return []
        self._finished = True
        actions = self._drop("stopped", self._spool.clear())
        actions += self._return_leases(self._book.ids_where(lambda _: True), self._halt.in_words)
        return [*actions, Finish(self._halt.stopping)]

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
        if not self._halt.takes_work:
            halted = self._halt.status(unfinished=self._book.unfinished, unsent=len(self._spool))
            if halted is not None:
                return halted
        if self._batch is not None:
            count = len(self._batch)
            many = "" if count == 1 else "s"
            return "generating", f"{count} rollout{many} with version {self._batch.key.version}"
        if receiving is not None:
            return "receiving", receiving.in_words
        if self._swap.active is None:
            return "starting", self._swap.why_not_active()
        if self._halt.standby:
            return "standby", self._halt.standby
        return "idle", self._why_idle(self._swap.active)

    def _why_idle(self, active: VersionKey) -> str:
        if not self._connected:
            return f"no session with the coordinator: {self._last_loss or 'not reached yet'}"
        if self._free_slots() == 0 and self._book.unfinished < self._held_slots_wanted:
            return f"{len(self._spool)} finished rollouts wait for the coordinator's verdict"
        return self._book.why_not_servable(active) or "nothing to do now: the learner has all it can use"
