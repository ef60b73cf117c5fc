"""Measure how fast versions and checkpoints leave 8 virtual devices, and how long training waits for them.

    python -m bench.programs.state_writer FOLDER --million 256 --checkpoint-gb 1

Prints one JSON object. ``freeze_gb_s``: bytes of a bfloat16 version by the seconds from the request until its file is
written, into the page cache of a local disk, by the writers of one process. ``freeze_stop_share``: the share of these
seconds by which the next optimiser step is later than it would be. On virtual devices the conversion competes with the
step for the host's memory, so ``freeze_copy_gb_s`` has the bytes that the conversion reads and writes by that delay:
an accelerator does the same at the bandwidth of its own memory. To compare with, in the same rounds:
``page_cache_gb_s`` is how fast as many threads write zeros into a file, ``memory_gb_s`` the bandwidth of a copy in this
host's memory by one thread, bytes read and written.

``checkpoint_save_gb_s`` and ``checkpoint_restore_gb_s``: bytes of a float32 state by the seconds until its checkpoint
is durable, and until it is on the devices and checked; ``checkpoint_stop_share`` is like freeze_stop_share.
``disk_write_gb_s`` and ``disk_read_gb_s``: a file of the same size that as many threads write and fsync, or read.
Before reading the kernel is asked to drop the files from its page cache. Medians of the rounds are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.checkpoints.arrays import ArrayWrite, read_arrays
from learner.checkpoints.checkpoint import Checkpoints, HostState
from learner.config import MeshConfig
from learner.training.freezing import BAND_BYTES, WRITERS, begin_freeze
from learner.training.mesh import make_mesh, placed, placed_params, sharding_of
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.policy.shapes import parameter_count, parameter_shapes

GB = 1e9
ROUNDS = 3
CHECKPOINT_ROUNDS = 2
SQUARE = 2048  # rows and columns of a tensor of the state
MODEL = {"vocabulary_size": 16_384, "width": 2048, "query_heads": 16, "key_value_heads": 8, "head_size": 128}
BLOCK_MILLION = 50  # parameters of a block of this width, about


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--million", type=int, default=256, help="parameters of the version, about")
    parser.add_argument("--checkpoint-gb", type=float, default=1.0, help="size of the state")
    arguments = parser.parse_args()
    layers = max(1, arguments.million // BLOCK_MILLION)
    shape = MODEL | {"layers": layers, "feed_forward_width": 3 * int(MODEL["width"]), "precision": "bfloat16"}
    figures = freezing(ModelConfig.model_validate(shape), arguments.folder)
    figures |= checkpointing(max(1, int(arguments.checkpoint_gb * GB / 4 / SQUARE**2)), arguments.folder)
    print(json.dumps(figures), flush=True)


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
        path.unlink()
    seconds, stop_s, zeros_s = (statistics.median(values) for values in zip(*rounds[1:], strict=True))
    moved = parameter_count(model) * (4 + 2)
    return {
        "freeze_gb_s": size / seconds / GB,
        "freeze_stop_share": stop_s / seconds,
        "freeze_copy_gb_s": moved / max(stop_s, 1e-9) / GB,
        "page_cache_gb_s": size / zeros_s / GB,
        "memory_gb_s": _memory_bandwidth() / GB,
    }


def checkpointing(tensors: int, folder: Path, square: int = SQUARE) -> dict[str, float]:
    """Save and restore square float32 tensors on 8 devices, with a step taken meanwhile, and return the figures."""
    random = np.random.default_rng(0)
    where = sharding_of(make_mesh(MeshConfig(fsdp=len(jax.devices()))), "query.kernel", (square, square))
    values = random.standard_normal((square, square), np.float32)
    state = {f"parameters/{number}": placed(values, where) for number in range(tensors)}
    step = jax.jit(lambda own: {name: 0.999 * leaf for name, leaf in own.items()}, donate_argnums=0)
    state = _stepped(step, state)[0]  # compiles
    checkpoints = Checkpoints(folder / "checkpoints", keep=2)
    size = sum(leaf.nbytes for leaf in state.values())
    rounds = []
    for number in range(CHECKPOINT_ROUNDS + 1):  # the first one compiles
        state, step_s = _stepped(step, state)
        began_s = time.perf_counter()
        saving = checkpoints.begin(_host_state(number), partial(ArrayWrite, state=state))
        state, _ = _stepped(step, state)
        stop_s = max(0.0, time.perf_counter() - began_s - step_s)
        saving.commit()
        save_s = time.perf_counter() - began_s - step_s
        disk_write_s = _seconds_of_zeros(folder / "plain", size, durable=True)
        rounds.append(
            (save_s, stop_s, _restored(checkpoints, folder, state), disk_write_s, _seconds_to_read(folder / "plain"))
        )
    save_s, stop_s, restore_s, disk_write_s, disk_read_s = (
        statistics.median(values) for values in zip(*rounds[1:], strict=True)
    )
    shutil.rmtree(folder / "checkpoints")
    return {
        "checkpoint_save_gb_s": size / save_s / GB,
        "checkpoint_restore_gb_s": size / restore_s / GB,
        "checkpoint_stop_share": stop_s / save_s,
        "disk_write_gb_s": size / disk_write_s / GB,
        "disk_read_gb_s": size / disk_read_s / GB,
    }


def _host_state(step: int) -> HostState:
    return HostState(step, step, "bench", 0, 0, "{}", "{}", {}, 1, [], {})


def _restored(checkpoints: Checkpoints, folder: Path, state: Params) -> float:
    """Restore the newest checkpoint to where the state lies, and return the seconds."""
    like = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for name, leaf in state.items()}
    for path in folder.rglob("*"):
        if path.is_file():
            _drop_from_cache(path)
    began_s = time.perf_counter()
    checkpoints.restore(lambda _, saved: jax.block_until_ready(read_arrays(saved, like)) and None)
    return time.perf_counter() - began_s


def _seconds_to_read(path: Path) -> float:
    """Read a file with as many threads as write a version, remove it, and return the seconds."""
    _drop_from_cache(path)
    size = path.stat().st_size
    began_s = time.perf_counter()
    with path.open("rb") as file, ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda offset: len(os.pread(file.fileno(), BAND_BYTES, offset)), range(0, size, BAND_BYTES)))
    seconds = time.perf_counter() - began_s
    path.unlink()
    return seconds


def _drop_from_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _seconds_of_zeros(path: Path, size: int, *, durable: bool = False) -> float:
    """Write zeros into a file with as many threads as a version, and return the seconds."""
    zeros = bytes(BAND_BYTES)
    began_s = time.perf_counter()
    with path.open("wb") as file:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda offset: os.pwrite(file.fileno(), zeros, offset), range(0, size, BAND_BYTES)))
        if durable:
            os.fsync(file.fileno())
    return time.perf_counter() - began_s


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
