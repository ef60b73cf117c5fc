"""Make engines, versions of a model and requests, the same for every engine that is compared."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from peer.config import EngineConfig, PeerConfig
from peer.engines.base import Engine, GenerateRequest, VersionState, WarmUp
from peer.startup import make_engine
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import initial_params
from rollcast.policy.snapshot import freeze
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.rollouts import Sampling
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import TensorSpec


def version_of(
    model: ModelConfig, number: int, tensors: tuple[TensorSpec, ...], state: memoryview, path: Path | None = None
) -> VersionState:
    """Return a version of a model: the specs of its tensors, its bytes, and the file that holds them, if one does."""
    record = VersionRecord(
        run_id=RunId("bench"),
        epoch=Epoch(0),
        version=Version(number),
        parent_hash=b"",
        state_hash=state_hash(state),
        state_size_bytes=len(state),
        tensors=tensors,
        model_json=model.model_dump_json(),
    )
    return VersionState(record, state, path)


def random_version(config: ModelConfig, folder: Path) -> VersionState:
    """Return version 0 with random weights; its state is a file in ``folder``, as in a peer's store."""
    snapshot = freeze(config, initial_params(config, 0))
    path = folder / f"version-0-{config.precision}"
    path.write_bytes(snapshot.state_bytes)
    return version_of(config, 0, snapshot.tensors, np.memmap(path, np.uint8, mode="r").data, path)


def add_python_argument(parser: argparse.ArgumentParser) -> None:
    """Add --python, the interpreter in whose environment vLLM is installed; ROLLCAST_VLLM_PYTHON by default."""
    python = os.environ.get("ROLLCAST_VLLM_PYTHON")
    default = None if python is None else Path(python)
    parser.add_argument("--python", type=Path, default=default, help="interpreter that has vLLM")


def engine_of(kind: str, rows: int, python: Path | None, state_folder: Path) -> Engine:
    """Return an engine of one kind, made as a peer makes it.

    Args:
        kind: engine.kind.
        rows: completions that are generated at a time.
        python: the interpreter in whose environment vLLM is installed; None: this one.
    """
    engine = EngineConfig.model_validate({"kind": kind, "concurrent_rollouts": rows, "python": python})
    return make_engine(PeerConfig(engine=engine, state_folder=state_folder))


async def ready(engine: Engine, version: VersionState, prompt_tokens: int, new_tokens: int) -> None:
    """Load a version, compile for this work, and make the version active.

    Raises:
        AssertionError: what the engine loaded is not this version.
    """
    engine.expect(WarmUp(prompt_tokens, Sampling(1.0, new_tokens, ())))
    assert await engine.load(version) == version.record.state_hash
    await engine.activate(version.record.version)


def requests(
    config: ModelConfig, count: int, prompt_tokens: int, new_tokens: int, *, group: int, seed: int = 0
) -> list[GenerateRequest]:
    """Return requests with random prompts, each prompt shared by ``group`` of them."""
    prompts = np.random.default_rng(seed).integers(0, config.vocabulary_size, (-(-count // group), prompt_tokens))
    sampling = Sampling(1.0, new_tokens, ())
    return [
        GenerateRequest(tuple(map(int, prompts[index // group])), (seed << 32) + index, sampling)
        for index in range(count)
    ]


async def complete(
    engine: Engine, asked: Sequence[GenerateRequest], slice_tokens: int = 256
) -> tuple[list[tuple[list[int], list[float]]], float]:
    """Return the tokens and log-probabilities of each completion, and the seconds that all took together."""
    made: list[tuple[list[int], list[float]]] = [([], []) for _ in asked]
    begun_s = time.perf_counter()
    generation, going = engine.begin(asked), len(asked)
    while going:
        for piece in await generation.next_slice(slice_tokens):
            made[piece.request][0].extend(piece.token_ids)
            made[piece.request][1].extend(piece.logprobs)
            going -= piece.finish_reason is not None
    return made, time.perf_counter() - begun_s
