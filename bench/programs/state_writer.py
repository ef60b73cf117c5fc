"""Measure how fast versions and checkpoints leave 8 virtual devices, and how long training waits for them.

    python -m bench.programs.state_writer FOLDER --million 285 --checkpoint-gb 1

Prints one JSON object. Parameters are stacked and divided among the devices as the learner's are.

``freeze_gb_s``: bytes of a bfloat16 version by the seconds from the request until its file is written, into the page
cache of a local disk, by the writers of one process. ``freeze_stop_share``: the share of these seconds by which the
next optimiser step is later than it would be. On virtual devices the conversion competes with the step for the host's
memory and cores, so ``freeze_copy_gb_s`` has the bytes that the conversion reads and writes by that delay: an
accelerator does the same at the bandwidth of its own memory.

``checkpoint_save_gb_s`` and ``checkpoint_restore_gb_s``: bytes of a float32 state (parameters and two moments) by the
seconds until its checkpoint is durable, and until it is on the devices and checked; ``checkpoint_stop_share`` is like
freeze_stop_share. The delay has a part here that accelerators do not have: the memory of the step's results, which
cannot take the place of what is still being written, and is new to the process. ``fingerprint_gb_s`` is how fast the
devices compute the fingerprints of the state, as after reading it.

To compare with, in the same rounds: ``page_cache_gb_s`` is how fast as many threads write zeros into a file;
``disk_write_gb_s`` and ``disk_read_gb_s`` are a file of the state's size that as many threads write and fsync, or read.
``freeze_page_cache_ratio``, ``checkpoint_save_disk_ratio`` and ``checkpoint_restore_disk_ratio`` are the medians of the
rounds' ratios to them. ``memory_gb_s`` is the bandwidth of a copy in this host's memory by one thread, bytes read and
written, and ``fresh_memory_gb_s`` the same into memory that the process has never used, as versions, pages of files and
restored arrays are: a virtual machine may get it from its host page by page. Before reading the kernel is asked to drop
the files from its page cache. Medians of the rounds are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.checkpoints.arrays import ArrayWrite, read_arrays
from learner.checkpoints.checkpoint import Checkpoints, HostState
from learner.checkpoints.fingerprints import begin_fingerprints
from learner.config import MeshConfig
from learner.training.freezing import BAND_BYTES, WRITERS, begin_freeze
from learner.training.mesh import make_mesh, placed_params, stacked_params
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.policy.shapes import parameter_count, parameter_shapes
from rollcast.policy.stacking import Layers

GB = 1e9
ROUNDS = 3
CHECKPOINT_ROUNDS = 2
KINDS = ("parameters", "first_moment", "second_moment")  # of the arrays of a state
MODEL = {"vocabulary_size": 16_384, "width": 2048, "query_heads": 16, "key_value_heads": 8, "head_size": 128}
BLOCK_MILLION, OUTSIDE_MILLION = 50, 34  # parameters of a block of this width, and of the embedding, about


Seconds = np.ndarray[Any, np.dtype[np.float64]]  # of the rounds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--million", type=float, default=285.0, help="parameters of the version, about")
    parser.add_argument("--checkpoint-gb", type=float, default=1.0, help="size of the state")
    arguments = parser.parse_args()
    figures = freezing(_model(arguments.million), arguments.folder)
    figures |= checkpointing(_model(arguments.checkpoint_gb * GB / 1e6 / 4 / len(KINDS)), arguments.folder)
    print(json.dumps(figures), flush=True)


def _model(million: float) -> ModelConfig:
    layers = max(1, round((million - OUTSIDE_MILLION) / BLOCK_MILLION))
    shape = MODEL | {"layers": layers, "feed_forward_width": 3 * int(MODEL["width"]), "precision": "bfloat16"}
    return ModelConfig.model_validate(shape)


def freezing(model: ModelConfig, folder: Path) -> dict[str, float]:
    """Freeze parameters on 8 devices while an optimiser step is taken, and return the figures."""
    params = _random_params(model)
    params = _stepped(params)[0]  # compiles
    rounds = []
    for number in range(ROUNDS + 1):  # the first one compiles
        params, step_s = _stepped(params)
        path = folder / f"{number}.state"
        path.touch()
        began_s = time.perf_counter()
        write = begin_freeze(model, Layers(params), path)
        params, _ = _stepped(params)
        stop_s = max(0.0, time.perf_counter() - began_s - step_s)
        write()
        seconds = time.perf_counter() - began_s - step_s
        size = path.stat().st_size
        path.unlink()
        rounds.append((seconds, stop_s, _seconds_of_zeros(path, size)))
        path.unlink()
    seconds, stop_s, zeros_s = np.array(rounds[1:]).T
    moved = parameter_count(model) * (4 + 2)
    return {
        "freeze_gb_s": size / float(np.median(seconds)) / GB,
        "freeze_page_cache_ratio": _ratio(zeros_s, seconds),
        "freeze_stop_share": _ratio(stop_s, seconds),
        "freeze_copy_gb_s": moved / max(float(np.median(stop_s)), 1e-9) / GB,
        "page_cache_gb_s": size / float(np.median(zeros_s)) / GB,
        "memory_gb_s": _memory_bandwidth(fresh=False) / GB,
        "fresh_memory_gb_s": _memory_bandwidth(fresh=True) / GB,
    }


def checkpointing(model: ModelConfig, folder: Path) -> dict[str, float]:
    """Save and restore parameters and moments on 8 devices, with a step taken meanwhile, and return the figures."""
    params = _random_params(model)
    state = {f"{kind}/{name}": leaf + number for number, kind in enumerate(KINDS) for name, leaf in params.items()}
    del params
    state = _stepped(state)[0]  # compiles
    checkpoints = Checkpoints(folder / "checkpoints", keep=2)
    rounds = []
    for number in range(CHECKPOINT_ROUNDS + 1):  # the first one compiles
        state, step_s = _stepped(state)
        began_s = time.perf_counter()
        saving = checkpoints.begin(_host_state(number), partial(ArrayWrite, state=state))
        state, _ = _stepped(state)
        stop_s = max(0.0, time.perf_counter() - began_s - step_s)
        saving.commit()
        save_s = time.perf_counter() - began_s - step_s
        disk_write_s = _seconds_of_zeros(folder / "plain", _size(state), durable=True)
        restore_s = _restored(checkpoints, folder, state)
        disk_read_s = _seconds_to_read(folder / "plain")
        rounds.append((save_s, stop_s, disk_write_s, restore_s, disk_read_s, _seconds_of_fingerprints(state)))
    shutil.rmtree(folder / "checkpoints")
    save_s, stop_s, disk_write_s, restore_s, disk_read_s, fingerprints_s = np.array(rounds[1:]).T
    return {
        "checkpoint_save_gb_s": _gb_s(state, save_s),
        "checkpoint_save_disk_ratio": _ratio(disk_write_s, save_s),
        "checkpoint_restore_gb_s": _gb_s(state, restore_s),
        "checkpoint_restore_disk_ratio": _ratio(disk_read_s, restore_s),
        "checkpoint_stop_share": _ratio(stop_s, save_s),
        "fingerprint_gb_s": _gb_s(state, fingerprints_s),
        "disk_write_gb_s": _gb_s(state, disk_write_s),
        "disk_read_gb_s": _gb_s(state, disk_read_s),
    }


def _size(state: Params) -> int:
    return sum(leaf.nbytes for leaf in state.values())


def _gb_s(state: Params, seconds: Seconds) -> float:
    return _size(state) / float(np.median(seconds)) / GB


def _ratio(these: Seconds, others: Seconds) -> float:
    return float(np.median(these / others))


def _seconds_of_fingerprints(state: Params) -> float:
    began_s = time.perf_counter()
    jax.block_until_ready(begin_fingerprints(state))
    return time.perf_counter() - began_s


def _host_state(step: int) -> HostState:
    return HostState(step, step, "bench", 0, 0, "{}", "{}", "", {}, 1, [], {})


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
    params = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return stacked_params(mesh, placed_params(mesh, params))


@partial(jax.jit, donate_argnums=0)
def _step(own: Params) -> Params:
    return {name: 0.999 * leaf for name, leaf in own.items()}


def _stepped(own: Params) -> tuple[Params, float]:
    began_s = time.perf_counter()
    stepped: Any = jax.block_until_ready(_step(own))
    return stepped, time.perf_counter() - began_s


def _memory_bandwidth(*, fresh: bool) -> float:
    source = np.ones(256 << 20, np.uint8)
    target = np.ones_like(source)
    times_s = []
    for _ in range(ROUNDS):
        if fresh:
            target = np.empty_like(source)
        began_s = time.perf_counter()
        np.copyto(target, source)
        times_s.append(time.perf_counter() - began_s)
    return 2 * source.nbytes / statistics.median(times_s)


if __name__ == "__main__":
    main()
