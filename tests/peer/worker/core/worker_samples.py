"""Make leases, rollouts and keys that the worker's tests share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from peer.worker.core.core import WorkerCore
from peer.worker.core.events import (
    SessionOpened,
    SliceGenerated,
    SliceTokens,
    SlotWork,
    Verdict,
    VersionActivated,
    VersionKey,
    VersionLoaded,
    VersionVerified,
)
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Version
from rollcast.wire.rollouts import FinishReason, LeaseGrant, LeaseKind, Rollout, Sampling, Segment, Slot
from rollcast.wire.token_ids import pack_ids

SAMPLING = Sampling(temperature=1.0, max_new_tokens=8, stop_token_ids=(1,))
SLICE = 10  # tokens
PEER = PeerId("12D3KooWpeer")


def key(version: int, epoch: int = 0) -> VersionKey:
    return VersionKey(Version(version), Epoch(epoch))


def grant(
    lease_id: int,
    slots: int = 2,
    *,
    oldest_useful: int = 0,
    deadline_s: float = 30.0,
    epoch: int = 0,
    prefix: tuple[Segment, ...] = (),
    kind: LeaseKind = "training",
    **sampling: Any,
) -> LeaseGrant:
    return LeaseGrant(
        lease_id=LeaseId(lease_id),
        fencing_token=FencingToken(1),
        group_id=GroupId(100 + lease_id),
        prompt_token_ids=(5, 6, 7),
        slots=tuple(Slot(index, 1000 * lease_id + index, prefix) for index in range(slots)),
        sampling=replace(SAMPLING, **sampling),
        deadline_s=deadline_s,
        epoch=Epoch(epoch),
        oldest_useful_version=Version(oldest_useful),
        kind=kind,
    )


def work(*leases: LeaseGrant) -> tuple[SlotWork, ...]:
    return tuple(SlotWork(lease, slot) for lease in leases for slot in lease.slots)


def ready_core(opened: SessionOpened | None = None, **settings: Any) -> WorkerCore:
    """Return a connected core with version 0 active and work requested; each slice has SLICE tokens."""
    core = WorkerCore(**{"concurrent_rollouts": 4, "slice_tokens": SLICE, "slice_s": math.inf, **settings})
    core.handle(opened or SessionOpened(), 0.0)
    put_version(core, 0, 0.0)
    return core


def put_version(core: WorkerCore, version: int, now: float, epoch: int = 0) -> None:
    """Give the core a version that is complete on disk, loaded and activated."""
    for event in (VersionVerified, VersionLoaded, VersionActivated):
        core.handle(event(key(version, epoch)), now)


def accept(items: tuple[Rollout, ...]) -> tuple[Verdict, ...]:
    return tuple(Verdict(item.lease_id, item.sample_index, True, "") for item in items)


def segment(tokens: tuple[int, ...], version: int = 0, *, epoch: int = 0, peer: PeerId = PEER) -> Segment:
    mask, logprobs = b"\1" * len(tokens), (-0.5,) * len(tokens)
    return Segment("assistant", Epoch(epoch), Version(version), peer, pack_ids(tokens), mask, logprobs)


def rollout(
    item: SlotWork,
    *segments: Segment,
    version: int = 0,
    reason: FinishReason = "stop",
    generate_s: float = 1.0,
) -> Rollout:
    """Return a slot's rollout, with tokens (3, 4, 1) of ``version`` unless segments are given."""
    return Rollout(
        lease_id=item.lease.lease_id,
        fencing_token=item.lease.fencing_token,
        group_id=item.lease.group_id,
        sample_index=item.slot.sample_index,
        segments=segments or (segment((3, 4, 1), version),),
        finish_reason=reason,
        generate_s=generate_s,
    )


def drawn(
    item: SlotWork,
    tokens: tuple[int, ...] = (3, 4, 1),
    reason: FinishReason | None = "stop",
    *,
    version: int = 0,
    epoch: int = 0,
) -> SliceTokens:
    new = segment(tokens, version, epoch=epoch) if tokens else None
    return SliceTokens(item.lease.lease_id, item.slot.sample_index, new, reason)


def finished(batch_id: int, items: tuple[SlotWork, ...], version: int = 0) -> SliceGenerated:
    """Return one slice that finishes all rollouts as ``rollout`` has them."""
    return SliceGenerated(batch_id, tuple(drawn(item, version=version) for item in items))


def begun(
    batch_id: int, items: tuple[SlotWork, ...], tokens: tuple[int, ...] = (3, 4), version: int = 0
) -> SliceGenerated:
    """Return one slice that finishes no rollout."""
    return SliceGenerated(batch_id, tuple(drawn(item, tokens, None, version=version) for item in items))
