"""Build the model that training starts from: random parameters, or a published model from a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import jax
import numpy as np

from learner.config import LearnerConfig
from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.load import load_params, model_config
from rollcast.policy.params import Params, Place, abstract_params, initial_params
from rollcast.runtime.errors import ModelError
from rollcast.wire.text.model_folder import TOKENIZER, TOKENIZER_BYTES_MAX, ModelFolder
from rollcast.wire.text.tokenizer import TokenizerRecord


def starting_model(config: LearnerConfig, tokenizer: TokenizerRecord) -> ModelConfig:
    """Return the architecture to train: that of the folder in ``init_from`` with the configured precision, or the
    configured one.

    Raises:
        ModelError: the folder has another architecture, or another tokenizer than the coordinator's.
    """
    if config.init_from is None:
        return config.model.model_copy(update={"vocabulary_size": tokenizer.size})
    precision = {name: getattr(config.model, name) for name in ("precision", "carrier")}
    model = model_config(config.init_from, **precision)
    data = ModelFolder(config.init_from).read_bytes(TOKENIZER, TOKENIZER_BYTES_MAX)
    if (hashlib.sha256(data).hexdigest(), model.vocabulary_size) != (tokenizer.sha256, tokenizer.size):
        raise ModelError(
            f"{config.init_from} has another tokenizer than the coordinator's",
            cause=f"its vocabulary has {model.vocabulary_size} tokens, the coordinator's {tokenizer.size}"
            if model.vocabulary_size != tokenizer.size
            else "their tokenizer.json differ"
            if tokenizer.sha256
            else "the coordinator's was made of its task's wording",
            fix="set coordinator.tokenizer.folder to the same model",
        )
    return model


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
    if place is not None and jax.process_index() > 0:  # the leader's values are sent to this process as it places them
        nothing = np.zeros((), np.float32)
        leaves = sorted(abstract_params(model).items())
        return {name: place(name, np.broadcast_to(nothing, leaf.shape)) for name, leaf in leaves}
    if config.init_from is None:
        return initial_params(model, config.seed, place)
    return load_params(model, config.init_from, place)


def keep_small_files(config: LearnerConfig, target: Path) -> None:
    """Copy configuration and tokenizer of the starting model into the run folder, where exports find them."""
    if config.init_from is not None:
        ModelFolder(config.init_from).copy_small_files(target)
