"""Leases, rollouts and keys that the worker's tests share."""

from __future__ import annotations

from peer.worker_events import SlotWork, VersionKey
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Version
from rollcast.wire.rollouts import LeaseGrant, Rollout, Sampling, Segment, Slot

SAMPLING = Sampling(temperature=1.0, max_new_tokens=8, stop_token_ids=(1,))
PEER = PeerId("12D3KooWpeer")


def key(version: int, epoch: int = 0) -> VersionKey:
    return VersionKey(Version(version), Epoch(epoch))


def grant(lease_id: int, slots: int = 2, *, oldest_useful: int = 0, deadline_s: float = 30.0) -> LeaseGrant:
    return LeaseGrant(
        lease_id=LeaseId(lease_id),
        fencing_token=FencingToken(1),
        group_id=GroupId(100 + lease_id),
        prompt_token_ids=(5, 6, 7),
        slots=tuple(Slot(index, 1000 * lease_id + index) for index in range(slots)),
        sampling=SAMPLING,
        deadline_s=deadline_s,
        epoch=Epoch(0),
        oldest_useful_version=Version(oldest_useful),
    )


def work(*leases: LeaseGrant) -> tuple[SlotWork, ...]:
    return tuple(SlotWork(lease, slot) for lease in leases for slot in lease.slots)


def rollout(item: SlotWork, version: int = 0, tokens: tuple[int, ...] = (3, 4, 1)) -> Rollout:
    segment = Segment("assistant", Epoch(0), Version(version), PEER, tokens, b"\1" * len(tokens), (-0.5,) * len(tokens))
    return Rollout(
        lease_id=item.lease.lease_id,
        fencing_token=item.lease.fencing_token,
        group_id=item.lease.group_id,
        sample_index=item.slot.sample_index,
        segments=(segment,),
        finish_reason="stop",
        generate_s=0.01,
    )
