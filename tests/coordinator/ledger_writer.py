"""Run as a process by test_ledger.py: stores rollouts without end and prints each id once it is acknowledged."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from coordinator.actions import RecordAttempt, RecordGroup, StoreRollout
from coordinator.ledger import Ledger
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Version
from rollcast.wire.rollouts import Rollout, Segment

PEER = PeerId("12D3KooWtest")


def rollout(lease_id: int, sample_index: int = 0, *, group_id: int = 1, version: int = 3, tokens: int = 4) -> Rollout:
    """A rollout of one segment."""
    segment = Segment("assistant", Epoch(0), Version(version), PEER, tuple(range(2, 2 + tokens)), b"\x01" * tokens)
    return Rollout(LeaseId(lease_id), FencingToken(1), GroupId(group_id), sample_index, (segment,), "stop", 0.5)


def group(group_id: int = 1) -> RecordGroup:
    """A group with the prompt (7, 8, 65536)."""
    return RecordGroup(GroupId(group_id), f"sum:{group_id}", (7, 8, 65_536), f'{{"next":{group_id}}}')


def attempt(lease_id: int, sample_index: int = 0, *, group_id: int = 1, seed: int = 2**64 - 1) -> RecordAttempt:
    """One slot of a lease."""
    return RecordAttempt(LeaseId(lease_id), FencingToken(1), GroupId(group_id), sample_index, seed, PEER)


def store(rollout_id: int, stored: Rollout) -> StoreRollout:
    """The action that stores a rollout."""
    return StoreRollout(RolloutId(rollout_id), PEER, stored)


async def store_one(ledger: Ledger, number: int) -> None:
    """Issue and store the rollout of this number, then say so."""
    ledger.record_attempt(attempt(number))
    await ledger.store_rollouts([store(number, rollout(number))])
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


async def main(path: Path) -> None:
    """Store in waves of 20, so that commits hold several."""
    ledger = Ledger.open(path)
    await ledger.record_group(group(), "{}")
    for wave in range(10_000):
        await asyncio.gather(*(store_one(ledger, wave * 20 + number) for number in range(1, 21)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
