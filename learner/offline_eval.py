"""Evaluation of a run's newest checkpoint, away from the run: what `rollcast eval` prints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from learner.checkpoint import Checkpoints, HostState
from learner.config import LearnerConfig
from learner.evaluate import pass_at_k
from learner.phases import HeldOut, ScoreCompletions
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.runtime.errors import CheckpointError, ConfigError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Sampling

K = 8

FetchProblems = Callable[[int], Sequence[pb.Example]]  # (at most this many) -> held-out problems


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Exact match on held-out problems at the run's own sampling temperature."""

    pass_at_1: float
    pass_at_8: float
    problems: int
    step: int  # of the checkpoint
    seconds: float


def evaluate_run(
    run_folder: Path,
    samples: int = K,
    problems: int = 512,
    *,
    held_out: FetchProblems,
    score: ScoreCompletions,
    seed: int = 0,
) -> EvaluationResult:
    """Reload the newest checkpoint, sample, and estimate pass@1 and pass@8 without bias.

    Args:
        run_folder: the learner's.
        samples: completions a problem, at least 8.
        problems: how many held-out problems at most.
        held_out: gives them.
        score: verifies completions, in order; several carry the same example_id.
        seed: of the noise.

    Raises:
        ConfigError: fewer than 8 samples.
        CheckpointError: there is no checkpoint, or it cannot be read.
    """
    if samples < K:
        raise ConfigError(f"{samples} samples a problem do not give pass@{K}", fix=f"use at least {K}")
    started_s = time.monotonic()
    host, params = load_policy(run_folder)
    chosen = held_out(problems)
    measured = HeldOut(
        chosen,
        ModelConfig.model_validate_json(host.model_json),
        sampling_of(host),
        host.prompt_tokens_max,
        seed=seed,
        score=score,
        stop=threading.Event(),
    )
    right = measured.count_exact(params, samples)
    return EvaluationResult(
        pass_at_1=sum(pass_at_k(samples, count, 1) for count in right) / len(right),
        pass_at_8=sum(pass_at_k(samples, count, K) for count in right) / len(right),
        problems=len(right),
        step=host.step,
        seconds=time.monotonic() - started_s,
    )


def load_policy(run_folder: Path) -> tuple[HostState, Params]:
    """Host state and parameters of the newest checkpoint.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    folder = RunFolder(run_folder).checkpoints
    if not folder.is_dir():
        raise _no_checkpoint(run_folder)
    checkpoints = Checkpoints(folder, keep=LearnerConfig().checkpoint.keep, read_only=True)
    try:
        restored = checkpoints.restore(as_saved)
        if restored is None:
            raise _no_checkpoint(run_folder)
        return restored.host, _parameters(restored.state)
    finally:
        checkpoints.close()


def _parameters(state: Mapping[str, Any]) -> Params:
    """The policy alone of a `Trainer.state`, whatever its optimiser and objective."""
    prefix = "parameters/"
    return {name.removeprefix(prefix): jnp.asarray(leaf) for name, leaf in state.items() if name.startswith(prefix)}


def as_saved(_host: HostState) -> None:
    """For Checkpoints.restore: all arrays with the names, shapes and dtypes that they were saved with."""


def sampling_of(host: HostState) -> Sampling:
    """How the run samples."""
    values = host.sampling
    return Sampling(values["temperature"], values["max_new_tokens"], tuple(values["stop_token_ids"]))


def _no_checkpoint(run_folder: Path) -> CheckpointError:
    return CheckpointError(
        f"no checkpoint in {run_folder}", fix="give the folder of a run that got past its warm start"
    )
