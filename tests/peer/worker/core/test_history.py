"""Test the worker's invariants for any order of leases, slices, expiries, versions, verdicts and lost sessions."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from peer.worker.core.core import DRAIN_UPLOAD_S, SPOOL_BATCHES, WorkerCore
from peer.worker.core.events import (
    Action,
    ActivateVersion,
    ContinueBatch,
    EndBatch,
    GenerateBatch,
    LeasesGranted,
    LeasesRevoked,
    LoadVersion,
    RequestWork,
    Rest,
    SendPartials,
    SessionLost,
    SessionOpened,
    SliceGenerated,
    SliceTokens,
    SlotWork,
    StopRequested,
    Tick,
    UploadAnswered,
    UploadFailed,
    UploadRollouts,
    Verdict,
    VersionActivated,
    VersionKey,
    VersionLoaded,
    VersionVerified,
)
from peer.worker.core.spool import ROLLOUT_BYTES, TOKEN_BYTES
from rollcast.wire.ids import LeaseId
from rollcast.wire.rollouts import Rollout
from rollcast.wire.version_swap import AT_VERSION_SWAP, AtVersionSwap
from tests.peer.worker.core.worker_samples import drawn, grant, key, segment

Slot = tuple[int, int]
SPOOL_BYTES = 20 * ROLLOUT_BYTES
ROLLOUT_BYTES_MAX = ROLLOUT_BYTES + 100 * TOKEN_BYTES


class WorkerHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = WorkerCore(concurrent_rollouts=4, spool_bytes_max=SPOOL_BYTES)
        self.now = 0.0
        self.next_lease_id = 1
        self.connected = False
        self.generated: Counter[Slot] = Counter()
        self.batch: dict[Slot, SlotWork] = {}
        self.batch_key = key(0)
        self.slice: GenerateBatch | ContinueBatch | None = None
        self.drawing: Counter[Slot] = Counter()  # tokens so far, the prefix included
        self.finished: set[Slot] = set()
        self.prefix: dict[Slot, int] = {}
        self.told: dict[Slot, int] = {}  # what the coordinator knows; it forgets what was drawn with each session
        self.loading: list[Any] = []
        self.active_versions: list[VersionKey] = []
        self.uploads: dict[int, tuple[Rollout, ...]] = {}
        self.given: set[Slot] = set()
        self.resting = False

    def tell(self, event: Any) -> None:
        for action in self.core.handle(event, self.now):
            self.obey(action)

    def obey(self, action: Action) -> None:
        match action:
            case GenerateBatch(_, items, _):
                assert not self.batch, "one batch at a time"
                assert self.slice is None, "one slice at a time"
                assert not self.resting
                assert len(items) <= 4
                self.batch = {(item.lease.lease_id, item.slot.sample_index): item for item in items}
                self.generated.update(self.batch.keys())
                for slot, item in self.batch.items():
                    assert item.lease.oldest_useful_version <= self.active_versions[-1].version
                    assert item.lease.epoch == self.active_versions[-1].epoch
                    self.drawing[slot] = sum(len(part.token_ids) for part in item.slot.prefix)
                    self.told[slot] = self.prefix[slot] = self.drawing[slot]
                self.slice, self.batch_key = action, self.active_versions[-1]
            case ContinueBatch(_, _, renew):
                assert self.slice is None, "one slice at a time"
                assert not self.resting
                assert (renew is not None) == (self.batch_key != self.active_versions[-1])
                self.slice, self.batch_key = action, self.active_versions[-1]
            case EndBatch():
                self.batch = {}
            case SendPartials(partials):
                for partial in partials:
                    slot = (partial.lease_id, partial.sample_index)
                    assert partial.position == self.told[slot], "contiguous"
                    self.told[slot] += sum(len(part.token_ids) for part in partial.segments)
                    assert self.told[slot] <= self.drawing[slot]
            case UploadRollouts(upload_id, rollouts):
                assert self.connected
                assert upload_id not in self.uploads
                for made in rollouts:
                    assert len({part.epoch for part in made.segments}) == 1, "epochs do not mix"
                self.uploads[upload_id] = rollouts
            case LoadVersion() | ActivateVersion():
                assert not (isinstance(action, ActivateVersion) and self.slice), "swapped inside a slice"
                self.loading.append(action)
            case RequestWork(free_slots):
                assert self.connected
                assert 0 <= free_slots <= 8
            case _:
                pass

    @rule(
        count=st.integers(1, 4),
        slots=st.integers(1, 5),
        ahead=st.integers(0, 2),
        deadline_s=st.floats(0.1, 5.0),
        prefix=st.sampled_from([(), (8, 9), (8, 1)]),
    )
    def grant_leases(self, count: int, slots: int, ahead: int, deadline_s: float, prefix: tuple[int, ...]) -> None:
        newest = self.active_versions[-1] if self.active_versions else key(0)
        oldest = max(0, newest.version - 1 + ahead)
        parts = (segment(prefix, newest.version, epoch=newest.epoch),) if prefix else ()
        leases = tuple(
            grant(lease_id, slots, oldest_useful=oldest, deadline_s=deadline_s, epoch=newest.epoch, prefix=parts)
            for lease_id in range(self.next_lease_id, self.next_lease_id + count)
        )
        self.next_lease_id += count
        self.tell(LeasesGranted(leases))

    @precondition(lambda self: self.next_lease_id > 1)
    @rule(data=st.data())
    def grant_a_lease_again(self, data: st.DataObject) -> None:
        self.tell(LeasesGranted((grant(data.draw(st.integers(1, self.next_lease_id - 1))),)))

    @precondition(lambda self: self.next_lease_id > 1)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.integers(1, self.next_lease_id - 1))
        self.tell(LeasesRevoked((LeaseId(lease_id),), "test"))

    @rule(version=st.integers(0, 20))
    def verify_version(self, version: int) -> None:
        self.tell(VersionVerified(key(version, epoch=version // 8)))

    @precondition(lambda self: self.loading)
    @rule()
    def load_or_activate(self) -> None:
        action = self.loading.pop(0)
        if isinstance(action, LoadVersion):
            self.tell(VersionLoaded(action.key))
            return
        assert not self.active_versions or action.key > self.active_versions[-1]
        self.active_versions.append(action.key)
        self.tell(VersionActivated(action.key))

    @precondition(lambda self: self.slice is not None)
    @rule(data=st.data(), tokens=st.integers(1, 3))
    def draw_slice(self, data: st.DataObject, tokens: int) -> None:
        assert self.slice is not None
        news: list[SliceTokens] = []
        for slot, item in self.batch.items():
            if slot not in self.finished:
                ends = data.draw(st.booleans())
                self.drawing[slot] += tokens
                version, epoch = self.batch_key.version, self.batch_key.epoch
                news.append(drawn(item, (3,) * tokens, "stop" if ends else None, version=version, epoch=epoch))
                self.finished |= {slot} if ends else set()
        batch_id, self.slice = self.slice.batch_id, None
        self.tell(SliceGenerated(batch_id, tuple(news)))

    @precondition(lambda self: self.uploads)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        upload_id = data.draw(st.sampled_from(sorted(self.uploads)))
        verdicts = []
        for item in self.uploads.pop(upload_id):
            reason = data.draw(st.sampled_from(["", "fenced", "busy", "silence"]))
            if reason != "silence":
                verdicts.append(Verdict(item.lease_id, item.sample_index, reason == "", reason))
            if reason in ("", "fenced"):
                slot = (item.lease_id, item.sample_index)
                assert slot not in self.given, "uploaded again after its verdict"
                self.given.add(slot)
        self.tell(UploadAnswered(upload_id, tuple(verdicts), 0.2))

    @precondition(lambda self: self.uploads)
    @rule()
    def fail_upload(self) -> None:
        upload_id = next(iter(self.uploads))
        del self.uploads[upload_id]
        self.tell(UploadFailed(upload_id, "test", 0.2))

    @rule(connected=st.booleans(), at_swap=st.sampled_from(AT_VERSION_SWAP))
    def connect(self, connected: bool, at_swap: AtVersionSwap) -> None:
        if connected != self.connected:
            self.connected = connected
            self.told = dict(self.prefix)
            opened = SessionOpened(partial_interval_s=1.0, at_version_swap=at_swap)
            self.tell(opened if connected else SessionLost("test"))

    @rule(reason=st.sampled_from(["", "hot"]))
    def rest(self, reason: str) -> None:
        self.tell(Rest(reason))
        self.resting = bool(reason)

    @rule(seconds=st.floats(0.0, 3.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick())

    @invariant()
    def no_slot_is_generated_twice(self) -> None:
        assert all(count == 1 for count in self.generated.values())

    @invariant()
    def what_is_finished_is_kept_or_counted(self) -> None:
        # Rollouts whose prefix was complete were never drawn: they are told from the spool and the counts by `given`.
        dropped = sum(self.core.dropped.values())
        assert len(self.finished) <= self.core.accepted + len(self.core._spool) + dropped

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        assert self.core._book.unfinished <= 16
        assert len(self.core._spool) <= 4 * SPOOL_BATCHES
        assert self.core._spool.size_bytes <= SPOOL_BYTES + 16 * ROLLOUT_BYTES_MAX

    @invariant()
    def verdicts_and_counts_agree(self) -> None:
        assert self.core.accepted + self.core.dropped["fenced"] == len(self.given)

    def teardown(self) -> None:
        """Check that a drain ends, and that every rollout left behind is counted."""
        self.tell(StopRequested("test"))
        self.now += DRAIN_UPLOAD_S
        self.tell(Tick())
        assert self.core.finished
        assert len(self.core._spool) == self.core._book.unfinished == 0


TestWorkerHistory = WorkerHistory.TestCase
TestWorkerHistory.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
