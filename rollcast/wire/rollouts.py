"""Leases and rollouts as plain data, and their conversion from and to the wire with every bound checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Version

SegmentRole = Literal["assistant", "tool", "user"]
FinishReason = Literal["stop", "length", "interrupted"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn."""

    temperature: float
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """One sample of a group; the seed keys the noise together with the position."""

    sample_index: int
    seed: int  # 64 bits


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """A slice of one prompt group given to one peer."""

    lease_id: LeaseId
    fencing_token: FencingToken
    group_id: GroupId
    prompt_token_ids: tuple[int, ...]
    slots: tuple[Slot, ...]
    sampling: Sampling
    deadline_s: float  # duration
    epoch: Epoch
    oldest_useful_version: Version


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens made under one version by one peer. loss_mask has one byte, 0 or 1, per token."""

    role: SegmentRole
    epoch: Epoch
    version: Version
    peer_id: PeerId
    token_ids: tuple[int, ...]
    loss_mask: bytes
    reported_logprobs: tuple[float, ...] = ()  # evidence only: never enters the loss


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

    @property
    def oldest_version(self) -> Version:
        """Version of the oldest segment: what staleness is measured from."""
        return min(segment.version for segment in self.segments)

    @property
    def completion_token_ids(self) -> tuple[int, ...]:
        """All segments' tokens in order."""
        return tuple(token for segment in self.segments for token in segment.token_ids)
