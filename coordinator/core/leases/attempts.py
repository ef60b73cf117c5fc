"""Define an attempt at a slot: one lease of it to one peer."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollcast.wire.ids import FencingToken, GroupId, LeaseId, PeerId, Version
from rollcast.wire.rollouts import Segment

AttemptKey = tuple[LeaseId, int]  # lease and sample index: unique for ever
Prefix = tuple[Segment, ...]  # segments that earlier attempts at a slot generated, and that its environment answered


@dataclass(frozen=True, slots=True)
class Attempt:
    """One slot issued to one peer. Times are on the core's clock, in seconds.

    ``load``: slots that its peer held then or generates at once, whichever is more; 0 if unknown, because the attempt
    was issued before a restart. ``prefix``: the tokens that the peer was given to continue; None: unknown.
    ``invite``: with which its peer joined; empty if unknown. ``on_trial``: its peer had delivered nothing before.
    ``oldest_own_version``: with which the peer may generate; 0 if unknown, because it was issued before a restart.
    ``new_tokens_max``: longest completion that its lease allows; 0 if unknown, likewise.
    """

    lease_id: LeaseId
    fencing_token: FencingToken
    group_id: GroupId
    sample_index: int
    peer_id: PeerId
    deadline: float
    issued_at: float = 0.0
    load: int = 0
    prefix: Prefix | None = ()
    invite: str = ""
    on_trial: bool = False
    oldest_own_version: Version = Version(0)  # noqa: RUF009
    new_tokens_max: int = 0
    key: AttemptKey = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.lease_id, self.sample_index))
