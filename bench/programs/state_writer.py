"""Measure how fast a version leaves 8 virtual devices for a file, and how long training waits for it.

    python -m bench.programs.state_writer FOLDER --million 256

Prints one JSON object. ``freeze_gb_s``: bytes of a bfloat16 version by the seconds from the request until its file is
written, into the page cache of a local disk, by the writers of one process. ``freeze_stop_share``: the share of these
seconds by which the next optimiser step is later than it would be. On virtual devices the conversion competes with the
step for the host's memory, so ``freeze_copy_gb_s`` has the bytes that the conversion reads and writes by that delay:
an accelerator does the same at the bandwidth of its own memory. To compare with, in the same rounds:
``page_cache_gb_s`` is how fast as many threads write zeros into a file, ``memory_gb_s`` the bandwidth of a copy in this
host's memory by one thread, bytes read and written. The medians of three rounds are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.config import MeshConfig
from learner.training.freezing import BAND_BYTES, WRITERS, begin_freeze
from learner.training.mesh import make_mesh, placed_params
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.policy.shapes import parameter_count, parameter_shapes

GB = 1e9
ROUNDS = 3
MODEL = {"vocabulary_size": 16_384, "width": 2048, "query_heads": 16, "key_value_heads": 8, "head_size": 128}
BLOCK_MILLION = 50  # parameters of a block of this width, about


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--million", type=int, default=256, help="parameters, about")
    arguments = parser.parse_args()
    layers = max(1, arguments.million // BLOCK_MILLION)
    shape = MODEL | {"layers": layers, "feed_forward_width": 3 * int(MODEL["width"]), "precision": "bfloat16"}
    print(json.dumps(freezing(ModelConfig.model_validate(shape), arguments.folder)), flush=True)


def freezing(model: ModelConfig, folder: Path) -> dict[str, float]:
    """Freeze parameters on 8 devices while an optimiser step is taken, and return the figures."""
    params = _random_params(model)
    step = jax.jit(lambda own: {name: 0.999 * leaf for name, leaf in own.items()}, donate_argnums=0)
    params = _stepped(step, params)[0]  # compiles
    rounds = []
    for number in range(ROUNDS + 1):  # the first one compiles
        params, step_s = _stepped(step, params)
        path = folder / f"{number}.state"
        path.touch()
        began_s = time.perf_counter()
        write = begin_freeze(model, params, path)
        params, _ = _stepped(step, params)
        stop_s = max(0.0, time.perf_counter() - began_s - step_s)
        write()
        seconds = time.perf_counter() - began_s - step_s
        size = path.stat().st_size
        path.unlink()
        rounds.append((seconds, stop_s, _seconds_of_zeros(path, size)))
    seconds, stop_s, zeros_s = (statistics.median(values) for values in zip(*rounds[1:], strict=True))
    moved = parameter_count(model) * (4 + 2)
    return {
        "freeze_gb_s": size / seconds / GB,
        "freeze_stop_share": stop_s / seconds,
        "freeze_copy_gb_s": moved / max(stop_s, 1e-9) / GB,
        "page_cache_gb_s": size / zeros_s / GB,
        "memory_gb_s": _memory_bandwidth() / GB,
    }


def _seconds_of_zeros(path: Path, size: int) -> float:
    """Write zeros into a file with as many threads as a version, and return the seconds."""
    zeros = bytes(BAND_BYTES)
    began_s = time.perf_counter()
    with path.open("wb") as file, ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda offset: os.pwrite(file.fileno(), zeros, offset), range(0, size, BAND_BYTES)))
    seconds = time.perf_counter() - began_s
    path.unlink()
    return seconds


def _random_params(model: ModelConfig) -> Params:
    random = np.random.default_rng(0)
    mesh = make_mesh(MeshConfig(fsdp=len(jax.devices())))
    shapes = parameter_shapes(model)
    return placed_params(mesh, {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()})


def _stepped(step: Callable[[Params], Params], params: Params) -> tuple[Params, float]:
    began_s = time.perf_counter()
    stepped: Any = jax.block_until_ready(step(params))
    return stepped, time.perf_counter() - began_s


def _memory_bandwidth() -> float:
    source = np.ones(256 << 20, np.uint8)
    target = np.zeros_like(source)
    times_s = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        np.copyto(target, source)
        times_s.append(time.perf_counter() - began_s)
    return 2 * source.nbytes / min(times_s)


if __name__ == "__main__":
    main()
