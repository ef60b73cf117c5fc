from __future__ import annotations

import pytest

from coordinator.core.leases.groups import Attempt, Filling, SlotState, slot_seed, validate_slot
from rollcast.wire.ids import FencingToken, GroupId, LeaseId, PeerId, RolloutId, Version


def attempt(number: int) -> Attempt:
    return Attempt(LeaseId(number), FencingToken(number), GroupId(1), 0, PeerId("a"), deadline=9.0)


def test_a_seed_depends_on_run_group_and_sample_and_has_64_bits() -> None:
    seeds = {slot_seed(run, GroupId(group), sample) for run in (1, 2**63 - 1) for group in (1, 2) for sample in (0, 1)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert slot_seed(1, GroupId(2), 3) == slot_seed(1, GroupId(2), 3) == 0x36F41223BB3FDC0C


def test_a_slot_is_open_while_nobody_or_only_a_lost_peer_is_at_it() -> None:
    slot, first, second = SlotState(seed=7), attempt(1), attempt(2)
    assert slot.open(set())
    slot.live.append(first)
    assert not slot.open(set())
    assert slot.open({first.key})
    slot.live.append(second)
    assert not slot.open({first.key, second.key}), "two live attempts at most"
    slot.live.clear()
    slot.filling = Filling(RolloutId(1), first, Version(0), Version(0))
    assert not slot.open({first.key})


def test_a_third_live_attempt_is_found() -> None:
    slot = SlotState(seed=7, last_token=3, live=[attempt(1), attempt(2), attempt(3)])
    with pytest.raises(AssertionError, match="I6"):
        validate_slot(slot)
