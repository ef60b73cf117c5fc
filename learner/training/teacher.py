"""Hold a teacher's frozen weights on the mesh, and score tokens under them, for on-policy distillation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from learner.config import LearnerConfig
from learner.training.base import rounded_on, stacked_base
from learner.training.mesh import placed_params
from learner.training.micro_batches import FloatArray, ForwardPasses, forward_of
from learner.training.packing import PackedBatch
from learner.training.starting_model import folder_params
from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.config import model_config
from rollcast.policy.logprobs import TokenStatistics, completion_logprobs
from rollcast.policy.params import Params


def teacher_model(folder: Path, config: LearnerConfig) -> ModelConfig:
    """Return a teacher's architecture, computed in bfloat16 with the policy's carrier.

    Raises:
        ModelError: the folder has no model that can be read.
    """
    return model_config(folder, precision="bfloat16", carrier=config.model.carrier)


class Teacher:
    """A frozen model on the mesh, sharded like the policy; its tensors are rounded to bfloat16 as they are read.

    Args:
        model: the teacher's architecture.
        config: the learner's configuration, with ``teacher.folder``.

    Raises:
        ModelError: the weights cannot be read.
    """

    def __init__(self, model: ModelConfig, config: LearnerConfig, mesh: Mesh) -> None:
        assert config.teacher is not None
        assert config.teacher.folder is not None
        self._model = model
        self._forward = forward_of(config, mesh)

        def rounded(name: str, leaf: Any) -> Params:
            return rounded_on(mesh, model, placed_params(mesh, {name: leaf}))

        parts = folder_params(model, config.teacher.folder, rounded)
        tensors = {name: leaf for part in parts.values() for name, leaf in part.items()}
        del parts  # so that `stacked_base` can free its tensors
        self._params = stacked_base(mesh, tensors)
        self._score = ForwardPasses(self._statistics, mesh, config.optimiser.micro_batch_tokens)

    def logprobs(self, batch: PackedBatch) -> FloatArray:
        """Return the log-probability of every token at its own sampling temperature, f32 [rows, time]."""
        plain = replace(batch, routes=None, route_versions=None)  # the routes of the policy's experts are not its own
        found: FloatArray = np.asarray(self._score(self._params, plain).logprobs)
        return found

    def _statistics(self, params: Params, arrays: dict[str, Any]) -> TokenStatistics:
        return completion_logprobs(self._model, params, **arrays, forward=self._forward)
