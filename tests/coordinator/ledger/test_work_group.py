"""Test that attempts, rollouts and scores which are recorded directly after each other are made together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.ledger import work_group
from coordinator.stores.sqlite import Ledger
from coordinator.tasks.checks.task import Score
from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import RolloutId
from tests.coordinator.stored_work import attempt, group, rollout, store_rollout


async def test_work_of_one_turn_shares_a_future_until_another_change_comes(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    ledger.record_group(group(), "{}")
    made = ledger.record_attempt(attempt(1))
    assert ledger.store_rollouts([store_rollout(1, rollout(1))]) is made
    assert ledger.record_attempt(attempt(2, 1)) is made
    ledger.set_meta("key", "value")
    assert ledger.record_score(RolloutId(1), Score(1.0, True)) is not made
    await made
    assert ledger.record_attempt(attempt(3, 2)) is not made, "it is committed"
    assert (await ledger.counts()).issued == 3
    await ledger.close()


async def test_a_group_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_group, "CHANGES_MAX", 2)
    ledger = Ledger.open(tmp_path / "store.sqlite")
    ledger.record_group(group(), "{}")
    made = [ledger.record_attempt(attempt(number, number)) for number in range(1, 6)]
    assert [one is made[0] for one in made] == [True, True, False, False, False]
    await asyncio.gather(*made)
    assert (await ledger.counts()).issued == 5
    await ledger.close()


async def test_a_refused_group_is_undone_whole_and_others_are_made(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    ledger.record_group(group(), "{}")
    ledger.record_attempt(attempt(1))
    refused = ledger.store_rollouts([store_rollout(1, rollout(9))])  # which was never issued
    kept = ledger.set_meta("key", "value")
    later = ledger.record_attempt(attempt(2))
    with pytest.raises(StoreError, match="contradicts"):
        await refused
    await kept
    await later
    assert (await ledger.counts()).issued == 1
    await ledger.close()
