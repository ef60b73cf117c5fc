from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from learner.coordinator.reporter import StatusReporter
from learner.evaluation.by_peers import PeerEvaluator
from learner.evaluation.held_out import HeldOut
from learner.evaluation.periodic import EvaluationPlan, Evaluations
from rollcast.policy.params import Params
from rollcast.runtime.errors import CheckpointError
from rollcast.wire.proto import rollcast_pb2 as pb


class ScriptedSet:
    """A set of four problems in two parts that records the requests it receives."""

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    seed = 7

    def __len__(self) -> int:
        return 4

    def parts(self, samples: int) -> list[int]:
        return [0, 2]

    def complete(self, params: Params, start: int, samples: int, *, version: int) -> list[pb.Completion]:
        self._asked.append(f"part {start} of version {version}")
        return [pb.Completion(example_id=start + n) for n in range(2) for _ in range(samples)]


class World:
    """Evaluations of two sets, with a worker thread and a coordinator that finds even problems right.

    ``peers``: whether they evaluate, and find one sample of every problem right.
    """

    def __init__(self, every_steps: int = 2, *, peers: bool = False) -> None:
        self.asked: list[str] = []
        self.requests: list[pb.EvaluationRequest] = []
        self.peers = peers
        self.kept = asyncio.Event()
        self.announced = asyncio.Event()
        self.announced.set()
        self.reporter = StatusReporter(self._ignore)
        sets = {name: cast(HeldOut, ScriptedSet(self.asked)) for name in ("held_out", "hard")}
        plan = EvaluationPlan(every_steps, 9, 2, (1, 2))
        self.worker = ThreadPoolExecutor(1)
        by_peers = PeerEvaluator(self._evaluate, 60.0, poll_s=0.0)
        self.evaluations = Evaluations(
            plan, sets, by_peers, lambda version: {}, self.worker, self._score, self.reporter
        )

    async def _evaluate(self, request: pb.EvaluationRequest) -> pb.EvaluationReply:
        self.requests.append(request)
        if not self.peers:
            return pb.EvaluationReply(ended=True, given_up="there is no peer")
        scores = [pb.ProblemScore(exact=1, reward=0.25)] * request.problems
        return pb.EvaluationReply(ended=True, scores=scores)

    async def _ignore(self, *_status: object) -> None:
        return None

    async def _score(self, completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        return [pb.CompletionScore(example_id=one.example_id, exact=one.example_id % 2 == 0) for one in completions]

    def step(self, step: int) -> None:
        self.evaluations.step_done(step, step, self._kept, self.announced.wait)

    async def _kept(self) -> None:
        await self.kept.wait()

    async def settle(self) -> None:
        """Let every task that can run do so."""
        for _ in range(50):
            await asyncio.get_running_loop().run_in_executor(self.worker, lambda: None)


async def test_one_part_between_two_steps_and_all_while_the_learner_waits() -> None:
    world = World()
    world.kept.set()
    world.step(2)
    await world.settle()
    assert world.asked == ["part 0 of version 2"]
    world.step(3)
    await world.settle()
    assert world.asked == ["part 0 of version 2", "part 2 of version 2"]
    with world.evaluations.idle():
        await world.settle()
    assert len(world.asked) == 4
    figures = world.evaluations.take_figures()
    assert figures["eval_held_out_pass_at_1"] == figures["eval_hard_pass_at_2"] == 0.5
    assert figures["eval_hard_version"] == 2.0
    assert 0.0 <= figures["eval_hard_pass_at_1_low"] < 0.5 < figures["eval_hard_pass_at_1_high"] <= 1.0
    assert world.evaluations.take_figures() == {}


async def test_peers_evaluate_without_any_turn_of_the_learner() -> None:
    world = World(peers=True)
    world.kept.set()
    world.step(2)
    await world.settle()
    assert world.asked == []
    assert [(one.set, one.version, one.problems, one.samples, one.seed) for one in world.requests] == [
        ("held_out", 2, 4, 2, 7),
        ("hard", 2, 4, 2, 7),
    ]
    figures = world.evaluations.take_figures()
    assert (figures["eval_hard_pass_at_1"], figures["eval_hard_pass_at_2"]) == (0.5, 1.0)


@pytest.mark.parametrize(("peers", "exact", "reward"), [(True, 1.0, 0.25), (False, 0.5, 0.0)])
async def test_the_policies_before_and_after_are_measured_once(peers: bool, exact: float, reward: float) -> None:
    world = World(peers=peers)
    world.evaluations.start_before(0)
    await world.evaluations.finish()
    assert await world.evaluations.measure_after(9)
    assert [(one.set, one.version, one.samples) for one in world.requests] == [("held_out", 0, 1), ("held_out", 9, 1)]
    values = world.reporter.values
    assert (values["exact_before"], values["reward_before"]) == (exact, reward)
    assert (values["exact_after"], values["reward_after"]) == (exact, reward)
    assert values["evaluation_s"] >= 0.0


async def test_one_measurement_at_a_time() -> None:
    world = World()
    world.kept.set()
    world.step(2)
    await world.settle()
    world.step(4)
    await world.settle()
    assert world.evaluations.passed_over == 1
    await world.evaluations.finish()
    assert world.asked[-1] == "part 2 of version 2"
    world.step(9)  # the last step
    await world.evaluations.finish()
    assert world.asked[-1] == "part 2 of version 9"


async def test_a_version_is_measured_once_it_is_on_disk() -> None:
    world = World()
    world.step(2)
    await world.settle()
    assert world.asked == []
    world.kept.set()
    await world.evaluations.finish()
    assert len(world.asked) == 4


async def test_peers_are_asked_once_the_version_is_announced() -> None:
    world = World(peers=True)
    world.kept.set()
    world.announced.clear()
    world.step(2)
    await world.settle()
    assert (world.requests, world.asked) == ([], [])
    world.announced.set()
    await world.evaluations.finish()
    assert [one.version for one in world.requests] == [2, 2]
    assert world.asked == []


async def test_versions_are_named_as_long_as_they_are_measured() -> None:
    world = World()
    world.kept.set()
    world.evaluations.start_before(0)
    world.step(2)
    await world.settle()
    assert world.evaluations.measured_versions == {0, 2}
    await world.evaluations.finish()
    assert world.evaluations.measured_versions == frozenset()


async def test_a_failure_costs_the_measurement_only() -> None:
    world = World()

    async def failed() -> None:
        raise CheckpointError("the version was removed")

    world.evaluations.step_done(2, 2, failed, world.announced.wait)
    await world.evaluations.finish()
    assert world.asked == []
    assert world.evaluations.take_figures() == {}


async def test_it_can_be_left() -> None:
    world = World()
    world.step(2)
    await world.evaluations.cancel()
    assert world.asked == []


@pytest.mark.parametrize(("every", "due"), [(0, []), (4, [4, 8, 9]), (3, [3, 6, 9])])
def test_when_it_is_due(every: int, due: list[int]) -> None:
    plan = EvaluationPlan(every, 9, 1, (1,))
    assert [step for step in range(1, 10) if plan.due(step)] == due
