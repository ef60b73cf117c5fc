"""Test the shipped examples: their configurations, and that their games can be won and taught."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.tasks.environments import EXAMPLES, task_path
from coordinator.config.environments import GymTask, VerifiersTask
from coordinator.workers.plugins import load_plugin
from rollcast.cli.files import load
from rollcast.cli.up_config import UpConfig

ROOT = Path(__file__).parents[1]
LINES_MAX = 40


def config_of(name: str) -> UpConfig:
    config = load(ROOT / EXAMPLES[name], "up", [])
    assert isinstance(config, UpConfig)
    return config


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_environment_takes_few_lines(name: str) -> None:
    task = config_of(name).coordinator.task
    assert isinstance(task, GymTask | VerifiersTask)
    file = EXAMPLES[name].parent / task.path.partition(":")[0]
    assert len((ROOT / file).read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("name", ["calculator", "guessing"])
def test_a_teacher_plays_to_the_end_and_equal_seeds_are_equal_games(name: str) -> None:
    config = config_of(name).coordinator
    assert isinstance(config.task, GymTask)
    make = load_plugin(f"{ROOT}/{task_path(name)}", "no.group")
    games = []
    for seed in (*range(20), *range(20)):
        game, said, done = make(), [], False
        said.append(game.reset(seed))
        while not done:
            text = game.demonstrate()
            observation, reward, done = game.step(text)
            said += [text, observation]
            assert reward in (0.0, 1.0)
        assert len(said[0]) <= 10
        games.append(said)
        assert sum(len(text) + 1 for text in said[1:]) <= config.sampling.new_tokens_max
    assert games[:20] == games[20:]


def test_halving_always_wins_the_guessing_game() -> None:
    for seed in range(50):
        game = load_plugin(f"{ROOT}/examples/guessing/game.py:Guess", "no.group")()
        game.reset(seed)
        low, high, reward, done = 1, 7, 0.0, False
        while not done:
            guess = (low + high) // 2
            said, reward, done = game.step(str(guess))
            low, high = (guess + 1, high) if said == ">" else (low, guess - 1)
        assert reward == 1.0


def test_the_calculator_answers_products_alone() -> None:
    game = load_plugin(f"{ROOT}/examples/calculator/game.py:Calculator", "no.group")()
    task = game.reset(1).removesuffix("=")
    assert game.step(f"calc {task}") == (f"{game.answer}=", 0.0, False)
    assert game.step(game.answer) == ("", 1.0, True)
    for hostile in ("__import__('os')", "9**9**9", "12*" + "9" * 100, ""):
        assert game.calculate(hostile) == "error"


def telling(seed: int, *, copies: bool) -> tuple[float, list[str]]:
    """Play the game of two agents with its teacher, or with agents that repeat the digit that they are shown."""
    game = load_plugin(f"{ROOT}/examples/telling/game.py:Telling", "no.group")()
    rules, speaker, shown = game.reset(seed)
    said, total, done = [rules, shown], 0.0, False
    while not done:
        text = shown[-2] if copies else game.demonstrate()
        before = speaker
        speaker, shown, rewards, done = game.step(text)
        assert {before, speaker} == set(game.agents)
        assert rewards in ({}, dict.fromkeys(game.agents, 0.0), dict.fromkeys(game.agents, 0.5))
        total += rewards.get("listener", 0.0)
        said += [text, shown]
    return total, said


def test_two_agents_that_pass_on_the_digit_always_win_and_the_teacher_seldom_does() -> None:
    config = load(ROOT / "examples" / "telling" / "run.toml", "up", [])
    assert isinstance(config, UpConfig)
    run, sampling = config.coordinator.run, config.coordinator.sampling
    assert run.samples_per_group % 2 == 0
    assert {telling(seed, copies=True)[0] for seed in range(20)} == {1.0}
    taught = [telling(seed, copies=False) for seed in range(200)]
    assert [telling(seed, copies=False) for seed in range(200)] == taught
    assert 0.3 < sum(reward for reward, _ in taught) / len(taught) < 0.6
    assert all(sum(len(text) + 2 for text in said[1:]) / 2 <= sampling.new_tokens_max for _, said in taught)
