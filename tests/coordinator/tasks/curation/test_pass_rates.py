from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.ledger.sqlite import Ledger
from coordinator.tasks.checks.task import Problem
from coordinator.tasks.curation.pass_rates import PassRate, ProfileFile, key_of, read_run, read_samples
from rollcast.runtime.errors import TaskError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import RolloutId
from tests.coordinator.stored_work import attempt, group, rollout, store_rollout


def test_samples_of_one_problem_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    lines = [
        {"prompt": "1+1?", "exact": True, "reward": 0.1},
        {"prompt": "1 + 1", "exact": False},
        {"prompt": "2+2?", "reward": 0.5},
        {"prompt": "2+2?", "pass_rate": 0.25, "samples": 8},
    ]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    assert read_samples(path) == {key_of("1+1"): PassRate(2, 1.0), key_of("2+2"): PassRate(9, 2.5)}
    path.write_text('{"prompt": "a", "reward": 1}\n{"prompt": "a"}\n')
    with pytest.raises(TaskError, match=r"line 2: not a sample"):
        read_samples(path)


async def test_a_run_says_what_its_rollouts_were_worth(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    ledger = Ledger.open(folder.ledger)
    for number, reward in ((1, 1.0), (2, 0.0)):
        ledger.record_group(group(number), Problem("a:0", "1+1?", "2", {}).to_json())
        ledger.record_attempt(attempt(number, group_id=number))
        ledger.store_rollouts([store_rollout(number, rollout(number, group_id=number))])
        await ledger.record_score(RolloutId(number), reward, exact=bool(reward))
    assert read_run(folder) == {key_of("1+1?"): PassRate(2, 1.0)}
    await ledger.close()


def test_a_profile_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl"
    first = ProfileFile(path, {"samples": 4})
    first.add([(1, PassRate(4, 1.0)), (2, PassRate(4, 0.0))])
    with path.open("a") as file:
        file.write("[3, 4")
    again = ProfileFile(path, {"samples": 4})
    assert (len(again), again.get(1), again.get(3)) == (2, PassRate(4, 1.0), None)
    again.add([(3, PassRate(4, 2.0))])
    assert ProfileFile(path, {"samples": 4}).get(3) == PassRate(4, 2.0)
    with pytest.raises(TaskError, match="other settings"):
        ProfileFile(path, {"samples": 8})
    path.write_text("nonsense\n")
    with pytest.raises(TaskError, match="cannot read the profile"):
        ProfileFile(path, {"samples": 4})
