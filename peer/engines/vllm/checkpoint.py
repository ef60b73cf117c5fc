"""Describe a version to vLLM: the config.json of its model, and its tensors by their names on the Hub."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from peer.engines.base import VersionState
from rollcast.policy.config import ModelConfig, described_model
from rollcast.policy.hub.config import write_config
from rollcast.policy.hub.names import hf_names, is_transposed
from rollcast.policy.lora import adapter_shapes
from rollcast.policy.shapes import parameter_shapes
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.tensors import ITEM_SIZE_BYTES, tensor_table

BLOCK_TOKENS = 128
"""Tokens of a block of vLLM's cache at most: its processor backend's. A sequence fills whole blocks."""

PRECISIONS: Mapping[str, Literal["float32", "bfloat16"]] = {"float32": "float32", "bfloat16": "bfloat16"}
"""Precisions that the engine can run, with the dtype of their weights in files."""


@dataclass(frozen=True, slots=True)
class ServerShape:
    """What a server is started for. Another model or longer sequences need another start.

    Args:
        model: the model's config.json as text.
        tokens_max: longest prompt and completion together, in tokens.
        tensor_parallel: devices that the model is divided over; 0: as many as are there and fit.
        heads: query heads, which must be divided evenly.
        key_value_heads: heads whose cache is divided over the devices.
        memory_share: share of each device's memory that vLLM may take, 0 to 1; None: vLLM's default.
        cache_bytes: size of the key-value cache on all devices together; 0: what the share of memory leaves.
        cache_bytes_least: size of a cache that holds all rollouts at their greatest length.
        base: folder of the weights that all versions share; empty: every version has its own.
        adapter_rank: of the adapters over them; 0: there are none.
    """

    model: str
    dtype: str
    tokens_max: int
    concurrent_rollouts: int
    tensor_parallel: int
    heads: int
    key_value_heads: int
    head_size: int
    memory_share: float | None
    cache_bytes: int
    cache_bytes_least: int
    base: str = ""
    adapter_rank: int = 0

    def serves(self, wanted: ServerShape) -> bool:
        """Return whether a server of this shape does the work of another one, which may have shorter sequences."""
        same_lengths = replace(
            wanted,
            tokens_max=self.tokens_max,
            cache_bytes=self.cache_bytes,
            cache_bytes_least=self.cache_bytes_least,
        )
        return wanted.tokens_max <= self.tokens_max and same_lengths == self

    def settings(self, folder: Path) -> dict[str, Any]:
        """Write config.json into a folder, the base's if there is one; return what the server's `start` needs."""
        folder = Path(self.base) if self.base else folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(self.model)
        return {name: value for name, value in asdict(self).items() if name != "model"} | {"folder": str(folder)}


def server_shape(
    config: ModelConfig,
    tokens_max: int,
    *,
    concurrent_rollouts: int,
    tensor_parallel: int,
    memory_share: float | None,
    cache_tokens: int,
) -> ServerShape:
    """Return the shape of a server for a model and its work.

    Args:
        cache_tokens: size of the key-value cache in tokens; 0: as vLLM chooses.
    """
    token_bytes = 2 * config.layers * config.key_value_heads * config.head_size * ITEM_SIZE_BYTES[config.precision]
    sequence_tokens = -(-tokens_max // BLOCK_TOKENS) * BLOCK_TOKENS
    cache_least = (concurrent_rollouts * sequence_tokens + BLOCK_TOKENS) * token_bytes
    cache = max(cache_tokens, sequence_tokens + BLOCK_TOKENS) * token_bytes if cache_tokens else 0
    values = write_config(config, config.precision)
    # Rotary tables are as long as the context that config.json names; our model has no such limit.
    values["max_position_embeddings"] = max(config.context_tokens_max, tokens_max)
    return ServerShape(
        model=json.dumps(values, indent=1),
        dtype=config.precision,
        tokens_max=tokens_max,
        concurrent_rollouts=concurrent_rollouts,
        tensor_parallel=tensor_parallel,
        heads=config.query_heads,
        key_value_heads=config.key_value_heads,
        head_size=config.head_size,
        memory_share=memory_share,
        cache_bytes=cache,
        cache_bytes_least=cache_least,
    )


def read_model(record: VersionRecord) -> ModelConfig:
    """Return a version's architecture.

    Raises:
        MalformedMessage: this release or this engine cannot run it, or the record's tensors do not belong to it.
    """
    config = described_model(record)
    if config.precision not in PRECISIONS:
        raise MalformedMessage(
            f"the vllm engine cannot run a model in {config.precision}",
            cause="its kernels are published as E4M3 codes with a scale for each block, and vLLM's own block-wise FP8 "
            "rounds activations in other groups than the learner",
            fix='set engine.kind = "jax" on this peer, or train in bfloat16',
        )
    if config.has_packed_base:
        raise MalformedMessage(
            "the vllm engine cannot run adapters over a base in NVFP4",
            cause="vLLM's kernels for it round activations too, or take scales in an order of their own, and no test "
            "has shown that they compute what the learner does",
            fix='set engine.kind = "jax" on this peer, or lora.base = "model" in the learner',
        )
    if config.attention_bias and config.head_size * config.query_heads != config.width:
        raise MalformedMessage(
            "the vllm engine cannot run a Qwen2.5 model with heads of this size",
            cause=f"vLLM takes model.width / model.query_heads = {config.width // config.query_heads} for the size of "
            f"that family's heads, whatever config.json says, and the model's is {config.head_size}",
            fix='set engine.kind = "jax" on this peer',
        )
    if config.experts:
        raise MalformedMessage(
            "the vllm engine cannot run a model with experts",
            cause="after an exchange of weights in place, vLLM's experts on a processor compute something else than "
            "the learner, and no test has shown that a GPU's do not; it does not report routes either",
            fix='set engine.kind = "jax" on this peer',
        )
    shapes = parameter_shapes(config) if record.base is None else adapter_shapes(config)
    expected = tensor_table((name, config.precision, shape) for name, shape in shapes.items())
    if tuple(record.tensors) != expected:
        raise MalformedMessage(
            "the version's tensors do not match its model",
            cause="names, dtypes, shapes or offsets differ from what the model configuration gives",
            fix="run the same release on the learner and on the peers",
        )
    return config


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A version that vLLM can load.

    Args:
        state: file with exactly the version's bytes; it stays until `discard`.
        table: file with the names, places and shapes of its tensors.
        salt: text that no other version has, for caches that must not mix versions.
        state_hash: BLAKE3 of the version's bytes.
        base: folder of the base's weights in a run with adapters; the version has no state file and no table then.
        adapters: folder with the version's adapters over them, zeros for the base itself; None: it has no base.
        held: the version's bytes if ``state`` is in this process's memory, which keeps them while they are referred to.
    """

    epoch: Epoch
    version: Version
    config: ModelConfig
    state: Path
    size_bytes: int
    table: Path
    salt: str
    state_hash: bytes
    base: Path | None = None
    adapters: Path | None = None
    held: memoryview | None = field(default=None, compare=False, repr=False)

    def discard(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.state.parent, ignore_errors=True)


def stage(version: VersionState, folder: Path, loaded_hash: bytes) -> Checkpoint:
    """Make a version's files in a folder of its own below ``folder``.

    A state on disk is linked, so that the store may remove it; one in memory is named by a symbolic link and held.

    Args:
        loaded_hash: BLAKE3 of the state.

    Raises:
        MalformedMessage: see read_model, or the state has another size than the record says.
    """
    record, state = version.record, version.state
    config = read_model(record)
    if len(state) != record.state_size_bytes:
        raise MalformedMessage(
            f"the version's state has {len(state)} bytes, but its record says {record.state_size_bytes}"
        )
    salt = f"{record.version}-{loaded_hash.hex()[:16]}"
    place = folder / salt
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if version.in_memory and version.path is not None:
        (place / "state").symlink_to(version.path)
    else:
        _link_or_write(version.path, state, place / "state")
    (place / "table.json").write_text(json.dumps(_table(record)))
    return Checkpoint(
        record.epoch,
        record.version,
        config,
        place / "state",
        len(state),
        place / "table.json",
        salt,
        loaded_hash,
        held=state if version.in_memory else None,
    )


def _link_or_write(source: Path | None, state: memoryview, target: Path) -> None:
    if source is not None:
        try:
            os.link(source, target)
        except OSError:  # another file system, or one without hard links
            pass
        else:
            return
    target.write_bytes(state)


def _table(record: VersionRecord) -> list[dict[str, Any]]:
    return [
        {
            "names": hf_names(spec.name, spec.shape),
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "offset_bytes": spec.offset_bytes,
            "size_bytes": spec.size_bytes,
            "transposed": is_transposed(spec.name),
        }
        for spec in record.tensors
    ]
