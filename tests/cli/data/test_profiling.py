from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from coordinator.config.config import CoordinatorConfig
from coordinator.config.tasks import ExactCheck, JsonlTask
from coordinator.ledger.sqlite import Ledger
from coordinator.recovery.resume import TOKENIZER
from coordinator.tasks.curation.pass_rates import PassRate
from coordinator.tasks.fields import Row
from rollcast.cli.data import profiling as module
from rollcast.cli.data.profiling import profiling
from rollcast.runtime.run_folder import RunFolder, write_json
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import Tokenizer

TASK = JsonlTask(kind="jsonl", path=Path("never-read.jsonl"), check=ExactCheck())
LETTERS = Tokenizer((), "abcdefgh")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "run").prepare()
    config = CoordinatorConfig.model_validate({"sampling": {"prompt_tokens_max": 4, "new_tokens_max": 3}})
    write_json(folder.config / "coordinator.json", config.model_dump(mode="json"))

    async def fill() -> None:
        ledger = Ledger.open(folder.ledger)
        await ledger.set_meta(TOKENIZER, LETTERS.to_json())
        await ledger.close()

    asyncio.run(fill())
    return folder.root


class ScriptedDrawing:
    """Answers `a` and `b` in turn; what it is asked is written down."""

    asked: ClassVar[list[Sequence[int]]] = []

    def __init__(self, host: object, params: object, most: int, score: Callable[..., Any], seed: int) -> None:
        self._score = score

    def correct(self, problems: Sequence[pb.Example], samples: int, *, seeds: Sequence[int]) -> list[int]:
        self.asked.append(seeds)
        completions = [
            pb.Completion(example_id=one.example_id, token_ids=[*LETTERS.encode("ab"[number % 2]), 1])
            for one in problems
            for number in range(samples)
        ]
        scores = self._score(completions)
        return [sum(one.exact for one in scores[at : at + samples]) for at in range(0, len(scores), samples)]


def test_rows_are_solved_by_the_runs_policy_once(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_policy", lambda folder: (SimpleNamespace(run_id="r", step=7), {}))
    monkeypatch.setattr(module, "Drawing", ScriptedDrawing)
    rows = [Row("aa", "a"), Row("bb", "c"), Row("abcde", "a"), Row("zz", "a")]
    expected = [PassRate(4, 2), PassRate(4, 0), None, None]
    kept = tmp_path / "profile.jsonl"
    with profiling(run, run, TASK, 4, kept) as profile:
        assert profile(rows) == expected
    with profiling(run, run, TASK, 4, kept) as profile:
        assert profile([*rows, Row("cc", "b")]) == [*expected, PassRate(4, 2)]
    assert [len(one) for one in ScriptedDrawing.asked] == [2, 1]
