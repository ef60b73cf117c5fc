"""Build the model that training starts from: random parameters, or a published model from a folder."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TypeGuard

import jax
import numpy as np

from learner.config import LearnerConfig
from rollcast.policy.config import ModelConfig, adapted
from rollcast.policy.hub.config import model_config
from rollcast.policy.hub.load import load_params
from rollcast.policy.params import Params, Place, abstract_params, initial_params
from rollcast.policy.shapes import parameter_count
from rollcast.runtime.errors import ConfigError, ModelError
from rollcast.wire.text.model_folder import TOKENIZER, TOKENIZER_BYTES_MAX, ModelFolder
from rollcast.wire.text.tokenizer import TokenizerRecord

# Ten times the rate of the published recipes for RL that OptimiserConfig names.
PUBLISHED_RATE_MAX = 1e-5
# Adapters take about ten times the rate of all weights (Schulman and Thinking Machines 2025, "LoRA Without Regret").
_ADAPTERS_RATE = 10.0


def usual_rate_max(parameters: int) -> float:
    """Return the highest usual learning rate of Adam for a model of this many parameters, trained from random ones.

    Kaplan et al. 2020 (2001.08361), equation D.1, which holds up to 10 billion parameters.
    """
    return 0.003239 - 0.0001395 * math.log(min(max(parameters, 1), 10**10))


def rate_warnings(config: LearnerConfig, model: ModelConfig) -> list[str]:
    """Return a sentence for each learning rate that is unusually high for the model; empty if there is none."""
    parameters = parameter_count(model)
    published = config.init_from is not None
    most = min(usual_rate_max(parameters), PUBLISHED_RATE_MAX if published else math.inf)
    most *= 1.0 if config.lora is None else _ADAPTERS_RATE
    kind = "published model" if published else "model"
    rates = {"optimiser.learning_rate": config.optimiser.learning_rate}
    if config.objective.advantage == "critic":
        rates["objective.critic.learning_rate"] = config.objective.critic.learning_rate
    found = [
        f"{name} = {rate:g} is high for a {kind} of {parameters / 1e6:,.1f} million parameters, which usually takes at "
        f"most {most:.1g}: training may unlearn what it can do."
        for name, rate in rates.items()
        if rate > most
    ]
    if published and config.warm_start.steps_max:
        found.append(
            f"warm_start.steps_max = {config.warm_start.steps_max} trains the published model on the task's own "
            f"answers first, at {config.warm_start.learning_rate:g}: set it to 0 unless the model cannot do the task."
        )
    return found


def context_warnings(config: LearnerConfig, model: ModelConfig, row_tokens: int) -> list[str]:
    """Return a sentence if rows of so many tokens are longer than a published model's context; empty otherwise."""
    if config.init_from is None or row_tokens <= model.context_tokens_max:
        return []
    return [
        f"A prompt and its completion may take {row_tokens:,} tokens, but the model's context has "
        f"{model.context_tokens_max:,}: it was never trained on positions beyond. Lower coordinator.sampling's "
        "prompt_tokens_max or new_tokens_max, or stretch the context in config.json (docs/models.md)."
    ]


def starting_model(config: LearnerConfig, tokenizer: TokenizerRecord) -> ModelConfig:
    """Return the architecture to train: that of the folder in ``init_from`` with the configured precision, or the
    configured one; with the configured adapters.

    Raises:
        ConfigError: the model cannot have these adapters.
        ModelError: the folder has another architecture, or another tokenizer than the coordinator's.
    """
    if config.init_from is None:
        return adapted(config.model.model_copy(update={"vocabulary_size": tokenizer.size}), config.lora)
    precision = {name: getattr(config.model, name) for name in ("precision", "carrier")}
    model = model_config(config.init_from, **precision)
    if (_tokenizer_hash(config.init_from), model.vocabulary_size) != (tokenizer.sha256, tokenizer.size):
        raise ModelError(
            f"{config.init_from} has another tokenizer than the coordinator's",
            cause=f"its vocabulary has {model.vocabulary_size} tokens, the coordinator's {tokenizer.size}"
            if model.vocabulary_size != tokenizer.size
            else "their tokenizer.json differ"
            if tokenizer.sha256
            else "the coordinator's was made of its task's wording",
            fix="set coordinator.tokenizer.folder to the same model",
        )
    return adapted(model, config.lora)


def check_teacher(config: LearnerConfig, tokenizer: TokenizerRecord, temperature: float) -> None:
    """Check that the teacher, if there is one, reads the run's tokens and scores them as they were sampled.

    The vocabularies may differ in padding, as those of Qwen2.5's sizes do.

    Raises:
        ModelError: the teacher's folder has another tokenizer than the coordinator's.
        ConfigError: an endpoint scores at temperature 1, and rollouts are sampled at another.
    """
    teacher = config.teacher
    if teacher is None:
        return
    if teacher.folder is not None and _tokenizer_hash(teacher.folder) != tokenizer.sha256:
        raise ModelError(
            f"the teacher in {teacher.folder} has another tokenizer than the coordinator's",
            cause="their tokenizer.json differ" if tokenizer.sha256 else "the coordinator's was made of its wording",
            fix="choose a teacher of the same family, and set coordinator.tokenizer.folder to the policy's model",
        )
    if teacher.endpoint and temperature != 1.0:
        raise ConfigError(
            f"the teacher's endpoint cannot score rollouts that are sampled at temperature {temperature:g}",
            cause="such servers return log-probabilities at temperature 1",
            fix="set coordinator.sampling.temperature to 1, or teacher.folder instead of teacher.endpoint",
        )


def _tokenizer_hash(folder: Path) -> str:
    return hashlib.sha256(ModelFolder(folder).read_bytes(TOKENIZER, TOKENIZER_BYTES_MAX)).hexdigest()


def starting_params(config: LearnerConfig, model: ModelConfig, place: Place | None = None) -> Params:
    """Return float32 parameters: those of the folder in ``init_from``, or random ones from the seed.

    The host holds one tensor at a time, in sorted order of their names.

    Args:
        config: the learner's configuration.
        model: the architecture of the parameters.
        place: places each tensor on its devices as it is read or made; None: on the default device.

    Raises:
        ModelError: a tensor is missing, misshaped or damaged.
    """
    if config.init_from is not None:
        return folder_params(model, config.init_from, place)
    return _sent_params(model, place) if _follows(place) else initial_params(model, config.seed, place)


def folder_params(model: ModelConfig, folder: Path, place: Place | None = None) -> Params:
    """Return the float32 parameters of a published model; see starting_params."""
    return _sent_params(model, place) if _follows(place) else load_params(model, folder, place)


def _follows(place: Place | None) -> TypeGuard[Place]:
    """Decide whether the leader's values are sent to this process as it places them."""
    return place is not None and jax.process_index() > 0


def _sent_params(model: ModelConfig, place: Place) -> Params:
    nothing = np.zeros((), np.float32)
    leaves = sorted(abstract_params(model).items())
    return {name: place(name, np.broadcast_to(nothing, leaf.shape)) for name, leaf in leaves}


def keep_small_files(config: LearnerConfig, target: Path) -> None:
    """Copy configuration and tokenizer of the starting model into the run folder, where exports find them."""
    if config.init_from is not None:
        ModelFolder(config.init_from).copy_small_files(target)
