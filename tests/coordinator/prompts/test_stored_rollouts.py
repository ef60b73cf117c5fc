"""Test the choice and the export of a run's rollouts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.ledger.sqlite import Ledger
from coordinator.prompts.stored_rollouts import RolloutFilter, stored_rollouts, write_parquet
from coordinator.tasks.checks.task import Problem, Score
from rollcast.runtime.errors import ConfigError, RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import RolloutId
from rollcast.wire.text.tokenizer import Tokenizer
from tests.coordinator.stored_work import PEER, attempt, batch, group, rollout, store_rollout

TOKENIZER = Tokenizer((), "0123456789")


@pytest.fixture
async def folder(tmp_path: Path) -> RunFolder:
    """Four rollouts with rewards .25 to 1, of 4, 5, 6 and 7 tokens; the first two were trained on, at ages 2 and 3."""
    run = RunFolder(tmp_path)
    ledger = Ledger.open(run.ledger)
    ledger.record_event("peer_joined", PEER, "alpha as peer", cause="peer alpha")
    for number in (1, 2, 3, 4):
        problem = Problem(f"sum:{number}", "1+1=", "2", {})
        ledger.record_group(group(number), problem.to_json())
        ledger.record_attempt(attempt(number, group_id=number))
        made = rollout(number, group_id=number, version=number + 1 if number < 3 else 9, tokens=3 + number)
        tool = replace(made.segments[0], role="tool", loss_mask=b"\0" * (3 + number))
        segments = (*made.segments, tool) if number == 4 else made.segments
        await ledger.store_rollouts([store_rollout(number, replace(made, segments=segments))])
        await ledger.record_score(RolloutId(number), Score(number / 4, number == 4, "", {"format": 0.5}))
    await ledger.record_batch(batch(4, 1))
    await ledger.record_batch(batch(6, 2))
    await ledger.close()
    return run


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({}, [4, 3, 2, 1]),
        ({"reward_min": 0.5}, [4, 3, 2]),
        ({"reward_max": 0.5}, [2, 1]),
        ({"wrong": True}, [3, 2, 1]),
        ({"age_min": 0}, [2, 1]),
        ({"age_max": 2}, [1]),
        ({"tokens_min": 6, "tokens_max": 6}, [3]),
        ({"problem": "sum:3"}, [3]),
        ({"version": 9}, [4, 3]),
        ({"peer": "alpha"}, [4, 3, 2, 1]),
        ({"peer": str(PEER), "reward_min": 0.9}, [4]),
    ],
)
def test_rollouts_are_chosen_by_what_they_are(folder: RunFolder, given: dict[str, Any], ids: list[int]) -> None:
    found = stored_rollouts(folder, TOKENIZER, 10, RolloutFilter(**given))
    assert [one.rollout_id for one in found] == ids
    assert len(stored_rollouts(folder, TOKENIZER, 1, RolloutFilter(**given))) == 1


def test_a_rollout_has_its_turns_its_parts_and_its_age(folder: RunFolder) -> None:
    newest, *_, oldest = stored_rollouts(folder, TOKENIZER, 10)
    assert [(turn.role, turn.version) for turn in newest.turns] == [("assistant", 9), ("tool", 9)]
    assert (newest.age, oldest.age, oldest.parts, oldest.peer) == (None, 2, {"format": 0.5}, "alpha")
    assert oldest.completion == oldest.turns[0].text == TOKENIZER.decode(oldest.token_ids)
    with pytest.raises(ConfigError, match="no peer 'beta'"):
        stored_rollouts(folder, TOKENIZER, 10, RolloutFilter(peer="beta"))


def test_rollouts_are_exported_as_parquet(folder: RunFolder, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = stored_rollouts(folder, TOKENIZER, 10)
    write_parquet(found, tmp_path / "rollouts.parquet")
    rows = parquet.read_table(tmp_path / "rollouts.parquet").to_pylist()
    assert [row["rollout_id"] for row in rows] == [4, 3, 2, 1]
    assert rows[0]["turns"][1]["role"] == "tool"
    assert tuple(rows[3]["token_ids"]) == found[3].token_ids
    assert json.loads(rows[3]["parts"]) == {"format": 0.5}
    with pytest.raises(RunFolderError, match="exists already"):
        write_parquet(found, tmp_path / "rollouts.parquet")


def test_a_missing_ledger_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no ledger"):
        stored_rollouts(RunFolder(tmp_path), TOKENIZER, 1)
