"""What a run's durable store does for the coordinator, whatever keeps it: SQLite, memory in the simulator, a server.

tests/coordinator/ledger/store_conformance.py says the same in tests that each store passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.core.events.actions import (
    CloseAttempt,
    CloseGroup,
    Note,
    RecordAttempt,
    RecordBatch,
    RecordEpoch,
    RecordGroup,
    StoreRollout,
)
from coordinator.core.events.restored import RestoredFinished, RestoredGroup
from coordinator.ledger.sql_invites import StoredInvite
from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import Epoch, GroupId, PeerId, RolloutId, Step, Version
from rollcast.wire.proto import rollcast_pb2 as pb


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One rollout of a recorded batch, with what the learner needs beside it."""

    rollout_id: RolloutId
    group_id: GroupId
    prompt_token_ids: tuple[int, ...]
    rollout: pb.Rollout
    reward: float
    exact: bool


@dataclass(frozen=True, slots=True)
class ProblemReward:
    """Moving figures of the rewards of one problem's rollouts; see coordinator.tasks.volatility."""

    problem_id: str
    rollouts: int
    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version as it was announced: serialized pb.VersionAnnouncement."""

    epoch: Epoch
    version: Version
    announcement: bytes


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Attempts by what became of them: issued = trained + open + the sum of dropped."""

    issued: int
    accepted: int
    trained: int
    open: int
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HighWater:
    """Largest ids ever in use; 0 where there were none."""

    group_id: GroupId
    rollout_id: RolloutId


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one short transaction compacted."""

    groups: int
    versions: int
    took_s: float  # for which other changes waited


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """One entry of the run's story."""

    order: int
    at_unix_s: float
    kind: str
    subject: str
    detail: str
    cause: str


class RunStore(Protocol):
    """The durable store of one run.

    Every method that returns a future has made its change, durably, when the future is done. Changes are made in the
    order of the calls, whether or not the caller waits. A change that contradicts what is stored fails with StoreError
    and changes nothing; a store that can no longer be written fails every later call, and ``failed`` returns.
    """

    async def close(self) -> None:
        """Make what was asked for durable and let go of the store."""
        ...

    async def failed(self) -> StoreError:
        """Returns the error once the store can no longer be written; waits for as long as it can."""
        ...

    # ---------------------------------------------------------------- groups, attempts, rollouts

    def record_group(self, action: RecordGroup, problem_json: str) -> asyncio.Future[None]:
        """A prompt group was opened."""
        ...

    def close_group(self, action: CloseGroup) -> asyncio.Future[None]:
        """A group was dropped; fails if an attempt of it is neither trained nor dropped."""
        ...

    def record_attempt(self, action: RecordAttempt) -> asyncio.Future[None]:
        """A slot was issued. Fails if this (lease, sample) was ever issued before, if its group is over or not known,
        and if two attempts at the slot are under way."""
        ...

    def close_attempt(self, action: CloseAttempt) -> asyncio.Future[None]:
        """An attempt was dropped; fails if it is unknown, dropped or trained.

        One that lost to another attempt at its slot is dropped as ``late_duplicate`` when the other one's rollout is
        stored; to say so once more is no error.
        """
        ...

    def store_rollouts(self, actions: Sequence[StoreRollout]) -> asyncio.Future[None]:
        """Store all or none, and close their slots in the same transaction.

        Fails if an attempt is not open: never issued, filled, dropped, trained, or older than what is still kept.
        """
        ...

    def record_score(
        self,
        rollout_id: RolloutId,
        reward: float,
        *,
        exact: bool,
        error: str = "",
        problem: ProblemReward | None = None,
    ) -> asyncio.Future[None]:
        """A stored rollout was scored, once; ``problem``: with it, the figures of its problem are replaced."""
        ...

    def problem_rewards(self) -> asyncio.Future[list[ProblemReward]]:
        """The figures of every problem that were recorded, by problem id."""
        ...

    def rollout(self, rollout_id: RolloutId) -> asyncio.Future[pb.Rollout | None]:
        """A stored rollout's body; None if there is none, or it is older than what is kept."""
        ...

    def open_groups(self) -> asyncio.Future[list[RestoredGroup]]:
        """Every group that is neither trained nor dropped, in order of ids; live attempts in order of their leases."""
        ...

    def finished_attempts(self, count: int) -> asyncio.Future[list[RestoredFinished]]:
        """The newest attempts that are trained or dropped and still kept, in order of their leases."""
        ...

    def open_problems(self) -> asyncio.Future[list[str]]:
        """The problems of the open groups, as JSON."""
        ...

    # ---------------------------------------------------------------- batches, epochs, versions

    def record_batch(self, action: RecordBatch) -> asyncio.Future[None]:
        """All or nothing; its groups are over. Fails if the step has a batch, if a rollout is trained, dropped or not
        scored, or if it leaves a part of a group open."""
        ...

    def record_epoch(self, action: RecordEpoch) -> asyncio.Future[None]:
        """An epoch and its empty batches; fails if it is not newer than all others or one of the steps has a batch."""
        ...

    def epochs(self) -> asyncio.Future[list[RecordEpoch]]:
        """Every epoch that was recorded, oldest first; the first one of a run, 0, is not recorded."""
        ...

    def batch_size(self, step: Step) -> asyncio.Future[int]:
        """Rollouts in the recorded batch; 0 if there is none, too. Fails if it was compacted."""
        ...

    def batch(self, step: Step, first: int = 0, count: int | None = None) -> asyncio.Future[list[BatchEntry]]:
        """The recorded batch in its order, or ``count`` entries from ``first`` on; empty if there is none, too.

        Batches are large and everything else waits while one is read: take them in parts. Fails if it was compacted.
        """
        ...

    def recorded_batches(self) -> asyncio.Future[int]:
        """One more than the newest step with a recorded batch, empty ones included."""
        ...

    def record_version(self, epoch: Epoch, version: Version, announcement: bytes) -> asyncio.Future[bool]:
        """Store an announcement; gives False if the same one is stored, fails if another one is."""
        ...

    def version(self, version: Version) -> asyncio.Future[StoredVersion | None]:
        """The announcement of this version in the newest epoch that has it."""
        ...

    def newest_version(self) -> asyncio.Future[StoredVersion | None]:
        """The newest announcement of the newest epoch that has one."""
        ...

    def newest_versions(self, count: int) -> asyncio.Future[list[StoredVersion]]:
        """At most this many announcements, those of the newest epoch first, in it the newest first."""
        ...

    # ---------------------------------------------------------------- invites, figures, facts, story

    def create_invite(
        self, token_hash: bytes, role: str, *, quota: int, expires_unix_s: float, note: str = ""
    ) -> asyncio.Future[None]:
        """An invite for ``quota`` identities. Only the token's hash is stored."""
        ...

    def invites(self, limit: int) -> asyncio.Future[list[StoredInvite]]:
        """The newest ones, newest first."""
        ...

    def revoke_invite(self, invite_id: str) -> asyncio.Future[bool]:
        """Nobody may join with it any more; False where it is not there or revoked already."""
        ...

    def claim_invite(self, token_hash: bytes, role: str, peer_id: PeerId, *, now_unix_s: float) -> asyncio.Future[None]:
        """Use up one of the invite's quota, once an identity; fails with JoinRefused."""
        ...

    def check_invite(self, token_hash: bytes, *, now_unix_s: float) -> asyncio.Future[None]:
        """That it may still be used by those who have it, and uses nothing up; fails with JoinRefused."""
        ...

    def record_step(self, step: Step, figures: Mapping[str, float]) -> asyncio.Future[None]:
        """Figures of a learner step; those of a replay of it change nothing."""
        ...

    def steps(self) -> asyncio.Future[list[tuple[Step, dict[str, float]]]]:
        """Figures of every step that is kept, in order."""
        ...

    def record_event(self, kind: str, subject: str, detail: str, *, cause: str) -> asyncio.Future[None]:
        """Append to the run's story; fails without a cause."""
        ...

    def record_note(self, note: Note, *, cause: str) -> asyncio.Future[None]:
        """Append the core's note to the run's story."""
        ...

    def set_meta(self, key: str, value: str) -> asyncio.Future[None]:
        """Keep one fact about the run, such as its run_id."""
        ...

    def get_meta(self, key: str) -> asyncio.Future[str | None]:
        """A fact kept by set_meta."""
        ...

    # ---------------------------------------------------------------- sums over the whole run, compacted rows included

    def counts(self) -> asyncio.Future[StoreCounts]:
        """Attempts by what became of them."""
        ...

    def trained_ages(self) -> asyncio.Future[dict[int, int]]:
        """Rollouts in batches, counted by their age in learner steps."""
        ...

    def mixture_position(self) -> asyncio.Future[str | None]:
        """Where the prompt mixture stands after the newest group."""
        ...

    def high_water(self) -> asyncio.Future[HighWater]:
        """Largest ids ever in use, to go on above them."""
        ...


class CompactingStore(RunStore, Protocol):
    """A store on a disk, which must not grow with the run's length. Sums, largest ids and refusals stay exact."""

    def compact(self, horizon: Step, *, groups_max: int, steps_kept: int) -> asyncio.Future[Compacted]:
        """Delete some of what was over before step ``horizon``, and keep the sums of it.

        From then on batches of steps before the horizon cannot be read. An id that was ever used stays refused.
        """
        ...

    def oldest_events(self, count: int, *, kept: int) -> asyncio.Future[list[StoryEntry]]:
        """The oldest ``count`` entries of the story if ``kept`` newer ones are there, else none."""
        ...

    def delete_events(self, up_to: int) -> asyncio.Future[None]:
        """Entries up to this order are kept elsewhere now."""
        ...

    def give_back_pages(self) -> asyncio.Future[int]:
        """Give some unused space back to the file system; 0 if there is not much of it."""
        ...
