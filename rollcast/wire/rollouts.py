"""Define leases and rollouts as plain data; rollcast.wire.rollout_messages converts them from and to the wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from blake3 import blake3

from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Version
from rollcast.wire.token_ids import ID_BYTES, largest_id, pack_ids, unpack_ids

SegmentRole = Literal["assistant", "tool", "user"]
FinishReason = Literal["stop", "length", "interrupted"]
LeaseKind = Literal["training", "evaluation"]

ENVIRONMENT = PeerId("environment")  # in the place of the peer that generated a segment
PREFIX_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of a lease."""

    temperature: float
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...] = ()
    """A completion also ends with the first token that completes one of these."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that one peer generated under one version, or that an environment answered.

    ``loss_mask`` has one byte, 0 or 1, per token.
    """

    role: SegmentRole
    epoch: Epoch
    version: Version
    peer_id: PeerId
    packed_ids: bytes  # see rollcast.wire.token_ids
    loss_mask: bytes
    reported_logprobs: tuple[float, ...] = ()  # evidence, unless the learner takes reports for its loss
    routes: bytes = field(default=b"", repr=False)  # see rollcast.wire.routes; empty: none were recorded
    context_routes: bytes = field(default=b"", repr=False)  # of the tokens before it, if its engine began with it
    sampler: str = ""  # the kind of engine and device that its peer claims, such as "jax-cpu"; empty: unknown
    largest_received: int = field(default=-1, repr=False, compare=False)
    """The largest token id, which was determined where the segment was received; -1: it was made in this process."""

    @property
    def largest_id(self) -> int:
        """The largest of its token ids; -1 if there is none."""
        return self.largest_received if self.largest_received >= 0 else largest_id(self.packed_ids)

    @property
    def is_generated(self) -> bool:
        """Whether the policy generated it; what an environment answered has no version and is not trained on."""
        return self.role == "assistant"

    @property
    def token_count(self) -> int:
        """The number of its tokens."""
        return len(self.packed_ids) // ID_BYTES

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Its token ids, made anew at each call."""
        return unpack_ids(self.packed_ids)


def observation(role: SegmentRole, token_ids: tuple[int, ...]) -> Segment:
    """Return what an environment answered, as a segment that is left out of the loss."""
    return Segment(role, Epoch(0), Version(0), ENVIRONMENT, pack_ids(token_ids), bytes(len(token_ids)))


def turn_start(segments: Sequence[Segment]) -> int:
    """Return the index of the first segment after the last one of an environment; 0 if there is none."""
    for index in range(len(segments), 0, -1):
        if not segments[index - 1].is_generated:
            return index
    return 0


def last_turn(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Return the segments after the last one of an environment; all of them if there is none."""
    return segments[turn_start(segments) :]


def prefix_digest(prefix: Sequence[Segment]) -> bytes:
    """Return BLAKE3 of the segments' kinds, versions, peers and tokens, 16 bytes."""
    hasher = blake3(b"rollcast/prefix/1")
    for one in prefix:
        head = f"{one.role} {one.epoch} {one.version} {one.peer_id} {one.token_count} "
        hasher.update(head.encode() + one.packed_ids)
    return hasher.digest(length=PREFIX_DIGEST_BYTES)


def packed_of(segments: Sequence[Segment]) -> bytes:
    """Return the token ids of all segments in order, packed."""
    if len(segments) == 1:
        return segments[0].packed_ids
    return b"".join(segment.packed_ids for segment in segments)


def packed_turn(segments: Sequence[Segment]) -> bytes:
    """Return the token ids after the last answer of an environment, packed; all of them if there is none."""
    return packed_of(last_turn(segments))


def tokens_of(segments: Iterable[Segment]) -> int:
    """Return the number of tokens of all segments."""
    return sum(segment.token_count for segment in segments)


def authors_of(segments: Iterable[Segment]) -> frozenset[PeerId]:
    """Return the peers that generated these segments; an environment is no author."""
    return frozenset(segment.peer_id for segment in segments if segment.is_generated)


@dataclass(frozen=True, slots=True)
class Slot:
    """One sample of a group.

    The seed keys the noise together with the position in prompt and completion, which no two turns of an episode share:
    so all turns have the slot's seed. Generation continues after ``prefix``.
    """

    sample_index: int
    seed: int  # 64 bits
    prefix: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """A slice of one prompt group, or of one held-out problem's samples, that is leased to one peer.

    With ``kind`` "evaluation" exactly ``oldest_useful_version`` generates it, and nothing is trained on it. What the
    peer itself generates comes from ``oldest_own_version`` or newer ones, else the rollout is refused.
    """

    lease_id: LeaseId
    fencing_token: FencingToken
    group_id: GroupId
    prompt_token_ids: tuple[int, ...]
    slots: tuple[Slot, ...]
    sampling: Sampling
    deadline_s: float  # duration
    epoch: Epoch
    oldest_useful_version: Version
    kind: LeaseKind = "training"
    oldest_own_version: Version = Version(0)  # noqa: RUF009
    keep_version_s: float = 0.0
    """Seconds for which the peer keeps the version of an evaluation after its last rollout: a turn may follow."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A completion as a list of segments."""

    lease_id: LeaseId
    fencing_token: FencingToken
    group_id: GroupId
    sample_index: int
    segments: tuple[Segment, ...]
    finish_reason: FinishReason
    generate_s: float
    body: bytes = field(
        default=b"", repr=False, compare=False
    )  # the message as received; empty for a rollout made in this process
    routed_prompt_tokens: int = 0  # tokens before the segments whose routes the body has; 0: it has none
    prefix_digest: bytes = b""
    """Of the slot's prefix, if ``segments`` are only those after it; empty: they begin with the prefix."""

    @property
    def oldest_version(self) -> Version:
        """Return the version of the oldest generated segment, from which staleness is measured."""
        if len(self.segments) == 1:
            return self.segments[0].version
        return min(segment.version for segment in self.segments if segment.is_generated)

    @property
    def newest_version(self) -> Version:
        """Return the version of the newest generated segment."""
        if len(self.segments) == 1:
            return self.segments[0].version
        return max(segment.version for segment in self.segments if segment.is_generated)

    @property
    def packed_completion(self) -> bytes:
        """The token ids of all segments in order, packed."""
        return packed_of(self.segments)

    @property
    def completion_token_ids(self) -> tuple[int, ...]:
        """The token ids of all segments in order, made anew at each call."""
        return unpack_ids(self.packed_completion)


@dataclass(frozen=True, slots=True)
class PartialRollout:
    """The tokens that an attempt generated since its last report.

    ``position`` counts the tokens before them, the slot's prefix included.
    """

    lease_id: LeaseId
    fencing_token: FencingToken
    sample_index: int
    position: int
    segments: tuple[Segment, ...]
