"""Define what the coordinator needs of a run's durable store: SQLite or PostgreSQL, memory in the simulator.

Every store passes the tests in tests/coordinator/stores/store_conformance.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.core.events.actions import (
    CloseAttempt,
    CloseGroup,
    CommitTogether,
    DropTurns,
    Note,
    RecordAttempt,
    RecordBatch,
    RecordEpoch,
    RecordGroup,
    RecordQuarantine,
    StoreEpisode,
    StoreRollout,
    StoreTurn,
)
from coordinator.core.events.restored import RestoredFinished, RestoredGroup
from coordinator.ledger.sql_access import AccessStore
from coordinator.ledger.sql_invites import StoredInvite
from coordinator.tasks.checks.task import Score
from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import Epoch, GroupId, PeerId, RolloutId, Step, Version
from rollcast.wire.proto import rollcast_pb2 as pb


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One rollout of a recorded batch, with the prompt and reward that the learner needs."""

    rollout_id: RolloutId
    group_id: GroupId
    prompt_token_ids: tuple[int, ...]
    rollout: pb.Rollout
    reward: float
    exact: bool
    seed: int  # 64 bits, the slot's
    agents: int = 1  # of the group's games


@dataclass(frozen=True, slots=True)
class ProblemReward:
    """Moving mean and variance of the rewards of one problem's rollouts; see coordinator.tasks.volatility."""

    problem_id: str
    rollouts: int
    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version as it was announced; ``announcement`` is a serialized pb.VersionAnnouncement."""

    epoch: Epoch
    version: Version
    announcement: bytes


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Numbers of attempts by outcome: issued = trained + open + the sum of dropped."""

    issued: int
    accepted: int
    trained: int
    open: int
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HighWater:
    """The largest ids ever used; 0 if there were none."""

    group_id: GroupId
    rollout_id: RolloutId


@dataclass(frozen=True, slots=True)
class Compacted:
    """Numbers of rows that one short compacting transaction deleted, and its duration."""

    groups: int
    versions: int
    took_s: float  # seconds, for which other changes waited


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """One entry of the run's event log."""

    order: int
    at_unix_s: float
    kind: str
    subject: str
    detail: str
    cause: str


class RunStore(AccessStore, Protocol):
    """The durable store of one run.

    A method's future is done once its change is durable. Changes are made in the order of the calls, whether or not the
    caller waits. A change that contradicts what is stored fails with StoreError and changes nothing; attempts, rollouts
    and scores that are recorded directly after each other may be made together and then fail together. A store that can
    no longer be written fails every later call, and ``failed`` returns.
    """

    async def close(self) -> None:
        """Make every requested change durable and release the store."""
        ...

    async def failed(self) -> StoreError:
        """Wait until the store can no longer be written, and return the error."""
        ...

    # ---------------------------------------------------------------- groups, attempts, rollouts

    def record_group(self, action: RecordGroup, problem_json: str) -> asyncio.Future[None]:
        """Record a new prompt group."""
        ...

    def close_group(self, action: CloseGroup) -> asyncio.Future[None]:
        """Record that a group was dropped; fails if an attempt of it is neither trained nor dropped."""
        ...

    def record_attempt(self, action: RecordAttempt) -> asyncio.Future[None]:
        """Record that a slot was issued.

        Fails if this (lease, sample) was ever issued before, if its group is over or unknown, or if two attempts at the
        slot are open.
        """
        ...

    def close_attempt(self, action: CloseAttempt) -> asyncio.Future[None]:
        """Record that an attempt was dropped; fails if it is unknown, dropped or trained.

        When a slot's rollout is stored, the other attempt at the slot is dropped as ``late_duplicate``; dropping it
        again is no error.
        """
        ...

    def store_rollouts(self, actions: Sequence[StoreRollout]) -> asyncio.Future[None]:
        """Store all rollouts or none, and close their slots in the same transaction.

        Fails if an attempt is not open: never issued, filled, dropped, trained, or compacted.
        """
        ...

    def store_turn(self, action: StoreTurn) -> asyncio.Future[None]:
        """Store a turn of an episode; fails if its attempt is not open, or if it is not the next turn of its slot."""
        ...

    def drop_turns(self, action: DropTurns) -> asyncio.Future[None]:
        """Delete the turns of a slot whose episode begins anew."""
        ...

    def commit_together(self, action: CommitTogether, *, problem: ProblemReward | None = None) -> asyncio.Future[None]:
        """Make several changes, in order, in one transaction: all of them or none.

        ``problem``: what is known of the episodes' problem with their rewards, if there are episodes among them. One
        with a reward of 1 or more counts as right.
        """
        ...

    def store_episode(
        self, action: StoreEpisode, *, exact: bool, problem: ProblemReward | None = None
    ) -> asyncio.Future[None]:
        """Store the rollout of an episode that has ended with its score, in place of its turns; see store_rollouts."""
        ...

    def record_score(
        self, rollout_id: RolloutId, score: Score, problem: ProblemReward | None = None
    ) -> asyncio.Future[None]:
        """Record the score of a stored rollout, once; ``problem`` replaces the reward figures of its problem."""
        ...

    def problem_rewards(self) -> asyncio.Future[list[ProblemReward]]:
        """Return the recorded reward figures of every problem, ordered by problem id."""
        ...

    def rollout(self, rollout_id: RolloutId) -> asyncio.Future[pb.Rollout | None]:
        """Return a stored rollout; None if there is none, or it was compacted."""
        ...

    def open_groups(self) -> asyncio.Future[list[RestoredGroup]]:
        """Return every group that is neither trained nor dropped, ordered by id, its open attempts by lease."""
        ...

    def finished_attempts(self, count: int) -> asyncio.Future[list[RestoredFinished]]:
        """Return the newest ``count`` attempts that were trained or dropped and not compacted, ordered by lease."""
        ...

    def open_problems(self) -> asyncio.Future[list[str]]:
        """Return the problems of the open groups as JSON."""
        ...

    # ---------------------------------------------------------------- batches, epochs, versions

    def record_batch(self, action: RecordBatch) -> asyncio.Future[None]:
        """Record a batch, all or nothing, and close its groups.

        Fails if the step has a batch, if a rollout is trained, dropped or not scored, or if a slot of a group stays
        open.
        """
        ...

    def record_epoch(self, action: RecordEpoch) -> asyncio.Future[None]:
        """Record an epoch and its empty batches; fails if it is not the newest, or one of the steps has a batch."""
        ...

    def epochs(self) -> asyncio.Future[list[RecordEpoch]]:
        """Return every recorded epoch, oldest first; a run's first epoch, 0, is not recorded."""
        ...

    def record_quarantine(self, action: RecordQuarantine) -> asyncio.Future[None]:
        """Record an identity's quarantine; a later one of the same identity changes nothing."""
        ...

    def lift_quarantine(self, peer_id: PeerId) -> asyncio.Future[None]:
        """Delete the record of an identity's quarantine, if there is one."""
        ...

    def quarantines(self) -> asyncio.Future[list[RecordQuarantine]]:
        """Return every recorded quarantine, in the order of the identities."""
        ...

    def batch_size(self, step: Step) -> asyncio.Future[int]:
        """Return the number of rollouts in a recorded batch; 0 also if there is none. Fails if it was compacted."""
        ...

    def batch_parts(self, step: Step) -> asyncio.Future[dict[str, float]]:
        """Return the mean of each named part of the rewards in a recorded batch; empty if there is none any more."""
        ...

    def batch(self, step: Step, first: int = 0, count: int | None = None) -> asyncio.Future[list[BatchEntry]]:
        """Return a recorded batch in its order, or ``count`` entries from ``first`` on; empty also if there is none.

        Batches are large, and all other calls wait while one is read: read them in parts. Fails if it was compacted.
        """
        ...

    def recorded_batches(self) -> asyncio.Future[int]:
        """Return one more than the newest step with a recorded batch, empty batches included."""
        ...

    def record_version(self, epoch: Epoch, version: Version, announcement: bytes) -> asyncio.Future[bool]:
        """Store an announcement; returns False if the same one is stored, fails if another one is."""
        ...

    def version(self, version: Version) -> asyncio.Future[StoredVersion | None]:
        """Return the announcement of this version in the newest epoch that has it; None if there is none."""
        ...

    def newest_version(self) -> asyncio.Future[StoredVersion | None]:
        """Return the newest announcement of the newest epoch that has one; None if there is none."""
        ...

    def rollouts(self, rollout_ids: Sequence[RolloutId]) -> asyncio.Future[list[BatchEntry]]:
        """Return these rollouts in order of their ids, in a batch or not; unknown ones are left out."""
        ...

    def newest_versions(self, count: int) -> asyncio.Future[list[StoredVersion]]:
        """Return at most ``count`` announcements: newest epoch first, and newest version first within an epoch."""
        ...

    # ---------------------------------------------------------------- invites, figures, facts, story

    def create_invite(
        self, token_hash: bytes, role: str, *, quota: int, expires_unix_s: float, note: str = ""
    ) -> asyncio.Future[None]:
        """Store an invite for ``quota`` identities; only the token's hash is stored."""
        ...

    def invites(self, limit: int) -> asyncio.Future[list[StoredInvite]]:
        """Return the newest ``limit`` invites, newest first."""
        ...

    def revoke_invite(self, invite_id: str) -> asyncio.Future[bool]:
        """Revoke an invite; returns False if it is unknown or revoked already."""
        ...

    def claim_invite(self, token_hash: bytes, role: str, peer_id: PeerId, *, now_unix_s: float) -> asyncio.Future[None]:
        """Use up one identity of the invite's quota, once per identity; fails with JoinRefused."""
        ...

    def check_invite(self, token_hash: bytes, *, now_unix_s: float) -> asyncio.Future[None]:
        """Check that an invite is still valid, without using its quota; fails with JoinRefused."""
        ...

    def invite_of(self, peer_id: PeerId) -> asyncio.Future[str]:
        """Return the id of the invite with which an identity joined, the oldest of several; empty if there is none."""
        ...

    def peers_of_invite(self, invite_id: str) -> asyncio.Future[list[PeerId]]:
        """Return the peers that joined with an invite, sorted; none if it is unknown or for another role."""
        ...

    def record_step(self, step: Step, figures: Mapping[str, float]) -> asyncio.Future[None]:
        """Store the metrics of a learner step; those of a replayed step change nothing."""
        ...

    def steps(self) -> asyncio.Future[list[tuple[Step, dict[str, float]]]]:
        """Return the metrics of every step that is kept, in order."""
        ...

    def record_event(self, kind: str, subject: str, detail: str, *, cause: str) -> asyncio.Future[None]:
        """Append to the run's event log; fails without a cause."""
        ...

    def record_note(self, note: Note, *, cause: str) -> asyncio.Future[None]:
        """Append the core's note to the run's event log."""
        ...

    def set_meta(self, key: str, value: str) -> asyncio.Future[None]:
        """Store one fact about the run under a key, such as its run_id."""
        ...

    def get_meta(self, key: str) -> asyncio.Future[str | None]:
        """Return a fact that set_meta stored; None if there is none."""
        ...

    # ---------------------------------------------------------------- sums over the whole run, compacted rows included

    def counts(self) -> asyncio.Future[StoreCounts]:
        """Return the numbers of attempts by outcome."""
        ...

    def trained_ages(self) -> asyncio.Future[dict[int, int]]:
        """Return the number of rollouts in batches by their age in learner steps."""
        ...

    def mixture_position(self) -> asyncio.Future[str | None]:
        """Return the position of the prompt mixture after the newest group; None before the first group."""
        ...

    def high_water(self) -> asyncio.Future[HighWater]:
        """Return the largest ids ever used; new ids start above them."""
        ...


class CompactingStore(RunStore, Protocol):
    """A store on a disk, which must not grow with the run's length. Sums, largest ids and refusals stay exact."""

    @property
    def is_reached(self) -> bool:
        """Whether the database answers, within seconds. While it does not, nothing is acknowledged."""
        ...

    def compact(self, horizon: Step, *, groups_max: int, steps_kept: int) -> asyncio.Future[Compacted]:
        """Delete some of what was over before step ``horizon``, and keep its sums.

        From then on, batches of steps before the horizon cannot be read. An id that was ever used stays refused.
        """
        ...

    def oldest_events(self, count: int, *, kept: int) -> asyncio.Future[list[StoryEntry]]:
        """Return the oldest ``count`` entries of the event log if ``kept`` newer ones exist, else none."""
        ...

    def delete_events(self, up_to: int) -> asyncio.Future[None]:
        """Delete the entries up to this order, which are archived elsewhere."""
        ...

    def newest_event_unix_s(self) -> asyncio.Future[float | None]:
        """Return when the newest entry was recorded, by its coordinator's clock; None if there is none."""
        ...

    def give_back_pages(self) -> asyncio.Future[int]:
        """Return unused pages to the file system and their number; 0 if there are few of them."""
        ...
