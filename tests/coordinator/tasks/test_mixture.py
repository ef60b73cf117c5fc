"""Test the mixture of tasks: the shares of its parts, the part of each problem, and the volatility of rewards."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from coordinator.config.tasks import JsonlTask
from coordinator.tasks.checks.task import TaskAdapter
from coordinator.tasks.mixture import PromptMixture, Stage, TrainingPrompt, default_held_out
from coordinator.tasks.multi_task import Mixed, Part
from coordinator.tasks.part_stream import PartStream, text_hash
from coordinator.tasks.reasoning_gym import ReasoningGym
from coordinator.tasks.rows import Rows
from coordinator.tasks.token_limits import TokenLimits
from coordinator.tasks.volatility import Difficulty, Volatility
from rollcast.runtime.errors import TaskError
from rollcast.wire.text.tokenizer import Tokenizer

SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}


def mixture(
    adapter: TaskAdapter, *, seed: int = 5, held_out: int = 100, longest: int = 32, answer: int = 32
) -> PromptMixture:
    return PromptMixture(adapter, Tokenizer(adapter.wording(), adapter.characters()), seed, held_out, longest, answer)


@pytest.fixture(scope="module")
def sums() -> ReasoningGym:
    return ReasoningGym("chain_sum", SMALL, 5)


def numbers_file(path: Path, count: int) -> Rows:
    path.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": str(n)}) + "\n" for n in range(count)))
    return Rows(JsonlTask(kind="jsonl", path=path))


def test_the_stream_follows_from_the_seed(sums: ReasoningGym) -> None:
    first, second = mixture(sums), mixture(sums)
    assert first.sample(50) == second.sample(20) + second.sample(30)
    assert first.held_out(100) == second.held_out(100)
    assert first.examples(20, flawed=True, cursor=0) == second.examples(20, flawed=True, cursor=0)


def test_every_position_restores_exactly(sums: ReasoningGym) -> None:
    drawn = mixture(sums).sample(40)
    for at in (0, 7, 38):
        resumed = mixture(sums)
        resumed.restore(drawn[at].position)
        assert resumed.sample(39 - at) == drawn[at + 1 :]


def test_nothing_held_out_is_ever_trained_on(sums: ReasoningGym) -> None:
    source = mixture(sums)
    held_out = {example.problem.prompt for example in source.held_out(1000)}
    assert len(held_out) == 100
    trained = {drawn.problem.prompt for drawn in source.sample(3000)}
    shown = {example.problem.prompt for example in source.examples(3000, flawed=False, cursor=0)}
    assert not held_out & (trained | shown)
    assert len(trained) > 1000


def test_held_out_problems_carry_no_answer(sums: ReasoningGym) -> None:
    examples = mixture(sums).held_out(10)
    assert [example.example_id for example in examples] == list(range(10))
    assert all(example.answer_token_ids == () and example.prompt_token_ids for example in examples)


def test_examples_end_with_end_of_sequence_and_go_on_at_the_cursor(sums: ReasoningGym) -> None:
    source = mixture(sums)
    tokenizer = Tokenizer(sums.wording(), sums.characters())
    examples = source.examples(60, flawed=False, cursor=0)
    again = source.examples(30, flawed=False, cursor=examples[29].example_id + 1)
    assert again == examples[30:]
    for example in examples:
        assert example.answer_token_ids[-1] == tokenizer.eos_id
        assert tokenizer.decode(example.answer_token_ids) == example.problem.answer


def test_flawed_examples_are_often_wrong(sums: ReasoningGym) -> None:
    tokenizer = Tokenizer(sums.wording(), sums.characters())
    examples = mixture(sums).examples(300, flawed=True, cursor=0)
    right = [tokenizer.decode(example.answer_token_ids) == example.problem.answer for example in examples]
    assert 0.25 < sum(right) / 300 < 0.6


def test_long_prompts_are_skipped_and_counted(sums: ReasoningGym) -> None:
    source = mixture(sums, longest=8)  # two pieces and six characters: at most one operand of two digits
    assert all(len(drawn.prompt_token_ids) <= 8 for drawn in source.sample(200))
    assert all(len(example.prompt_token_ids) <= 8 for example in source.held_out(100))
    assert source.skipped["prompt_too_long"] > 50
    resumed = mixture(sums, longest=8)
    resumed.restore(source.position())
    assert resumed.skipped["prompt_too_long"] == source.skipped["prompt_too_long"]


def test_problems_with_long_answers_are_skipped_everywhere_and_counted(sums: ReasoningGym) -> None:
    source = mixture(sums, answer=3)  # two characters and the end of sequence
    drawn, shown = source.sample(300), source.examples(100, flawed=False, cursor=0)
    problems = [one.problem for one in drawn] + [one.problem for one in (*source.held_out(100), *shown)]
    assert all(len(problem.answer) <= 2 for problem in problems)
    assert source.skipped["answer_too_long"] > 50
    resumed = mixture(sums, answer=3)
    resumed.restore(source.position())
    assert resumed.skipped["answer_too_long"] == source.skipped["answer_too_long"]
    assert resumed.sample(20) == source.sample(20)


def test_no_demonstration_is_longer_than_a_completion_may_be(sums: ReasoningGym) -> None:
    flawed = mixture(sums, answer=3).examples(500, flawed=True, cursor=0)
    assert max(len(example.answer_token_ids) for example in flawed) == 3


def test_error_names_the_limits_that_problems_need() -> None:
    four_digits = {"min_terms": 2, "max_terms": 2, "min_digits": 4, "max_digits": 4}
    with pytest.raises(TaskError, match="too few problems") as caught:
        mixture(ReasoningGym("chain_sum", four_digits, 5), longest=9, answer=2)
    assert "prompts have up to 13 tokens (sampling.prompt_tokens_max = 9)" in caught.value.cause
    assert "answers have up to 6 tokens" in caught.value.cause
    assert "raise sampling.prompt_tokens_max to 13 and sampling.new_tokens_max to 6" in caught.value.fix


def test_exhausted_stream_names_the_limits_that_problems_need(
    sums: ReasoningGym, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = mixture(sums, answer=3)
    monkeypatch.setattr("coordinator.tasks.mixture.DRY_MAX", 50)
    monkeypatch.setattr(source._limits, "new_tokens_max", 1)
    with pytest.raises(TaskError, match="no usable problem") as caught:
        source.sample(1)
    assert "raise sampling.new_tokens_max to 4" in caught.value.fix


def test_unknown_characters_are_skipped_and_counted(sums: ReasoningGym) -> None:
    tokenizer = Tokenizer(sums.wording(), sums.characters().replace("7", ""))
    source = PromptMixture(sums, tokenizer, 5, 20, 32, 32)
    assert all("7" not in drawn.problem.prompt for drawn in source.sample(100))
    assert source.skipped["unknown_characters"] > 10
    assert all("7" not in example.problem.answer for example in source.examples(50, flawed=False, cursor=0))


def test_later_passes_through_a_file_use_another_order(tmp_path: Path) -> None:
    source = mixture(numbers_file(tmp_path / "n.jsonl", 60), held_out=20)
    first = [drawn.problem.problem_id for drawn in source.sample(40)]
    second = [drawn.problem.problem_id for drawn in source.sample(40)]
    assert sorted(first) == sorted(second)
    assert len(set(first)) == 40
    assert first != second
    resumed = mixture(numbers_file(tmp_path / "n.jsonl", 60), held_out=20)
    resumed.restore(source.position())
    assert resumed.sample(10) == source.sample(10)


def test_the_same_text_twice_in_a_file_is_on_one_side(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    rows = [{"prompt": f"{n % 40}?", "answer": str(n)} for n in range(120)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = mixture(Rows(JsonlTask(kind="jsonl", path=path)), held_out=15)
    held_out = {example.problem.prompt for example in source.held_out(15)}
    assert len(held_out) == 15
    assert {drawn.problem.prompt for drawn in source.sample(150)} == {f"{n}?" for n in range(40)} - held_out


def test_too_few_problems_to_hold_out(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="too few problems") as caught:
        mixture(numbers_file(tmp_path / "n.jsonl", 60), held_out=31)
    assert "at most 30" in caught.value.fix


def test_a_file_of_which_nothing_is_usable_is_not_read_to_its_end(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="too few problems") as caught:
        mixture(numbers_file(tmp_path / "n.jsonl", 5000), held_out=10, longest=1)
    assert "0 different ones are usable: prompts have up to 5 tokens" in caught.value.cause, "of the first 1280"


def test_by_default_an_eighth_of_a_small_file_is_held_out(sums: ReasoningGym, tmp_path: Path) -> None:
    small, large = numbers_file(tmp_path / "small", 80), numbers_file(tmp_path / "large", 8000)
    assert [default_held_out(one) for one in (sums, small, large)] == [512, 10, 512]
    both = Mixed((Part("sums", sums), Part("small", small)))
    assert default_held_out(both) == 20  # ten of each
    assert default_held_out(both, (Stage(0, {"sums": 3.0, "small": 1.0}),)) == 40
    assert default_held_out(both, (Stage(0, {"sums": 1.0}),)) == 512
    assert default_held_out(numbers_file(tmp_path / "tiny", 3)) == 1


def test_small_problem_space_can_be_held_out(sums: ReasoningGym) -> None:
    tiny = ReasoningGym("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}, 5)
    assert len(mixture(tiny, held_out=90).held_out(90)) == 90  # of 200
    with pytest.raises(TaskError, match="too few problems"):
        mixture(tiny, held_out=150)


@pytest.mark.parametrize(
    "position",
    ["", "{}", "[]", '{"drawn": 1, "parts": {"": [-1, 0, 0, 0, 0, 0]}}', "null", '{"drawn": 1, "parts": {"": [1]}}'],
)
def test_nonsense_is_not_a_position(sums: ReasoningGym, position: str) -> None:
    with pytest.raises(TaskError, match="position"):
        mixture(sums).restore(position)


def test_error_without_demonstrations_has_a_fix() -> None:
    source = mixture(ReasoningGym("propositional_logic", {}, 5), held_out=4, longest=500)
    with pytest.raises(TaskError, match="no demonstrations") as caught:
        source.examples(1, flawed=False, cursor=0)
    assert "learner.warm_start.steps_max=0" in caught.value.fix


# ---------------------------------------------------------------- several parts
def parts(tmp_path: Path) -> Mixed:
    easy = numbers_file(tmp_path / "easy.jsonl", 200)
    return Mixed([Part("easy", easy), Part("sums", ReasoningGym("chain_sum", SMALL, 5))])


def mixed(task: Mixed, *, held_out: int = 20, **named: Any) -> PromptMixture:
    tokenizer = Tokenizer(task.wording(), task.characters())
    return PromptMixture(task, tokenizer, 5, held_out, 64, 32, **named)


CURRICULUM = (Stage(0, {"easy": 3.0, "sums": 1.0}), Stage(10, {"sums": 1.0}), Stage(20, {"easy": 1.0, "sums": 1.0}))


def part_of(drawn: TrainingPrompt) -> str:
    return drawn.problem.problem_id.partition("/")[0]


def test_weights_decide_how_many_prompts_a_part_gets(tmp_path: Path) -> None:
    names = [part_of(one) for one in mixed(parts(tmp_path), stages=CURRICULUM).sample(800)]
    assert 0.70 < names.count("easy") / 800 < 0.80


def test_stages_follow_the_learner(tmp_path: Path) -> None:
    source = mixed(parts(tmp_path), stages=CURRICULUM)
    names = [part_of(one) for one in source.sample(90, [step for step in range(30) for _ in range(3)])]
    assert set(names[:30]) == {"easy", "sums"}
    assert set(names[30:60]) == {"sums"}
    assert set(names[60:]) == {"easy", "sums"}


def test_every_position_of_several_parts_restores_exactly(tmp_path: Path) -> None:
    task, steps = parts(tmp_path), [n // 2 for n in range(60)]
    drawn = mixed(task, stages=CURRICULUM).sample(60, steps)
    for at in (0, 19, 41):
        resumed = mixed(task, stages=CURRICULUM)
        resumed.restore(drawn[at].position)
        assert resumed.sample(59 - at, steps[at + 1 :]) == drawn[at + 1 :]
    with pytest.raises(TaskError, match="position"):
        mixture(ReasoningGym("chain_sum", SMALL, 5)).restore(drawn[0].position)


def test_held_out_problems_come_from_every_part_by_weight(tmp_path: Path) -> None:
    source = mixed(parts(tmp_path), stages=CURRICULUM)
    names = [example.problem.problem_id.partition("/")[0] for example in source.held_out(20)]
    assert (names.count("easy"), names.count("sums")) == (15, 5)
    held_out = {example.problem.prompt for example in source.held_out(20)}
    assert not held_out & {one.problem.prompt for one in source.sample(2000)}


def test_texts_of_evaluation_sets_are_never_sampled(tmp_path: Path) -> None:
    numbers = numbers_file(tmp_path / "n.jsonl", 60)
    kept_out = {text_hash(f"{n}?") for n in range(30)}
    tokenizer = Tokenizer(numbers.wording(), numbers.characters())
    source = PromptMixture(numbers, tokenizer, 5, 4, 64, 32, kept_out=kept_out)
    assert all(int(one.problem.answer) >= 30 for one in source.sample(100))
    assert source.skipped["in_evaluation"] > 60


def test_dull_problems_of_a_file_are_passed_over(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    def wanted(problem_id: str, times: int, step: int) -> bool:
        asked.append((problem_id, times))
        return times == 0 or problem_id.endswith("7")

    numbers = numbers_file(tmp_path / "n.jsonl", 60)
    tokenizer = Tokenizer(numbers.wording(), numbers.characters())
    source = PromptMixture(numbers, tokenizer, 5, 4, 64, 32, wanted=wanted)
    first = source.sample(54)  # the problems whose hash is not below the threshold
    assert len({one.problem.prompt for one in first}) == 54
    later = source.sample(20)
    assert all(one.problem.answer.endswith("7") for one in later)
    assert {times for _, times in asked} >= {0, 1, 2}


def rewarded(volatility: Volatility, problem_id: str, *rewards: float) -> None:
    for reward in rewards:
        volatility.rewarded(problem_id, reward)


def test_problems_are_sampled_by_volatility() -> None:
    volatility = Volatility(3, 0.1)
    rewarded(volatility, "solved", *[1.0] * 40)
    rewarded(volatility, "hopeless", *[0.0] * 40)
    rewarded(volatility, "learnable", *[0.0, 1.0] * 20)
    assert volatility.chance("solved") == volatility.chance("hopeless") == 0.1
    assert volatility.chance("learnable") > 0.9
    assert volatility.chance("never drawn") == 1.0
    passes = range(1, 1001)
    assert 60 < sum(volatility.wanted("solved", times) for times in passes) < 140
    assert sum(volatility.wanted("learnable", times) for times in passes) > 900
    assert volatility.wanted("solved", 0)


def kept_mean(volatility: Volatility, problem_id: str) -> float:
    return volatility._figures[problem_id].mean


def test_stages_leave_out_problems_by_their_pass_rate() -> None:
    difficulty = [Difficulty(0, 0.0, 1.0), Difficulty(100, 0.1, 0.9)]
    volatility = Volatility(3, 0.05, weighs=False, difficulty=difficulty)
    rewarded(volatility, "solved", *[1.0] * 8)
    rewarded(volatility, "hard", *[0.0, 0.0, 1.0, 0.0])
    assert [volatility.chance("solved", step) for step in (0, 99, 100, 500)] == [1.0, 1.0, 0.05, 0.05]
    assert kept_mean(volatility, "hard") == pytest.approx(0.25)
    assert volatility.chance("hard", 100) == volatility.chance("never drawn", 100) == 1.0


def test_a_stage_that_begins_by_a_condition_leaves_out_nothing_before() -> None:
    volatility = Volatility(3, 0.05, weighs=False, difficulty=[Difficulty(0, 0.0, 1.0), Difficulty(None, 0.1, 0.9)])
    rewarded(volatility, "solved", *[1.0] * 8)
    assert volatility.chance("solved", 500) == 1.0
    volatility.stage_began(1, 100)
    assert [volatility.chance("solved", step) for step in (99, 100)] == [1.0, 0.05]


def test_problems_of_few_rollouts_are_explored() -> None:
    volatility = Volatility(3, 0.1, exploration=0.5)
    rewarded(volatility, "often", *[1.0] * 96)
    rewarded(volatility, "seldom", *[1.0] * 4)
    for problem, rollouts in (("often", 96), ("seldom", 4)):
        assert volatility.chance(problem) == pytest.approx(max(0.1, 0.5 * math.sqrt(math.log(100) / rollouts)))
    kept = [volatility.rewarded("often", 1.0), volatility.rewarded("seldom", 1.0)]
    assert Volatility(3, 0.1, kept, exploration=0.5).chance("seldom") == volatility.chance("seldom")


def test_reward_figures_are_moving_averages() -> None:
    volatility = Volatility(3, 0.1)
    rewarded(volatility, "a", *[1.0] * 50)
    last = volatility.rewarded("a", 0.0)
    assert last.rollouts == 51
    assert last.mean == pytest.approx(0.9)
    assert last.variance == pytest.approx(0.09)


def test_stored_rewards_give_the_same_sampling() -> None:
    first = Volatility(3, 0.1)
    kept = [first.rewarded(f"p{n}", float(n % 2)) for n in range(20)]
    kept += [first.rewarded("p3", 0.0)]
    again = Volatility(3, 0.1, {one.problem_id: one for one in kept}.values())
    asked = [(f"p{n}", times) for n in range(20) for times in range(20)]
    assert [first.wanted(*one) for one in asked] == [again.wanted(*one) for one in asked]
    assert [Volatility(4, 0.1, kept).wanted(*one) for one in asked] != [first.wanted(*one) for one in asked]


def test_a_part_goes_through_its_file_again_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": str(n)}) + "\n" for n in range(30)))
    rows = Rows(JsonlTask(kind="jsonl", path=path))
    limits = TokenLimits(Tokenizer((), rows.characters()), 8, 8)
    streams = [PartStream(Part(name, rows), limits, 1, lambda *_: True) for name in ("", "a", "a")]
    orders = [[found[0].prompt for _ in range(60) if (found := stream.next_problem(()))] for stream in streams]
    assert orders[1] == orders[2] != orders[0]
    assert sorted(orders[0][:30]) == sorted(orders[0][30:])
    assert orders[0][:30] != orders[0][30:]
    assert streams[0].cursor.values() == [60, 0, 0, 0, 0, 0]
