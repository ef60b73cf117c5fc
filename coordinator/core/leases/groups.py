"""Define prompt groups, their slots, and the attempts at them, as plain data.

A group is one prompt with a fixed number of slots; a slot becomes one rollout. A lease gives slots of one group to one
peer; each slot of a lease is an attempt. A slot has at most two live attempts (I6); the first one received fills it.

    attempt: live ──► filled (stored, then scored) ──► trained or dropped with its group
              └────► closed with a reason; the slot is vacant again and issued before any new group
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from struct import Struct

from blake3 import blake3

from coordinator.core.events.events import Prompt
from rollcast.wire.ids import FencingToken, GroupId, LeaseId, PeerId, RolloutId, Version
from rollcast.wire.rollouts import Segment

LIVE_ATTEMPTS_MAX = 2  # I6 of the threat model
_SEED_OF = Struct("<QQQ")

AttemptKey = tuple[LeaseId, int]  # lease and sample index: unique for ever
Prefix = tuple[Segment, ...]  # segments that earlier attempts at a slot generated


def slot_seed(run_seed: int, group_id: GroupId, sample_index: int) -> int:
    """Return the sampling seed of a slot, 64 bits; it is the same for every attempt at the slot."""
    text = b"rollcast/slot-seed/1" + _SEED_OF.pack(run_seed, group_id, sample_index)
    return int.from_bytes(blake3(text).digest(length=8), "little")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One slot issued to one peer. Times are on the core's clock, in seconds.

    ``load``: slots that its peer held then or generates at once, whichever is more; 0 if unknown, because the attempt
    was issued before a restart. ``prefix``: the tokens that the peer was given to continue; None: unknown.
    ``invite``: with which its peer joined; empty if unknown. ``on_trial``: its peer had delivered nothing before.
    ``oldest_own_version``: with which the peer may generate; 0 if unknown, because it was issued before a restart.
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
    key: AttemptKey = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.lease_id, self.sample_index))


@dataclass(slots=True)
class Filling:
    """The rollout that a slot became."""

    rollout_id: RolloutId
    attempt: Attempt
    oldest_version: Version  # oldest version of its segments
    newest_version: Version
    stored: bool = False
    scored: bool = False
    reward: float | None = None  # once scored


@dataclass(slots=True)
class SlotState:
    """One slot: its attempts in flight, then its rollout."""

    seed: int
    last_token: int = 0  # fencing token of the newest attempt
    live: list[Attempt] = field(default_factory=list)
    filling: Filling | None = None

    def open(self, lost: Container[AttemptKey]) -> bool:
        """Whether the slot needs an attempt: none is in flight, or only one of a peer that was away for too long."""
        if self.filling is not None:
            return False
        return not self.live or (len(self.live) == 1 and self.live[0].key in lost)


@dataclass(slots=True)
class Group:
    """One prompt's slots, in order of their sample index."""

    group_id: GroupId
    prompt: Prompt
    slots: list[SlotState]
    unfilled: int  # slots without a rollout
    scored: int = 0
    oldest_version: Version | None = None  # oldest version of its rollouts so far; None without one

    @property
    def ready(self) -> bool:
        """Whether every slot is scored."""
        return self.scored == len(self.slots)

    def fillings(self) -> list[Filling]:
        """Return the rollouts so far, in order of their sample index."""
        return [slot.filling for slot in self.slots if slot.filling is not None]

    def live(self) -> list[Attempt]:
        """Return the attempts in flight."""
        return [attempt for slot in self.slots for attempt in slot.live]


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of an attempt that is over."""

    peer_id: PeerId
    group_id: GroupId
    stored: bool


def validate_slot(slot: SlotState) -> None:
    """Raise AssertionError when I6 is broken."""
    tokens = [attempt.fencing_token for attempt in slot.live]
    assert len(tokens) <= LIVE_ATTEMPTS_MAX, "I6: too many live attempts"
    assert tokens == sorted(set(tokens)), "I6: fencing tokens do not rise"
    assert not tokens or tokens[-1] <= slot.last_token, "I6: a live attempt is newer than the newest"
    assert not (slot.live and slot.filling is not None), "I6: a filled slot has live attempts"
