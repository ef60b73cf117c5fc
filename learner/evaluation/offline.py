"""Evaluate a run's newest checkpoint outside of the run, for `rollcast eval`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import jax

from learner.checkpoints.arrays import SavedArrays, read_arrays
from learner.checkpoints.checkpoint import Checkpoints, HostState, folder_of
from learner.config import LearnerConfig
from learner.evaluation.held_out import HeldOut, ScoreCompletions, exact_counts
from learner.evaluation.own_sampler import cache_bytes_left, own_sampler
from learner.evaluation.pass_at_k import EvaluationResult, SetResult, check_pass_at, estimate_pass_at_k
from learner.publishing.base_file import BaseFiles
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.policy.stacking import Layers
from rollcast.runtime.errors import CheckpointError, RunFolderError
from rollcast.runtime.run_folder import RunFolder, no_run
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Sampling


def evaluate_run(
    run_folder: Path,
    sets: Mapping[str, Sequence[pb.Example]],
    *,
    samples: int,
    pass_at: Sequence[int],
    score: ScoreCompletions,
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> EvaluationResult:
    """Load the newest checkpoint, sample completions, and estimate pass@k of every set without bias.

    Args:
        run_folder: the learner's run folder.
        sets: problems by name of the set.
        samples: completions per problem.
        pass_at: the values of k.
        score: scores completions, in order; several carry the same example_id.
        seed: the seed of the noise.
        progress: called with the set's name, its problems done so far, and its number of problems.

    Raises:
        ConfigError: some k is above the number of samples.
        CheckpointError: there is no checkpoint, or it cannot be read.
        RunFolderError: there is no such folder.
    """
    check_pass_at(samples, pass_at)
    started_s = time.monotonic()
    host, params = load_policy(run_folder)
    sampler = CheckpointSampler(host, params, max(map(len, sets.values()), default=0) * samples, score, seed)
    results = {}
    for name, problems in sets.items():
        correct = sampler.correct(problems, samples, partial(_tell, progress, name, len(problems)))
        estimates = {k: estimate_pass_at_k(samples, correct, k) for k in pass_at}
        results[name] = SetResult(len(problems), samples, estimates)
    return EvaluationResult(host.step, results, time.monotonic() - started_s)


def _tell(progress: Callable[[str, int, int], None], name: str, total: int, done: int) -> None:
    progress(name, done, total)


class CheckpointSampler:
    """Sample completions of any problems from a checkpoint's policy, and have them scored.

    Args:
        host: the checkpoint's host state.
        params: the checkpoint's parameters.
        completions_most: the most completions of one call to ``correct``; the sampler's batch is no larger.
        score: scores completions, in order.
        seed: the seed of the noise.
    """

    def __init__(
        self, host: HostState, params: Params, completions_most: int, score: ScoreCompletions, seed: int
    ) -> None:
        self._params = params
        self._version = host.step
        self._sampling = sampling_of(host)
        self._score = score
        self._seed = seed
        self._sampler = own_sampler(
            ModelConfig.model_validate_json(host.model_json),
            host.prompt_tokens_max,
            self._sampling.max_new_tokens,
            completions_most,
            cache_bytes_left(),
        )

    def correct(
        self,
        problems: Sequence[pb.Example],
        samples: int,
        progress: Callable[[int], None] = lambda done: None,
        seeds: Sequence[int] | None = None,
    ) -> list[int]:
        """Return how many of each problem's completions are right.

        ``progress`` is called with the number of problems done. ``seeds``: the seed of each problem's noise, which then
        does not depend on the other problems; None: the noise follows from the problem's index.
        """
        held_out = HeldOut(
            problems,
            self._sampler,
            self._sampling,
            seed=self._seed,
            score=self._score,
            stop=threading.Event(),
            seeds=seeds,
        )
        found: list[int] = []
        for start in held_out.parts(samples):
            completions = held_out.complete(self._params, start, samples, version=self._version)
            found += exact_counts(held_out.play(self._params, completions), samples)
            progress(len(found))
        return found


def load_policy(run_folder: Path) -> tuple[HostState, Params]:
    """Load the host state and the parameters of the newest checkpoint, with adapters those of their base too.

    Raises:
        CheckpointError: there is no checkpoint, or none can be read.
    """
    folder = folder_of(RunFolder(run_folder))
    if isinstance(folder, Path) and not folder.is_dir():
        raise _no_checkpoint(run_folder)
    params: Params = {}

    def load(host: HostState, saved: SavedArrays) -> None:
        params.update(_policy_of(saved))
        if host.base_hash:
            model = ModelConfig.model_validate_json(host.model_json)
            base = BaseFiles(RunFolder(run_folder).base).views(host.base_hash, model)
            params.update(jax.device_put(base))

    restored = Checkpoints(folder, keep=LearnerConfig().checkpoint.keep, read_only=True).restore(load)
    if restored is None:
        raise _no_checkpoint(run_folder)
    return restored.host, params


def _policy_of(saved: SavedArrays) -> Params:
    """Read only the policy's parameters, for any optimiser and objective, onto the default device."""
    prefix = "parameters/"
    like = {name: leaf for name, leaf in saved.like().items() if name.startswith(prefix)}
    return dict(Layers({name.removeprefix(prefix): leaf for name, leaf in read_arrays(saved, like).items()}))


def sampling_of(host: HostState) -> Sampling:
    """Return the run's sampling settings."""
    values = host.sampling
    return Sampling(values["temperature"], values["max_new_tokens"], tuple(values["stop_token_ids"]))


def _no_checkpoint(run_folder: Path) -> CheckpointError | RunFolderError:
    if not run_folder.exists():
        return no_run(run_folder, "checkpoint")
    fix = "give the folder of a run that got past its warm start: the learner's, where that has a folder of its own"
    return CheckpointError(f"no checkpoint in {run_folder}", fix=fix)
