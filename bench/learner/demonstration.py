"""Train the demonstration task in one process: warm start, then RL at a constant lag, without coordinator or peers.

All components but the network are those of a run: task and verifier, sampler, warm start, packing, behaviour
log-probabilities, trainer.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import jax.numpy as jnp
import numpy as np

from coordinator.tasks.build import build_task
from coordinator.tasks.checks.task import Problem
from coordinator.tasks.mixture import PromptMixture, TrainingPrompt
from learner.config import LearnerConfig
from learner.evaluation.evaluate import complete_prompts
from learner.supervised.warm_start import warm_start
from learner.training.packing import Example, TrainingRow, pack
from learner.training.trainer import Trainer, behaviour_by_version
from rollcast.cli.up_config import UpConfig
from rollcast.policy.params import Params
from rollcast.policy.sampling.sampler import Sampler, SampleRequest
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Sampling, Segment
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import pack_ids

_OURSELVES = PeerId("bench")


@dataclass(frozen=True, slots=True)
class Course:
    """The result of one training: held-out exact match before and after, and the mean of each figure over its steps."""

    before: float
    after: float
    means: dict[str, float]

    def report(self, name: str) -> None:
        """Print the result on stderr at once, while other trainings continue."""
        said = " ".join(f"{key} {value:.4g}" for key, value in self.means.items())
        print(f"{name}: {self.before:.3f} -> {self.after:.3f}  {said}", file=sys.stderr)


def reported_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that every benchmark of courses reports."""
    return {
        "config": str(arguments.config),
        "set": arguments.set,
        "steps": arguments.steps,
        "seeds": arguments.seeds,
    }


class Demonstration:
    """The task of a configuration of `rollcast up` with one seed.

    Args:
        config: configuration of task, sampling, group sizes, model, warm start and optimiser.
        seed: seed of all randomness.
        cache: folder where warm-started policies are kept.
        sampler: sampler of another demonstration of the same task and model, so that it is compiled once.

    Raises:
        TaskError, MissingExtra: see ReasoningGym.
    """

    def __init__(self, config: UpConfig, seed: int, cache: Path, sampler: Sampler | None = None) -> None:
        coordinator = config.coordinator
        self._config = config
        self._seed = seed
        self._cache = cache
        self._task = build_task(coordinator.task, seed)
        self._tokenizer = Tokenizer(self._task.wording(), self._task.characters())
        self._prompt_tokens_max = coordinator.sampling.prompt_tokens_max
        new_tokens_max = coordinator.sampling.new_tokens_max
        self._mixture = PromptMixture(
            self._task,
            self._tokenizer,
            seed,
            config.learner.evaluation_problems,
            self._prompt_tokens_max,
            new_tokens_max,
        )
        self.sampling = Sampling(coordinator.sampling.temperature, new_tokens_max, (self._tokenizer.eos_id,))
        self.model = config.learner.model.model_copy(update={"vocabulary_size": self._tokenizer.size})
        rollouts = coordinator.run.groups_per_step * coordinator.run.samples_per_group
        self.sampler = sampler or Sampler(self.model, self._prompt_tokens_max, new_tokens_max, rollouts)
        self._drawn: list[list[TrainingPrompt]] = []  # prompts by step, so that every training gets the same ones
        self._start: dict[str, Any] | None = None

    def learner(self, objective: dict[str, Any], learning_rate: float) -> LearnerConfig:
        """The learner's settings with another objective."""
        values = self._config.learner.model_dump()
        values["seed"], values["objective"] = self._seed, objective
        values["optimiser"]["learning_rate"] = learning_rate
        return LearnerConfig.model_validate(values)

    def accuracy(self, params: Params) -> float:
        """Return the held-out exact match of one completion each, at the run's temperature."""
        held_out = self._mixture.held_out(self._config.learner.evaluation_problems)
        prompts = [example.prompt_token_ids for example in held_out]
        completed = complete_prompts(self.sampler, params, prompts, self.sampling, seed=self._seed)
        right = [
            self._verify(example.problem, drawn[0].token_ids)[1]
            for example, drawn in zip(held_out, completed, strict=True)
        ]
        return sum(right) / len(right)

    def start(self) -> Params:
        """Return the warm-started policy."""
        return _copied(self._started())

    def held_out_prompts(self, count: int) -> list[tuple[int, ...]]:
        """Return the token ids of prompts that training never sees."""
        return [example.prompt_token_ids for example in self._mixture.held_out(count)]

    def train(
        self,
        learner: LearnerConfig,
        trainer: Trainer,
        staleness: int,
        steps: int,
        *,
        start: Params | None = None,
        published: Callable[[Params], Params] = lambda params: params,
    ) -> Course:
        """Train; rollouts of step t come from the policy of step max(0, t - staleness).

        trainer: made of these settings of the learner. start: the policy to begin with; None: the warm-started one.
        published: function from a policy to the weights that rollouts use.
        """
        trainer.set_params(self.start() if start is None else _copied(start))
        versions: deque[tuple[int, Params]] = deque(maxlen=staleness + 1)
        before = self.accuracy(trainer.params())
        reports: list[dict[str, float]] = []
        for step in range(steps):
            versions.append((step, _copied(trainer.params())))
            version, behaviour = versions[0]
            packed = pack(
                self._rollouts(step, version, published(behaviour)),
                time=self._prompt_tokens_max + self.sampling.max_new_tokens,
                objective=learner.objective,
                completion_tokens_max=self.sampling.max_new_tokens,
            )
            logprobs = behaviour_by_version(trainer, packed, dict(versions).__getitem__).logprobs
            reports.append(trainer.train_step(packed, logprobs))
        means = {name: float(np.mean([report[name] for report in reports])) for name in reports[0]}
        return Course(before, self.accuracy(trainer.params()), means)

    def _rollouts(self, step: int, version: int, params: Params) -> list[TrainingRow]:
        run = self._config.coordinator.run
        while len(self._drawn) <= step:
            self._drawn.append(self._mixture.sample(run.groups_per_step))
        random = Random(f"rollcast/bench/demonstration/{self._seed}/{step}")
        asked = [(group, drawn) for group, drawn in enumerate(self._drawn[step]) for _ in range(run.samples_per_group)]
        requests = [SampleRequest(drawn.prompt_token_ids, random.getrandbits(64)) for _, drawn in asked]
        completions = self.sampler.generate(params, requests, self.sampling)
        rows = []
        for index, ((group, drawn), completion) in enumerate(zip(asked, completions, strict=True)):
            tokens = completion.token_ids
            made = Segment("assistant", Epoch(0), Version(version), _OURSELVES, pack_ids(tokens), b"\x01" * len(tokens))
            reward = self._verify(drawn.problem, tokens)[0]
            rows.append(TrainingRow(index, group, drawn.prompt_token_ids, (made,), self.sampling.temperature, reward))
        return rows

    def _verify(self, problem: Problem, token_ids: Sequence[int]) -> tuple[float, bool]:
        score = self._task.verify(problem, self._tokenizer.decode(token_ids))
        return score.reward, score.exact

    # ---------------------------------------------------------------- warm start

    def _started(self) -> dict[str, Any]:
        if self._start is None:
            path = self._cache / f"warm-start-{self._fingerprint()}.npz"
            if not path.exists():
                self._cache.mkdir(parents=True, exist_ok=True)
                unfinished = path.with_suffix(".unfinished.npz")
                np.savez(unfinished, **self._warm_start())
                unfinished.rename(path)
            with np.load(path, allow_pickle=False) as arrays:
                self._start = dict(arrays)
        return self._start

    def _warm_start(self) -> dict[str, Any]:
        learner = self.learner({}, self._config.learner.optimiser.learning_rate)
        trainer = Trainer(self.model, learner)
        warm_start(
            trainer,
            learner.warm_start,
            self._examples,
            self.accuracy,
            time_tokens=self._prompt_tokens_max + self.sampling.max_new_tokens,
            seed=self._seed,
        )
        return {name: np.asarray(leaf) for name, leaf in trainer.params().items()}

    def _examples(self, count: int, flawed: bool) -> list[Example]:
        found = self._mixture.examples(count, flawed=flawed, cursor=0)
        return [Example.of(example.prompt_token_ids, example.answer_token_ids) for example in found]

    def _fingerprint(self) -> str:
        coordinator, learner = self._config.coordinator, self._config.learner
        parts = (self.model, learner.warm_start, coordinator.task, coordinator.sampling)
        text = "\n".join(
            [str(self._seed), str(learner.evaluation_problems), *(part.model_dump_json() for part in parts)]
        )
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _copied(params: Params) -> Params:
    """Return a copy of the parameters, because a step reuses their memory."""
    return {name: jnp.array(leaf) for name, leaf in params.items()}
