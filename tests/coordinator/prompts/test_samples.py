from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from coordinator.prompts import samples as kept
from coordinator.prompts.samples import Sample, SampleBook, evaluated, newest_completions, sample_of
from coordinator.stores.sqlite import Ledger
from coordinator.tasks.checks.task import Problem, Score
from rollcast.runtime.errors import RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.text.tokenizer import Tokenizer
from tests.coordinator.stored_work import attempt, group, rollout, store_rollout

PROBLEM = Problem("chain_sum:3", "1+1=", "2", {})


def sample(version: int, index: int = 0, name: str = "held_out", completion: str = "2") -> Sample:
    return sample_of(name, version, PROBLEM, index, completion, Score(1.0, True, "all of it", {"format": 0.5}))


async def test_the_newest_evaluation_is_shown_first(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    book = SampleBook(folder)
    for version in (5, 10):
        for index in range(2):
            await book.keep(sample(version, index))
    await book.keep(sample(10, 1))  # a repeated call
    await book.keep(sample(7, name="hard", completion="3"))
    assert evaluated(folder) == [sample(10, 0), sample(10, 1)]
    assert evaluated(folder, version=5) == [sample(5, 0), sample(5, 1)]
    assert evaluated(folder, "hard") == [sample(7, name="hard", completion="3")]


async def test_what_has_samples_is_named_where_they_are_missing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(RunFolderError, match="no samples of an evaluation in") as caught:
        evaluated(folder)
    assert caught.value.cause == "no evaluation has been scored yet"
    book = SampleBook(folder)
    for version, name in ((5, "held_out"), (7, "hard")):
        await book.keep(sample(version, name=name))
    with pytest.raises(RunFolderError, match="no samples of other in") as caught:
        evaluated(folder, "other")
    assert caught.value.cause == "there are samples of hard, held_out, and rollouts of training"
    assert caught.value.fix == "pass --set with one of them: hard, held_out, training"
    with pytest.raises(RunFolderError, match="no samples of hard at version 5") as caught:
        evaluated(folder, "hard", 5)
    assert caught.value.cause == "the versions with samples are 7"
    with pytest.raises(RunFolderError, match="no samples of an evaluation at version 6") as caught:
        evaluated(folder, version=6)
    assert caught.value.cause == "the versions with samples are 5, 7"


async def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    await SampleBook(folder).keep(sample(1))
    with (folder.samples / "000000000001.held_out.jsonl").open("a") as file:
        file.write('{"set": "held')
    assert evaluated(folder) == [sample(1)]


async def test_samples_are_bounded(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    book = SampleBook(folder, bytes_max=100_000)
    for version in range(20):
        await book.keep(sample(version, completion="x" * 100_000))
    files = sorted(folder.samples.iterdir())
    assert sum(path.stat().st_size for path in files) < 100_000 + kept.TEXT_LENGTH_MAX + 1000
    assert files[-1].name == "000000000019.held_out.jsonl"
    assert len(evaluated(folder)[0].completion) == kept.TEXT_LENGTH_MAX


async def test_the_newest_completions_come_from_the_ledger(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    ledger = Ledger.open(folder.ledger)
    for number in (1, 2):
        ledger.record_group(group(number), PROBLEM.to_json())
        ledger.record_attempt(attempt(number, group_id=number))
        await ledger.store_rollouts([store_rollout(number, rollout(number, group_id=number))])
    tokenizer = Tokenizer((), "0123456789")
    await ledger.close()
    text = tokenizer.decode(rollout(2).completion_token_ids)
    assert newest_completions(folder, tokenizer, 1) == [(PROBLEM, text)]


def test_missing_ledger_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run"):
        newest_completions(RunFolder(tmp_path), Tokenizer((), "a"), 1)
    sqlite3.connect(tmp_path / "store.sqlite").close()
    with pytest.raises(StoreError, match="cannot read"):
        newest_completions(RunFolder(tmp_path), Tokenizer((), "a"), 1)
