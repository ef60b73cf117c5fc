"""Test the search for acknowledged turns in a ledger, and a coordinator that is killed during episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.durability.turns import TurnHistory, figures_of, going_on, turns_lost
from coordinator.core.events.actions import DropTurns, StoreEpisode
from coordinator.core.leases.drop_counts import NEXT_TURN
from coordinator.stores.sqlite import Ledger
from rollcast.wire.ids import GroupId, RolloutId
from rollcast.wire.rollout_messages import rollout_to_pb
from rollcast.wire.rollouts import observation
from tests.coordinator.stored_work import PEER, attempt, close, group, rollout, store_turn


async def test_a_turn_is_found_among_those_of_an_episode_that_goes_on_and_in_the_rollout_of_one_that_ended(
    tmp_path: Path,
) -> None:
    history, path = TurnHistory(), tmp_path / "store.sqlite"
    ledger = Ledger.open(path)
    await ledger.record_group(group(), "{}")
    for lease_id in (1, 2):
        await ledger.record_attempt(attempt(lease_id))
        await ledger.store_turn(store_turn(lease_id - 1, lease_id, None))
        history.verdict(rollout_to_pb(rollout(lease_id)), accepted=True, reason="")
        if lease_id == 1:
            await ledger.close_attempt(close(1, NEXT_TURN))
    assert (going_on(path), turns_lost(history, path)) == (2, 0)
    said = observation("tool", (5,))
    whole = replace(rollout(2), segments=(*rollout(1).segments, said, *rollout(2).segments))
    await ledger.store_episode(StoreEpisode(RolloutId(1), PEER, "sum:1", whole, 0.5), exact=False)
    assert (going_on(path), turns_lost(history, path)) == (0, 0)
    await ledger.close()


async def test_a_turn_that_is_gone_is_lost(tmp_path: Path) -> None:
    history, path = TurnHistory(), tmp_path / "store.sqlite"
    ledger = Ledger.open(path)
    await ledger.record_group(group(), "{}")
    await ledger.record_attempt(attempt(1))
    await ledger.store_turn(store_turn(0, 1, None))
    history.verdict(rollout_to_pb(rollout(1)), accepted=True, reason="")
    history.verdict(rollout_to_pb(rollout(2)), accepted=False, reason="busy")
    await ledger.drop_turns(DropTurns(GroupId(1), 0))
    assert turns_lost(history, path) == 1
    await ledger.close()


@pytest.mark.slow
def test_a_coordinator_killed_during_episodes_loses_no_acknowledged_turn() -> None:
    figures = figures_of(kills=2)
    assert figures["turns_acked"] > 0
    assert figures["turns_lost"] == figures["episodes_trained_twice"] == figures["batches_changed"] == 0
