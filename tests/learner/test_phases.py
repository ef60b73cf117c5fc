from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from learner.config import LearnerConfig
from learner.coordinator.reporter import StatusReporter
from learner.evaluation.held_out import HeldOut, Stopped
from learner.phases import run_warm_start
from learner.training.trainer import Trainer
from rollcast.policy.config import ModelConfig
from rollcast.policy.sampling.sampler import Sampler
from rollcast.runtime.errors import TaskError
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Sampling

MODEL = ModelConfig(
    vocabulary_size=8, layers=1, width=16, query_heads=2, key_value_heads=1, head_size=8, feed_forward_width=16
)
CONFIG = LearnerConfig.model_validate(
    {"warm_start": {"batch_size": 4, "examples": 8, "steps_max": 4, "check_every_steps": 2, "flawed_steps": 1}}
)


def held_out(stop: threading.Event, problems: int = 5) -> HeldOut:
    """Completions of even problems count as right; every reward is 0.5."""

    def score(completions: Sequence[pb.Completion]) -> list[pb.CompletionScore]:
        return [
            pb.CompletionScore(example_id=one.example_id, exact=one.example_id % 2 == 0, reward=0.5)
            for one in completions
        ]

    examples = [pb.Example(example_id=index, prompt_token_ids=[2, 3]) for index in range(problems)]
    sampler = Sampler(MODEL, 4, 2, max(1, problems))
    return HeldOut(examples, sampler, Sampling(1.0, 2, (1,)), seed=0, score=score, stop=stop)


def fetch(count: int, flawed: bool, cursor: int) -> list[pb.Example]:
    return [pb.Example(prompt_token_ids=[2, 3], answer_token_ids=[4 + flawed, 1]) for _ in range(count)]


async def ignore(*_status: object) -> None:
    return None


async def test_a_warm_start_reports_its_figures() -> None:
    stop = threading.Event()
    trainer, reporter, measured = Trainer(MODEL, CONFIG), StatusReporter(ignore), held_out(stop)
    accounted: list[None] = []
    run_warm_start(
        trainer,
        CONFIG,
        fetch,
        measured,
        reporter,
        row_tokens=6,
        has_flawed_teacher=True,
        stop=stop,
        account=lambda: accounted.append(None),
    )
    assert len(accounted) == CONFIG.warm_start.steps_max + CONFIG.warm_start.flawed_steps
    assert reporter.values["warm_start_accuracy"] == pytest.approx(3 / 5)
    assert measured.measure(trainer.params()).reward == pytest.approx(0.5)


async def test_without_a_flawed_teacher_there_is_no_second_stage() -> None:
    stop, asked = threading.Event(), list[bool]()

    def recorded(count: int, flawed: bool, cursor: int) -> list[pb.Example]:
        asked.append(flawed)
        return fetch(count, flawed, cursor)

    trainer, reporter, measured = Trainer(MODEL, CONFIG), StatusReporter(ignore), held_out(stop)
    run_warm_start(trainer, CONFIG, recorded, measured, reporter, row_tokens=6, has_flawed_teacher=False, stop=stop)
    assert asked == [False]


async def test_a_stop_leaves_the_warm_start() -> None:
    stop = threading.Event()
    stop.set()
    trainer, reporter, measured = Trainer(MODEL, CONFIG), StatusReporter(ignore), held_out(stop)
    with pytest.raises(Stopped):
        run_warm_start(trainer, CONFIG, fetch, measured, reporter, row_tokens=6, has_flawed_teacher=True, stop=stop)
    with pytest.raises(Stopped):
        measured.measure(trainer.params())


def test_no_held_out_problem_is_an_error() -> None:
    with pytest.raises(TaskError, match="no held-out problems"):
        held_out(threading.Event(), problems=0)
