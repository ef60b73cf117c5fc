"""Test that an evaluation begins with the first request for it, with the problems of its set."""

from __future__ import annotations

from typing import cast

import pytest

from coordinator.core.events.evaluation_events import EvaluationKey, EvaluationProblem
from coordinator.prompts.problems import Problems
from coordinator.shell.evaluations import Evaluations
from coordinator.shell.shell import Shell
from rollcast.runtime.errors import ProcessFailed
from rollcast.wire.ids import Version
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.coordinator.core_world import World

KEY = EvaluationKey("hard", Version(0), problems=2, samples=3, seed=5)


class ScriptedProblems:
    """One set of three problems."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    async def held_out(self, count: int, name: str) -> list[pb.Example]:
        self.asked.append((count, name))
        return [pb.Example(example_id=50 + one, prompt_token_ids=[7, one]) for one in range(min(3, count))]


class ScriptedShell:
    """A shell that applies events to a core, or loses them as one that is failing."""

    def __init__(self, *, failing: bool = False) -> None:
        world = World()
        world.start("a")
        self.core = world.core
        self.apply = (lambda event: []) if failing else world.handle


async def test_it_begins_once_with_the_first_problems_of_its_set() -> None:
    shell, problems = ScriptedShell(), ScriptedProblems()
    evaluations = Evaluations(cast(Shell, shell), cast(Problems, problems))
    found = await evaluations.ask(KEY, 60.0)
    assert found.request.problems == (EvaluationProblem(50, (7, 0)), EvaluationProblem(51, (7, 1)))
    assert (found.samples, found.request.deadline_s) == (6, 60.0)
    assert await evaluations.ask(KEY, 99.0) is found
    assert problems.asked == [(2, "hard")]


async def test_a_failing_coordinator_refuses() -> None:
    evaluations = Evaluations(cast(Shell, ScriptedShell(failing=True)), cast(Problems, ScriptedProblems()))
    with pytest.raises(ProcessFailed):
        await evaluations.ask(KEY, 60.0)
