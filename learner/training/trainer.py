"""Train on a batch: log-probabilities of older policies, loss, optimiser steps, snapshots. No I/O."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from learner.checkpoints.arrays import ArrayWrite, SavedArrays, read_arrays
from learner.config import LearnerConfig
from learner.publishing.growth import Write
from learner.training.base import merged_on, noisy_scales, rounded_on, stacked_base
from learner.training.critic import Critic, Judgement
from learner.training.freezing import begin_freeze, gather_into
from learner.training.mesh import make_mesh, moved, placed_params, stacked_params
from learner.training.micro_batches import BoolArray, FloatArray, inputs
from learner.training.packing import PackedBatch
from learner.training.programs import Factors, Programs
from learner.training.starting_model import starting_params
from learner.training.teacher import Teacher, teacher_model
from learner.training.tracing import begin_trace, end_trace
from rollcast.policy.config import ModelConfig
from rollcast.policy.logprobs import TokenStatistics
from rollcast.policy.lora import initial_adapters
from rollcast.policy.params import Params
from rollcast.policy.snapshot import Snapshot
from rollcast.policy.stacking import Layers
from rollcast.runtime.errors import CheckpointError, NotFinite
from rollcast.wire.versions.tensors import TensorSpec

# Cause and fix.
_NOT_FINITE_AT_START = (
    "the parameters that training starts from are not finite",
    "lower warm_start.learning_rate, or copy the model of init_from again",
)


class Trainer:
    """Parameters and optimiser state on a mesh of devices, and the operations on them.

    The state is donated to every step: arrays from `params` are valid until the next `train_step`. Layers are stacked
    (rollcast.policy.stacking), in checkpoints too.

    With ``model_config.lora`` the adapters alone are trained (rollcast.policy.lora): gradients, moments, checkpoints
    and versions are theirs. The base under them is held as peers read it, without float32 masters, and never changes.
    """

    def __init__(
        self, model_config: ModelConfig, learner_config: LearnerConfig, devices: Sequence[Any] | None = None
    ) -> None:
        self.model_config = model_config
        self.mesh = make_mesh(learner_config.mesh, devices)
        self._config = learner_config
        self._programs = Programs(model_config, learner_config, self.mesh)
        self._all_finite = jax.jit(_all_finite)
        self._statistics: list[TokenStatistics] = []  # of the last step's micro-batches, on the devices
        self._teacher = _teacher_of(learner_config, self.mesh)
        self._base: Params = {}  # stacked; without adapters there is none
        if model_config.lora is None:
            self.set_params(starting_params(learner_config, model_config, self._placed_one))
        else:
            parts = starting_params(learner_config, model_config, self._rounded_one)
            base = {name: leaf for part in parts.values() for name, leaf in part.items()}
            del parts  # so that `stacked_base` can free its tensors
            self._begin_over(base)

    def params(self) -> Params:
        """Return the current float32 parameters by the names of single layers' tensors, on the devices.

        They are copies, except for tensors that belong to no layer. Adapters are merged into them.
        """
        return dict(self.layers())

    def layers(self) -> Layers:
        """Return a view of the current parameters like `params`, which copies a layer's tensor when it is read."""
        if self.model_config.lora is None:
            return Layers(self._params)
        return Layers(merged_on(self.mesh, self.model_config, self._base, self._params))

    def published_layers(self, version: int) -> Layers:
        """Return a view like `layers` of what a version consists of: all parameters, or adapters with its noise."""
        noisy = noisy_scales(self.mesh, self.model_config, self._base, self._config.seed, version)
        return Layers(self._params | noisy)

    def set_params(self, params: Params) -> None:
        """Replace the parameters (float32) and reset the optimiser; reference and critic start from them too.

        With adapters they become the base, and fresh adapters are trained.

        Raises:
            NotFinite: the parameters are not finite.
        """
        placed = placed_params(self.mesh, params)
        if self.model_config.lora is None:
            self._begin_with(stacked_params(self.mesh, placed))
        else:
            self._begin_over(rounded_on(self.mesh, self.model_config, placed))

    def set_base(self, tensors: Params) -> None:
        """Replace the base by a snapshot's tensors, host views of its file; the adapters stay."""
        self._base = {}  # freed first
        self._base = stacked_base(self.mesh, dict(tensors))

    def write_base(self, file: BinaryIO | None) -> tuple[TensorSpec, ...]:
        """Write the base into a file as a version's state; see learner.training.freezing.gather_into."""
        return gather_into(self.model_config, Layers(self._base), file)

    def _begin_over(self, base: Params) -> None:
        """Train fresh adapters over a base, given by the names of single layers' tensors and emptied."""
        self._base = {}
        self._base = stacked_base(self.mesh, base)
        self._check_finite([self._base], *_NOT_FINITE_AT_START)
        adapters = initial_adapters(self.model_config, self._config.seed)
        self._begin_with(stacked_params(self.mesh, placed_params(self.mesh, adapters)))

    def _begin_with(self, params: Params) -> None:
        """Train these parameters, stacked and on the mesh."""
        objective = self._config.objective
        self._params = params
        self._optimiser_state = self._programs.updates.init(self._params)
        self._reference = None if objective.kl == "none" else jax.tree.map(jnp.copy, self._params)
        self.critic: Critic | None = None
        if objective.advantage == "critic":
            self.critic = Critic(self.model_config, self._config, self.mesh, self._params)
        # Shapes, dtypes and places of the state, which stay the same while there is none.
        self._abstract_state = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), self._state_tree()
        )
        self._check_finite(self._changing(), *_NOT_FINITE_AT_START)

    @property
    def scores_on_policy(self) -> bool:
        """Whether a step's own forward pass can score tokens of the newest version.

        It can if it is the batch's only step, and the version has no noise, which the trained policy has not.
        """
        lora = self.model_config.lora
        return self._config.objective.passes == 1 and not (lora is not None and lora.noisy)

    def train_step(
        self,
        batch: PackedBatch,
        behaviour_logprobs: FloatArray,
        on_policy: BoolArray | None = None,
        margins_max: FloatArray | None = None,
        teacher_logprobs: FloatArray | None = None,
    ) -> dict[str, float]:
        """Take the optimiser steps on a batch.

        Args:
            behaviour_logprobs: f32 [rows, time].
            on_policy: bool [rows, time], tokens that the current policy generated: their behaviour log-probabilities
                are those of the step's own forward pass, so that their ratio is exactly 1. Needs `scores_on_policy`;
                None: no tokens.
            margins_max: f32 [rows, time], the highest margin of each token that an honest sampler reaches, in nats. A
                sequence with an on-policy token above it has weight 0 in the loss. None: there is no bound.
            teacher_logprobs: f32 [rows, time], with a teacher at an endpoint. None: there is none, or this trainer
                holds it.

        A step whose loss or gradient norm is not finite changes neither parameters nor the optimiser's state.

        Returns:
            Means over the steps that were not skipped, or over all if every one was: loss, grad_norm (before clipping),
            learning_rate, the gauges of learner.objective.build, with a critic value_loss and value_error (squared
            error of its estimates), and with experts balance_loss and busiest_expert_share (see
            rollcast.policy.experts.balance). Also updates_skipped, the number of skipped steps of policy and critic.

        Raises:
            NotFinite: a step left parameters that are not finite.
        """
        judgement = None if self.critic is None else self.critic.judge(batch)
        own = np.zeros(batch.tokens.shape, bool) if on_policy is None else on_policy
        bounds = np.full(batch.tokens.shape, np.inf, np.float32) if margins_max is None else margins_max
        if self._teacher is not None:
            teacher_logprobs = self._teacher.logprobs(batch)
        factors = self._factors(batch, behaviour_logprobs, own, bounds, judgement, teacher_logprobs)
        rows = batch.tokens.shape[0]
        mini_batches = min(self._config.objective.mini_batches, rows)
        reports = []
        for number in range(self._config.objective.epochs_per_batch * mini_batches):
            # Every mini_batches-th row, so that a group's completions fall into different mini-batches.
            part = slice(number % mini_batches, None, mini_batches)
            chosen = batch.select(part)
            values = self._step(chosen, factors.select(part))
            if self.critic is not None and judgement is not None:
                values |= self.critic.train_step(chosen, Judgement(*(leaf[part] for leaf in judgement)))
            reports.append(values)
        fetched = jax.device_get(reports)
        self._check_finite(self._changing(), "an optimiser step overflowed", "lower the learning rate")
        return _means(fetched)

    def step_statistics(self, batch: PackedBatch) -> TokenStatistics:
        """Return statistics of every token of the last step's batch under the policy before that step, on the host.

        They come from the step's own forward pass, so they cost no other. Needs `scores_on_policy`.
        """
        rows = batch.tokens.shape[0]
        fetched = jax.device_get(self._statistics)
        joined: TokenStatistics = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:rows], *fetched)
        return joined

    def behaviour(self, params: Params, packed: PackedBatch) -> TokenStatistics:
        """Return log-probability and entropy of every token under ``params`` (see `placed`), on the host.

        Adapters are read over the base.

        They are taken at each token's own sampling temperature. Values outside the loss mask belong to prompt or
        padding, and the loss ignores them.
        """
        statistics: TokenStatistics = self._programs.statistics(self._base | params, packed)
        return statistics

    def current(self, packed: PackedBatch) -> TokenStatistics:
        """Return the statistics of `behaviour` under the current parameters."""
        statistics: TokenStatistics = self._programs.statistics(self._base | self._params, packed)
        return statistics

    def placed(self, params: Params) -> Params:
        """Return parameters, or a snapshot's tensors, placed and stacked on the devices as the trained ones are."""
        return stacked_params(self.mesh, placed_params(self.mesh, params))

    def begin_trace(self, folder: Path, *, python_tracer: bool) -> None:
        """Begin to trace what all devices compute (see learner.training.tracing)."""
        begin_trace(folder, python_tracer=python_tracer)

    def end_trace(self) -> None:
        """End the trace, and write it."""
        end_trace()

    def begin_freeze(self, path: Path, version: int) -> Write:
        """Copy the parameters as rollouts of this version read them, and return what writes them.

        The next step may be taken before that is called (see learner.training.freezing).
        """
        return begin_freeze(self.model_config, self.published_layers(version), path)

    def snapshot(self, version: int = 0) -> Snapshot:
        """Return the current parameters as rollouts of a version read them, in memory; version 0 has no noise."""
        with tempfile.NamedTemporaryFile(prefix="rollcast-snapshot-") as file:
            write = self.begin_freeze(Path(file.name), version)
            write()
            return Snapshot(write.tensors, file.read())

    def state(self) -> dict[str, jax.Array]:
        """Return the arrays of a checkpoint by name; the next step reuses their memory."""
        return _named(self._state_tree())

    def begin_save(self, path: str) -> ArrayWrite:
        """Copy the state to the host and begin to write it into a new folder; training may go on afterwards."""
        return ArrayWrite(path, self.state())

    def load(self, saved: SavedArrays) -> None:
        """Continue from the state that was saved, on this or another mesh. Its arrays are read to where they lie.

        The present state is released first, so that there is room for the other one.

        Raises:
            CheckpointError: the state is of another model or optimiser.
            TornCheckpoint: it cannot be read, or is not what was saved. The trainer then has no state.
        """
        self.check_state(saved)
        del self._params, self._optimiser_state
        self._reference = None
        if self.critic is not None:
            self.critic.state = ({}, None)
        self.restore(read_arrays(saved, _named(self._abstract_state)))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a copy of a `state`, of any mesh; arrays that lie where they belong are not copied."""
        leaves = [moved(state[name], leaf.sharding) for name, leaf in _named(self._abstract_state).items()]
        tree = jax.tree.unflatten(jax.tree.structure(self._abstract_state), leaves)
        self._params, self._optimiser_state = tree["parameters"], tree["optimiser"]
        self._reference = tree.get("reference")
        if self.critic is not None:
            self.critic.state = tree["critic"]

    def check_state(self, saved: SavedArrays) -> None:
        """Check that a saved state belongs to this model and optimiser.

        Raises:
            CheckpointError: names, shapes or dtypes differ.
        """
        if not saved.belongs_to(_named(self._abstract_state)):
            raise CheckpointError(
                "the checkpoint is of another model or optimiser",
                cause="its tensors differ in name, shape or dtype",
                fix="resume with the configuration that the run was started with",
            )

    def _placed_one(self, name: str, leaf: Any) -> Any:
        """Place a tensor on its devices as soon as it is read."""
        return placed_params(self.mesh, {name: leaf})[name]

    def _rounded_one(self, name: str, leaf: Any) -> Params:
        """Place a tensor on its devices as soon as it is read, and round it there."""
        return rounded_on(self.mesh, self.model_config, {name: self._placed_one(name, leaf)})

    def _changing(self) -> list[Params]:
        """Return the parameters of policy and critic that optimiser steps change."""
        return [self._params] if self.critic is None else [self._params, self.critic.state[0]]

    def _check_finite(self, params: list[Params], cause: str, fix: str) -> None:
        """Check parameters, so that none that are not finite is ever published or saved.

        Moments need no check: they are averages of clipped gradients, and only finite gradients enter them.
        """
        if not bool(self._all_finite(params)):
            raise NotFinite("the model's parameters are not finite", cause=cause, fix=fix)

    def _state_tree(self) -> dict[str, Any]:
        tree: dict[str, Any] = {"parameters": self._params, "optimiser": self._optimiser_state}
        if self._reference is not None:
            tree["reference"] = self._reference
        if self.critic is not None:
            tree["critic"] = self.critic.state
        return tree

    def _factors(
        self,
        batch: PackedBatch,
        behaviour: FloatArray,
        on_policy: BoolArray,
        margins_max: FloatArray,
        judgement: Judgement | None,
        teacher_logprobs: FloatArray | None,
    ) -> Factors:
        objective = self._config.objective
        several = objective.proximal and objective.passes > 1
        return Factors(
            loss_mask=batch.loss_mask,
            advantages=batch.advantages if judgement is None else judgement.advantages,
            # The weights of a mini-batch add up to its share of the batch. Scaled up, each of its steps has the length
            # of a step on the whole batch.
            weights=batch.weights * np.float32(min(objective.mini_batches, len(batch.weights))),
            behaviour_logprobs=behaviour,
            on_policy=on_policy,
            margins_max=margins_max,
            proximal_logprobs=self._programs.statistics(self._base | self._params, batch).logprobs if several else None,
            reference_logprobs=None
            if self._reference is None
            else self._programs.statistics(self._base | self._reference, batch).logprobs,
            teacher_logprobs=teacher_logprobs,
        )

    def _step(self, batch: PackedBatch, factors: Factors) -> dict[str, Any]:
        shares = (batch.loss_mask / max(batch.loss_mask.sum(), 1)).astype(np.float32)
        whole = (inputs(batch), factors, shares)
        gradients, values, self._statistics = self._programs.gradients.of(
            self._params, whole, batch.sequences_per_row, self._base or None
        )
        rate = self._programs.learning_rate(self._optimiser_state.count)
        self._params, self._optimiser_state, step = self._programs.updates.apply(
            gradients, self._optimiser_state, self._params, jnp.isfinite(values["loss"])
        )
        return values | {"grad_norm": step.norm, "learning_rate": rate, "skipped": ~step.taken}


def _teacher_of(config: LearnerConfig, mesh: Mesh) -> Teacher | None:
    """Return the teacher that this process holds a part of; None if there is none, or it is at an endpoint."""
    if config.teacher is None or config.teacher.folder is None:
        return None
    return Teacher(teacher_model(config.teacher.folder, config), config, mesh)


def behaviour_by_version(
    trainer: Trainer,
    packed: PackedBatch,
    params_of_version: Callable[[int], Params],
    wanted: BoolArray | None = None,
) -> TokenStatistics:
    """Return statistics of tokens under the versions that generated them, f32 [rows, time]; 0 elsewhere.

    Rollouts of one version share rows of their own, each as far as its last wanted token: a pass over the batch's own
    rows would run each row once for each of its versions.

    Args:
        params_of_version: thaws one retained version; it is called for one version after the other, oldest first.
        wanted: bool [rows, time], the tokens to score; None: all that are trained on.
    """
    chosen = packed.loss_mask if wanted is None else wanted
    result = TokenStatistics(*(np.zeros(packed.tokens.shape, np.float32) for _ in TokenStatistics._fields))
    for version in np.unique(packed.token_versions[chosen]).tolist():
        made = chosen & (packed.token_versions == version)
        prefixes = packed.prefixes(made, version)
        found = trainer.behaviour(trainer.placed(params_of_version(version)), prefixes)
        for (row, span), place in zip(packed.places, prefixes.places, strict=True):
            values = [leaf[place] for leaf in found]
            here = slice(span.start, span.start + len(values[0]))
            for whole, part in zip(result, values, strict=True):
                whole[row, here] = np.where(made[row, here], part, whole[row, here])
    return result


def _all_finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _means(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the means of the optimiser steps' reports, without those that were skipped if any was not."""
    flags = ("skipped", "critic_skipped")
    skipped = [[bool(report[flag]) for flag in flags if flag in report] for report in reports]
    kept = [report for report, own in zip(reports, skipped, strict=True) if not any(own)] or reports
    names = [name for name in reports[0] if name not in flags]
    means = {name: float(np.mean([report[name] for report in kept])) for name in names}
    return means | {"updates_skipped": float(sum(map(sum, skipped)))}


def _named(tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
