"""Describe a version of adapters to vLLM: the base as a model of the Hub's form, the adapters as the library PEFT's.

vLLM starts with the base, which stays for as long as the server lives, and gets each version's adapters beside it. It
computes x W + ((x A) B) alpha / rank like the learner (vllm/lora), for each request with the adapters of its version; a
rank that vLLM has no kernel for is filled up with zeros. Version 0 has adapters of zeros: vLLM's kernels for processors
give a request without adapters, whose index is -1, those of the last version (vllm/lora/ops/torch_ops, release 0.32).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from peer.engines.base import VersionState
from peer.engines.vllm.checkpoint import PRECISIONS, Checkpoint, read_model
from rollcast.policy.config import ModelConfig
from rollcast.policy.lora import absent_adapters
from rollcast.runtime.errors import CorruptChunk, MalformedMessage, ModelError, StoreError
from rollcast.wire.versions.state_hash import state_hash

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vllm/config/lora.py, MaxLoRARanks


def rank_max(rank: int) -> int:
    """Return the smallest of the ranks that vLLM can be started for which suffices."""
    return min(one for one in _RANKS if one >= rank)


def stage_adapters(version: VersionState, folder: Path, loaded_hash: bytes) -> Checkpoint:
    """Make the files of a version of adapters below ``folder``, and those of its base unless they are there.

    Args:
        loaded_hash: BLAKE3 of the version's state.

    Raises:
        MalformedMessage: see read_model; or the run's versions have noise.
        CorruptChunk: the base is not the one that the version's record names.
        StoreError: the disk refuses.
    """
    record, whole = version.record, version.base or version
    config = read_model(record)
    _check_noise(config)
    base = folder / "bases" / whole.record.state_hash.hex()[:16]
    place = folder / f"{record.version}-{loaded_hash.hex()[:16]}"
    shutil.rmtree(place, ignore_errors=True)
    try:
        _stage_base(whole, config, base, version.record.version)
        place.mkdir(parents=True)
        adapters = _tensors(version) if version.base is not None else absent_adapters(config)
        _save_adapters(adapters, config, place)
    except (OSError, ModelError) as error:
        raise StoreError(f"version {record.version} cannot be prepared for vLLM", cause=str(error)) from None
    return Checkpoint(
        record.epoch,
        record.version,
        config,
        place / "state",
        len(version.state),
        place / "table.json",
        place.name,
        loaded_hash,
        base=base,
        adapters=place,
    )


def _check_noise(config: ModelConfig) -> None:
    if config.lora is not None and config.lora.noisy:
        raise MalformedMessage(
            "the vllm engine cannot run versions with noise on the scales of norms",
            cause="the run's lora.noise_start is above 0, and vLLM exchanges the matrices of adapters alone",
            fix='set engine.kind = "jax" on this peer, or remove lora.noise_start from the learner\'s configuration',
        )


def _stage_base(whole: VersionState, config: ModelConfig, base: Path, version: int) -> None:
    """Write the base as a model that vLLM loads when it starts; another base is removed."""
    from rollcast.policy.hub.save import save_model

    if base.exists():
        return
    read_model(whole.record)
    if state_hash(whole.state) != whole.record.state_hash:
        raise CorruptChunk(
            f"the base of version {version} does not match its signed state hash",
            cause="memory or the disk changed it",
            fix="check this machine's memory and disk; the peer generates only with weights that it can vouch for",
        )
    shutil.rmtree(base.parent, ignore_errors=True)
    making = base.with_suffix(".making")
    making.mkdir(parents=True)
    save_model(config, _tensors(whole), making, PRECISIONS[config.precision])
    making.rename(base)


def _save_adapters(adapters: dict[str, Any], config: ModelConfig, place: Path) -> None:
    from rollcast.policy.hub.adapter import save_adapter

    save_adapter(config, adapters, place, PRECISIONS[config.precision])


def _tensors(version: VersionState) -> dict[str, Any]:
    """Return a state's tensors by name, as views of its bytes."""
    dtypes: dict[str, Any] = {"float32": np.dtype("<f4"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
    found = {}
    for spec in version.record.tensors:
        piece = version.state[spec.offset_bytes : spec.offset_bytes + spec.size_bytes]
        found[spec.name] = np.frombuffer(piece, dtypes[spec.dtype]).reshape(spec.shape)
    return found
