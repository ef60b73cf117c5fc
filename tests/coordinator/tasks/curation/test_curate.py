"""Test the cleaning of a whole data set, and its selection by pass rates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinator.stores.sqlite import Ledger
from coordinator.tasks.checks.task import Problem, Score
from coordinator.tasks.curation.contamination import EvaluationTexts
from coordinator.tasks.curation.curate import CHUNK_ROWS, Curation, CurationSettings, Kept, Removed, recorded
from coordinator.tasks.curation.pass_rates import PassRate, ProfileFile, key_of, read_run, read_samples
from coordinator.tasks.fields import Row
from rollcast.runtime.errors import TaskError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import RolloutId
from rollcast.wire.text.data_files import BadRow
from tests.coordinator.stored_work import attempt, group, rollout, store_rollout

LONG = "Tom has {} apples and gives a third of them to his sister who eats two of them at once before lunch today"


def test_every_row_is_kept_or_counted_under_one_reason() -> None:
    rows: list[Row | BadRow] = [
        Row("1+1?", "$2$"),
        Row("1 + 1", "2"),
        Row("1+1?", "3"),
        BadRow("here, line 4", "'answer' is missing", "it has prompt"),
        Row(LONG.format(12), "4"),
        Row(LONG.format(12) + " again", "4"),
        Row("The secret problem of the test set", "5"),
        Row("2+2?", "4"),
    ]
    removed: list[Removed] = []
    evaluation = EvaluationTexts([("test", ["the secret problem of the test set"])], 8)
    curation = Curation(CurationSettings(), evaluation=evaluation, on_removed=removed.append)
    assert [kept.row for kept in curation.run(rows)] == [Row("1+1?", "2"), rows[4], rows[7]]
    report = curation.report.to_json()
    assert (report["read"], report["kept"], sum(report["removed"].values())) == (8, 3, 5)
    assert [one.reason for one in removed] == [
        "exact_duplicate",
        "contradiction",
        "malformed",
        "near_duplicate",
        "contaminated",
    ]
    assert removed[2].detail == "here, line 4: 'answer' is missing (it has prompt)"
    assert removed[4].detail == "100% of test: the secret problem of the test set"
    assert report["contaminated_by"] == {"test": 1}
    assert report["normalised"] == {"marks": 1}


def test_rows_outside_the_pass_rate_range_are_removed() -> None:
    rows = [Row(f"{n}+{n}?", str(2 * n)) for n in range(6)]
    rates = {key_of(f"{n}+{n}?"): PassRate(8, 2.0 * n) for n in range(5)}
    settings = CurationSettings(pass_rate_low=0.2, pass_rate_high=0.8)
    curation = Curation(settings, profile=recorded(rates))
    assert list(curation.run(rows)) == [Kept(rows[n], PassRate(8, 2.0 * n)) for n in (1, 2, 3)]
    removed = curation.report.to_json()["removed"]
    assert (removed["too_hard"], removed["too_easy"], removed["no_pass_rate"]) == (1, 1, 1)
    assert curation.report.pass_rates == [1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1]
    known_or_not = Curation(CurationSettings(keep_unknown=True), profile=recorded(rates))
    assert len(list(known_or_not.run(rows))) == 6


def test_rows_are_profiled_in_chunks_and_some_do_not_fit() -> None:
    sizes: list[int] = []

    def profile(rows: Sequence[Row]) -> list[PassRate | None]:
        sizes.append(len(rows))
        return [None if row.prompt.endswith("7?") else PassRate(2, 1.0) for row in rows]

    curation = Curation(CurationSettings(), profile=profile)
    kept = list(curation.run(Row(f"number {n}?", "1") for n in range(100)))
    assert sizes == [CHUNK_ROWS, 100 - CHUNK_ROWS]
    assert (len(kept), curation.report.removed["does_not_fit"]) == (90, 10)


def test_disabled_filters_remove_no_rows() -> None:
    rows = [Row(LONG.format(12), "$4$"), Row(LONG.format(12) + " again", "4")]
    settings = CurationSettings(near_similarity=1.1, normalise=False)
    assert [kept.row for kept in Curation(settings).run(rows)] == rows


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


async def test_pass_rates_are_read_from_a_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    ledger = Ledger.open(folder.ledger)
    for number, reward in ((1, 1.0), (2, 0.0)):
        ledger.record_group(group(number), Problem("a:0", "1+1?", "2", {}).to_json())
        ledger.record_attempt(attempt(number, group_id=number))
        ledger.store_rollouts([store_rollout(number, rollout(number, group_id=number))])
        await ledger.record_score(RolloutId(number), Score(reward, bool(reward)))
    assert read_run(folder) == {key_of("1+1?"): PassRate(2, 1.0)}
    await ledger.close()


def test_interrupted_profile_resumes(tmp_path: Path) -> None:
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
