from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from coordinator.config.environments import GymTask, VerifiersTask
from coordinator.config.tasks import MixturePart, MixtureTask, ReasoningGymTask
from coordinator.tasks.build import environments_of, has_flawed_teacher
from coordinator.tasks.checks.task import Demonstration
from coordinator.tasks.environment import EnvironmentTask, environment_name, environment_spec
from coordinator.tasks.mixture import PromptMixture
from rollcast.runtime.errors import TaskError
from rollcast.wire.text.tokenizer import Tokenizer

GAMES = Path(__file__).parents[1] / "environments" / "scripted_game.py"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> EnvironmentTask:
    folder = str(tmp_path_factory.mktemp("game"))
    return EnvironmentTask(GymTask(kind="gym", path=f"{GAMES}:ScriptedGame", parameters={"folder": folder}), 7)


def test_its_problems_are_games(task: EnvironmentTask) -> None:
    problem = task.problem(3)
    assert problem == task.problem(3)
    assert problem.prompt == f"game {problem.data['seed']}"
    assert problem.data["messages"] == [{"role": "user", "content": problem.prompt}]
    assert problem.data["environment"].startswith("scripted_game.py:ScriptedGame-")
    assert problem.problem_id == "gym:3"
    assert task.problem(4).data["seed"] != problem.data["seed"]
    assert task.problem_count is None
    assert task.wording() == ("game ",)
    assert set("~é") & set(task.characters()) == {"~"}
    with pytest.raises(TaskError, match="has no check"):
        task.verify(problem, "3")


def test_a_demonstration_is_a_turn_of_the_teachers_game(task: EnvironmentTask) -> None:
    problem = task.problem(0)
    shown = [task.demonstration(problem, flawed=False, random=Random(seed)) for seed in range(8)]
    seed = problem.data["seed"]
    first, *_, second = sorted(shown, key=lambda one: len(one.turns))
    assert first == Demonstration("begin", ())
    assert (second.answer, len(second.turns)) == ("end", 1)
    assert second.turns[0] == ("begin", ({"role": "user", "content": f"{seed}: begin"},))


def test_examples_are_turns_behind_all_earlier_tokens(task: EnvironmentTask) -> None:
    tokenizer = Tokenizer(task.wording(), task.characters())
    mixture = PromptMixture(task, tokenizer, 7, 0, prompt_tokens_max=16, new_tokens_max=64)
    texts = set()
    for one in mixture.examples(8, flawed=False, cursor=0):
        said = "".join(
            "|" if token == tokenizer.eos_id else tokenizer.decode([token]) for token in one.prompt_token_ids
        )
        seed = one.problem.data["seed"]
        texts.add((said.replace(str(seed), "N"), tokenizer.decode(one.answer_token_ids)))
        assert one.answer_token_ids[-1] == tokenizer.eos_id
    assert texts == {("game N", "begin"), ("game Nbegin|N: begin", "end")}


def test_an_environment_has_one_name_wherever_it_is_used() -> None:
    guess = GymTask(kind="gym", path="game.py:Guess")
    other = guess.model_copy(update={"parameters": {"most": 9}})
    late = guess.model_copy(update={"step_timeout_s": 1.0})
    package = VerifiersTask(kind="verifiers", env={"taskset": {"id": "gsm8k"}}, python=Path("/venv/bin/python"))
    assert environment_name(guess) == environment_name(late) != environment_name(other)
    assert environment_name(package).startswith("gsm8k-")
    parts = [MixturePart(name=f"part{n}", task=one) for n, one in enumerate((guess, late, other, ReasoningGymTask()))]
    found = environments_of(MixtureTask(kind="mixture", parts=parts), {})
    assert list(found) == [environment_name(guess), environment_name(other)]
    assert environments_of(ReasoningGymTask(), {}) == {}
    assert [has_flawed_teacher(one) for one in (guess, package, ReasoningGymTask(name="gcd"))] == [False] * 3
    assert has_flawed_teacher(MixtureTask(kind="mixture", parts=parts))
    assert environment_spec(package).python == Path("/venv/bin/python")


def test_only_named_variables_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GymTask(kind="gym", path="game.py:Guess", pass_variables=["SERVICE_KEY"])
    monkeypatch.setenv("SERVICE_KEY", "secret")
    assert environment_spec(config).variables == {"SERVICE_KEY": "secret"}
    monkeypatch.delenv("SERVICE_KEY")
    with pytest.raises(TaskError, match="SERVICE_KEY is not set"):
        environment_spec(config)


def test_a_worker_that_died_is_replaced(task: EnvironmentTask) -> None:
    before = task.problem(100)
    asyncio.run_coroutine_threadsafe(task._worker.process.kill(), task._worker._loop).result()
    assert task.problem(101).prompt != before.prompt


def test_an_environment_that_cannot_be_loaded_is_explained() -> None:
    task = EnvironmentTask(GymTask(kind="gym", path="/nowhere.py:Game"), 7)
    with pytest.raises(TaskError, match=r"/nowhere\.py does not exist"):
        task.problem(0)


@pytest.mark.parametrize("path", ["tasks", "tasks.json"])
def test_a_taskset_lies_in_a_python_file(path: str) -> None:
    with pytest.raises(ValueError, match="Python file"):
        VerifiersTask(kind="verifiers", path=path)


def test_a_game_of_several_agents_is_seen_by_the_first_and_taught_to_all() -> None:
    haggle = GymTask(kind="gym", path=f"{GAMES}:Haggle", parameters={"first": "buyer"})
    task = EnvironmentTask(haggle, 7)
    problem = task.problem(0)
    assert problem.prompt == "sell:\n0"
    assert (problem.data["agents"], problem.data["rules"]) == (["seller", "buyer"], problem.data["messages"][:1])
    shown = {
        one.answer: one for one in (task.demonstration(problem, flawed=False, random=Random(n)) for n in range(16))
    }
    cost = f"cost {problem.data['seed']}"
    told = {text: [one.shown[0]["content"], *one.turns] for text, one in shown.items()}
    assert told["0"] == [cost]
    assert told["1"] == ["0"]
    assert told["2"] == [cost, ("0", ({"role": "user", "content": "1"},))]
    assert told["deal"] == ["0", ("1", ({"role": "user", "content": "2"},))]
    tokenizer = Tokenizer(task.wording(), task.characters())
    mixture = PromptMixture(task, tokenizer, 7, 0, prompt_tokens_max=16, new_tokens_max=64)
    (sampled,) = mixture.sample(1)
    assert tokenizer.decode(sampled.prompt_token_ids) == "sell:0"
    assert tokenizer.encode_rules(sampled.problem.data["rules"]) == list(sampled.prompt_token_ids[:1])
    texts = {tokenizer.decode(one.prompt_token_ids) for one in mixture.examples(8, flawed=False, cursor=0)}
    assert any(text.startswith("sell:cost") for text in texts)
