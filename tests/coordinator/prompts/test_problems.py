"""Test the run's problems: sampled by its mixture, scored, and tokenized."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from coordinator.config.config import CoordinatorConfig, TokenizerConfig
from coordinator.prompts.loading import SkipLog, TaskLoading, _mixture, check_agents
from coordinator.prompts.problems import Problems
from coordinator.prompts.tokenizers import check_stop_strings, run_tokenizer, stored_tokenizer
from coordinator.tasks.checks.task import Problem, Score
from coordinator.tasks.mixture import PromptMixture
from coordinator.tasks.reasoning_gym import ReasoningGym
from coordinator.tasks.rows import Rows
from coordinator.verifiers.scorer import Scored, ScoreItem, Verdict
from rollcast.runtime.errors import ConfigError, TaskError
from rollcast.wire.ids import RolloutId
from rollcast.wire.joining.grpc_client import translate
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.hub_tokenizer import HubTokenizer
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.running import Member, running
from tests.wire.text.hub_tokenizer_files import tokenizer_folder

FOUR_DIGITS = {"min_terms": 2, "max_terms": 2, "min_digits": 4, "max_digits": 4}


def config(prompt_tokens_max: int, new_tokens_max: int, **task: Any) -> CoordinatorConfig:
    return CoordinatorConfig.model_validate(
        {
            "task": {"kind": "reasoning-gym", "name": "chain_sum", "parameters": FOUR_DIGITS} | task,
            "held_out_problems": 16,
            "sampling": {"prompt_tokens_max": prompt_tokens_max, "new_tokens_max": new_tokens_max},
        }
    )


async def test_known_tokenizer_needs_no_wait(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(f'{{"prompt": "{number}+1=", "answer": "{number + 1}"}}\n' for number in range(64)))
    rows = {"kind": "jsonl", "path": str(path), "check": {"kind": "exact"}}
    task = CoordinatorConfig.model_validate({"task": rows, "held_out_problems": 16})
    first = await Problems.start(task, None)
    again = await Problems.start(task, None, (), first.tokenizer.to_json())
    other = await Problems.start(task, None, (), Tokenizer(("x",), "yz").to_json())
    try:
        assert await again.held_out(4) == await first.held_out(4)
        assert "wording differs" in str(await other.failed())
    finally:
        for problems in (first, again, other):
            await problems.close()


async def test_another_task_with_limits_that_it_fits() -> None:
    problems = await Problems.start(config(13, 6), None)
    try:
        examples = [*await problems.examples(300, flawed=False, cursor=0), *await problems.held_out(16)]
        examples += await problems.examples(300, flawed=True, cursor=0)
        assert max(len(example.prompt_token_ids) for example in examples) == 13
        assert 5 <= max(len(example.answer_token_ids) for example in examples) <= 6
        (prompt,) = await problems.sample(1)
        answer = problems.tokenizer.encode(problems.sampled(prompt.problem_id).answer)
        verdict = await problems.score(RolloutId(1), prompt.problem_id, pack_ids([*answer, problems.tokenizer.eos_id]))
        assert isinstance(verdict, Scored)
        assert verdict.score.exact
    finally:
        await problems.close()


@pytest.mark.parametrize(
    ("prompt_tokens_max", "new_tokens_max", "raised"),
    [(9, 6, "sampling.prompt_tokens_max to 13"), (13, 2, "sampling.new_tokens_max to 6")],
)
async def test_error_names_the_limits_that_problems_need(
    prompt_tokens_max: int, new_tokens_max: int, raised: str
) -> None:
    with pytest.raises(TaskError, match="too few problems") as caught:
        await Problems.start(config(prompt_tokens_max, new_tokens_max), None)
    assert raised in caught.value.fix
    assert "answers have up to 6 tokens" in caught.value.cause


async def test_learner_gets_an_error_without_demonstrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "demonstration", lambda *_args, **_named: None)
    async with running(tmp_path) as coordinator, Member(await coordinator.join("learner")) as learner:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in learner.stub.Examples(pb.ExamplesRequest(count=4), timeout=20.0):
                pass
        error = translate(caught.value, "testing")
    assert isinstance(error, TaskError)
    assert "learner.warm_start.steps_max=0" in error.fix


def test_skips_are_logged_when_they_grow_and_at_most_once_a_minute() -> None:
    sums = ReasoningGym("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, 5)
    mixture = PromptMixture(sums, Tokenizer(sums.wording(), sums.characters()), 5, 20, 32, 32)
    skips = SkipLog(mixture)
    with capture_logs() as logs:
        skips.log_changes(1.0)
        for now_s, skipped in ((2.0, 3), (3.0, 4), (61.0, 4), (62.0, 4), (122.0, 4), (130.0, 5)):
            mixture._streams[""].cursor.skipped_answer_too_long = skipped
            skips.log_changes(now_s)
    assert [entry["answer_too_long"] for entry in logs] == [3, 4, 5]
    assert {entry["event"] for entry in logs} == {"problems skipped"}


async def test_evaluation_text_after_a_stop_string_is_not_scored(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(f'{{"prompt": "{number}+1=", "answer": "{number + 1}"}}\n' for number in range(64)))
    rows = {"kind": "jsonl", "path": str(path), "check": {"kind": "exact"}}
    values: dict[str, Any] = {"task": rows, "held_out_problems": 4}
    problems = await Problems.start(CoordinatorConfig.model_validate(values), None)
    (example, *_) = await problems.held_out(4)
    answer = (await problems.evaluated(example.example_id))[1].answer
    await problems.close()
    for strings, exact in (((), False), ((answer,), True)):
        values["sampling"] = {"stop_strings": strings}
        problems = await Problems.start(CoordinatorConfig.model_validate(values), None)
        try:
            tokens = problems.tokenizer.encode(f"{answer}0")
            assert (await problems.score_held_out(example.example_id, tokens)).exact is exact
        finally:
            await problems.close()


SMALL = Tokenizer(("+",), "12")


def test_without_a_folder_the_tokenizer_is_built_from_the_wording() -> None:
    assert run_tokenizer(TokenizerConfig(), lambda: SMALL) is SMALL
    assert stored_tokenizer(TokenizerConfig(), SMALL.to_json()) == SMALL


class Decoding:
    """A scorer that decodes; it keeps the items that it was given."""

    decodes = True

    def __init__(self) -> None:
        self.items: list[ScoreItem] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def decode_by(self, tokenizer_json: str) -> None:
        self.tokenizer_json = tokenizer_json

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        return [await self.submit(item) for item in items]

    def submit(self, item: ScoreItem) -> asyncio.Future[Verdict]:
        self.items.append(item)
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        verdict.set_result(Scored(item.key, Score(1.0, True)))
        return verdict


class ScoredBy:
    """A task that has this scorer, and nothing else."""

    environments = None

    def __init__(self, scorer: Decoding) -> None:
        self.scorer = scorer

    async def close(self) -> None:
        await self.scorer.close()


async def test_where_the_scorer_decodes_no_completion_is_decoded_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ScoredBy(Decoding())
    monkeypatch.setattr(Tokenizer, "decode", lambda *_: pytest.fail("decoded on the loop"))
    problems = Problems(SMALL, task, asyncio.create_task(asyncio.sleep(0)), None)  # type: ignore[arg-type]
    problems._sampled.keep([Problem("p", "1+1=", "2", {})])
    verdict = await problems.score(RolloutId(1), "p", pack_ids((2, 70_000)))
    await problems.close()
    assert verdict == Scored("rollout 1", Score(1.0, True))
    assert task.scorer.tokenizer_json == SMALL.to_json()
    assert [one.token_ids for one in task.scorer.items] == [b"\x02\0\0\0\x70\x11\x01\0"]


def test_resumed_run_keeps_its_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    config = TokenizerConfig(folder=tokenizer_folder(tmp_path / "model"), arguments={"enable_thinking": False})
    kept = run_tokenizer(config, lambda: SMALL).to_json()
    assert stored_tokenizer(config, kept).to_json() == kept
    for changed in (config.model_copy(update={"system_prompt": "Be brief."}), TokenizerConfig(folder=config.folder)):
        with pytest.raises(TaskError, match="differs from the one at the run's start"):
            stored_tokenizer(changed, kept)


def test_a_stop_string_that_no_completion_can_hold_is_refused(tmp_path: Path) -> None:
    check_stop_strings(SMALL, ("1+", "22"))
    with pytest.raises(ConfigError, match="no completion can hold the stop string '3'"):
        check_stop_strings(SMALL, ("1", "3"))
    check_stop_strings(HubTokenizer(tokenizer_folder(tmp_path / "model")), ("</answer>", "é"))


def test_the_agents_of_a_game_share_the_samples_of_a_group_evenly() -> None:
    game = Problem("gym:0", "", "", {"agents": ["teller", "listener"]})
    check_agents(game, 4)
    check_agents(Problem("sum:0", "1+1=", "2", {}), 3)
    with pytest.raises(TaskError, match="2 agents, and a group 3 samples"):
        check_agents(game, 3)


def test_the_choice_of_problems_holds_beside_an_evaluation_set(tmp_path: Path) -> None:
    for name, first in (("train", 0), ("test", 100)):
        rows = (f'{{"prompt": "{number}+1=", "answer": "{number + 1}"}}\n' for number in range(first, first + 64))
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    task = {"kind": "jsonl", "path": str(tmp_path / "train.jsonl"), "check": {"kind": "exact"}}
    other = {"task": {**task, "path": str(tmp_path / "test.jsonl")}, "problems": 4}
    settings = CoordinatorConfig.model_validate(
        {"task": task, "held_out_problems": 4, "evaluation_sets": {"other": other}}
    )
    asked: list[str] = []

    def is_wanted(problem_id: str, times: int, step: int) -> bool:
        asked.append(problem_id)
        return True

    mixture, sets = _mixture(settings, is_wanted)
    (prompt,) = mixture.sample(1)
    assert asked == [prompt.problem.problem_id]
    assert len(sets["other"].examples) == 4


async def test_a_task_that_loaded_before_continues_at_the_position_that_is_known_later() -> None:
    settings = config(32, 16)
    first = await Problems.start(settings, None)
    task = TaskLoading(settings)
    try:
        before = await first.sample(3)
        await task.loaded()  # as at a standby
        again = await Problems.start(settings, before[1].mixture_position, (), first.tokenizer.to_json(), (), task)
        assert await again.sample(1) == before[2:]
        await again.close()
    finally:
        await first.close()
        await task.close()
