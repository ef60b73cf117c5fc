"""Test the choice and the export of a run's rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.prompts.stored_rollouts import (
    RolloutFilter,
    found_rollouts,
    stored_rollouts,
    text_of,
    write_parquet,
)
from coordinator.stores.reader import reading
from rollcast.runtime.errors import ConfigError, RunFolderError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.prompts.stored_run import TOKENIZER, stored_run
from tests.coordinator.stored_work import PEER


@pytest.fixture
async def folder(tmp_path: Path) -> RunFolder:
    return await stored_run(tmp_path)


def test_the_rollouts_of_a_problem_are_found_by_an_index(folder: RunFolder) -> None:
    asked: list[str] = []
    with reading(folder) as connection:
        connection.set_trace_callback(asked.append)
        assert [one.rollout_id for one in found_rollouts(connection, RolloutFilter(problem="sum:3"), {})] == [3]
        connection.set_trace_callback(None)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {asked[0]}")]
    assert "groups_of_problem" in plan[0]


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
    assert oldest.completion == oldest.turns[0].text == TOKENIZER.decode(oldest.turns[0].token_ids)
    assert newest.turns[1].text == TOKENIZER.decode(newest.turns[1].token_ids[1:]) != ""
    assert newest.completion == f"{newest.turns[0].text}\n{newest.turns[1].text}", "an episode is shown whole"
    assert (newest.agent, oldest.agent) == ("buyer", "")
    with pytest.raises(ConfigError, match="no peer 'beta'"):
        stored_rollouts(folder, TOKENIZER, 10, RolloutFilter(peer="beta"))


def test_a_completion_has_all_turns_and_a_turn_of_two_versions_is_one_line() -> None:
    end = TOKENIZER.eos_id
    said = [("1", pb.ASSISTANT), ("2", pb.ASSISTANT), ("34", pb.TOOL), ("5", pb.ASSISTANT)]
    ids = [TOKENIZER.encode(text) for text, _ in said]
    ids[1], ids[2], ids[3] = [*ids[1], end], [end, *ids[2]], [*ids[3], end]
    segments = [pb.Segment(role=role, packed_ids=pack_ids(own)) for own, (_, role) in zip(ids, said, strict=True)]
    assert text_of(segments, TOKENIZER) == "12\n34\n5"
    assert text_of(segments[:2], TOKENIZER) == "12"
    assert text_of([], TOKENIZER) == ""


def test_rollouts_are_exported_as_parquet(folder: RunFolder, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = stored_rollouts(folder, TOKENIZER, 10)
    write_parquet(found, tmp_path / "rollouts.parquet")
    rows = parquet.read_table(tmp_path / "rollouts.parquet").to_pylist()
    assert [row["rollout_id"] for row in rows] == [4, 3, 2, 1]
    assert rows[0]["turns"][1]["role"] == "tool"
    assert (rows[0]["agent"], rows[0]["completion"]) == ("buyer", found[0].completion)
    assert tuple(rows[3]["turns"][0]["token_ids"]) == found[3].turns[0].token_ids
    assert json.loads(rows[3]["parts"]) == {"format": 0.5}
    with pytest.raises(RunFolderError, match="exists already"):
        write_parquet(found, tmp_path / "rollouts.parquet")


def test_a_missing_ledger_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run"):
        stored_rollouts(RunFolder(tmp_path), TOKENIZER, 1)
