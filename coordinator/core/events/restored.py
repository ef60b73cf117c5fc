"""Define the state that a restarted coordinator takes over from the ledger, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.core.events.actions import RecordEpoch
from coordinator.core.events.events import Prompt
from coordinator.core.events.versions_kept import VersionsKept
from rollcast.wire.ids import IDS_PER_INCARNATION, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Version
from rollcast.wire.rollouts import Segment


@dataclass(frozen=True, slots=True)
class RestoredAttempt:
    """An attempt that an earlier coordinator issued."""

    lease_id: LeaseId
    fencing_token: FencingToken
    sample_index: int
    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class RestoredRollout:
    """A rollout that is stored and neither trained nor dropped, by the attempt that it came from."""

    rollout_id: RolloutId
    attempt: RestoredAttempt
    oldest_version: Version  # oldest version of its segments
    newest_version: Version
    scored: bool
    packed_completion: bytes  # token ids; empty when scored
    reward: float = 0.0  # when scored
    authors: frozenset[PeerId] = frozenset()  # that generated tokens of it, beside the attempt's peer


@dataclass(frozen=True, slots=True)
class RestoredTurn:
    """A stored turn of an episode that goes on; see coordinator.core.leases.episodes.Turn."""

    lease_id: LeaseId
    peer_id: PeerId
    observation: Segment | None
    generated: tuple[Segment, ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class RestoredGroup:
    """A group that is neither trained nor dropped, with its attempts in flight and its rollouts.

    ``turns``: those of its episodes that go on, in order, by sample index.
    """

    group_id: GroupId
    prompt: Prompt
    live: tuple[RestoredAttempt, ...]
    rollouts: tuple[RestoredRollout, ...]
    turns: Mapping[int, tuple[RestoredTurn, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RestoredFinished:
    """An attempt that is over. ``stored``: whether its rollout was accepted, whatever happened to it later."""

    lease_id: LeaseId
    sample_index: int
    peer_id: PeerId
    group_id: GroupId
    stored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The state in which earlier coordinators left the run. ``groups`` are in order of their ids."""

    incarnation: int = 0  # rises with every start, so that no id is ever used twice
    epochs: tuple[RecordEpoch, ...] = ()  # the opened epochs, oldest first
    versions: Mapping[Version, int] = field(default_factory=dict)  # the newest that count: chunks by version
    recorded_batches: int = 0
    kept: VersionsKept | None = None  # by the learner, as the last coordinator had it; None: the run begins
    last_group: int = 0  # largest ids in use
    last_rollout: int = 0
    issued: int = 0
    accepted: int = 0
    trained: int = 0
    turns: int = 0  # attempts that made a turn of an episode which went on
    dropped: Mapping[str, int] = field(default_factory=dict)
    trained_ages: Mapping[int, int] = field(default_factory=dict)  # rollouts trained by age in learner steps
    quarantined: Mapping[PeerId, str] = field(default_factory=dict)  # by receipts: identities, with the reason
    elapsed_s: float = 0.0  # seconds for which earlier coordinators ran
    age_split: Mapping[str, float] = field(
        default_factory=dict
    )  # coordinator.core.staleness.age_breakdown.Split.to_json
    groups: tuple[RestoredGroup, ...] = ()
    finished: tuple[RestoredFinished, ...] = ()  # the newest attempts that are over, for uploads that are repeated

    @property
    def ids_before(self) -> int:
        """The bound above which all lease ids, fencing tokens and plan ids of this incarnation lie."""
        return self.incarnation * IDS_PER_INCARNATION
