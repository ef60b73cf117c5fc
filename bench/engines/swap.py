"""Exchange versions in vLLM: how long generation waits, how many bytes are moved, how much memory it takes.

One model of 0.5 billion parameters in bfloat16, with random weights, in a real vLLM on whatever device it finds.

``swap_pause_per_copy``: shortest pause for a version of which every element differs, over the shortest plain copy of
its bytes by this process (one thread, from the mapped file to memory that was touched before).
``swap_delta_per_keyframe``: shortest pause for a version of which 1 % differs, at random places, over that.
``swap_delta_per_keyframe_cpu``: the same of the processor time that vLLM's processes take meanwhile, which other
programs on the machine do not change.
``swap_moved_share``: bytes that the latter moves to the device, over the bytes of the weights.
``swap_memory_share``: anonymous memory (RssAnon) of vLLM's worker beyond that before a swap, at the worst moment of all
swaps, over the bytes of the weights. On a processor it is the device's memory; the mapped file is page cache.
``swap_read_back``: share of the swaps after which the weights were read out of vLLM, and had the version's hash.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from bench.engines.common import add_python_argument, version_of
from bench.machine import Outcome
from peer.engines.base import Swap, VersionState, WarmUp
from peer.engines.vllm.engine import VllmEngine, VllmSettings, vllm_engine
from rollcast.policy.config import ModelConfig
from rollcast.policy.published import ARCHITECTURES
from rollcast.policy.shapes import parameter_shapes
from rollcast.wire.rollouts import Sampling
from rollcast.wire.versions.tensors import tensor_table

CHANGED_SHARE = 0.01
ROLLOUTS, PROMPT_TOKENS, NEW_TOKENS = 2, 64, 64
_LOOK_S = 0.001
_TICK_S = 0.01  # in which the system counts processor time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_python_argument(parser)
    parser.add_argument("--model", choices=sorted(ARCHITECTURES), default="qwen2.5-0.5b")
    parser.add_argument("--rounds", type=int, default=3)


def run(arguments: argparse.Namespace) -> Outcome:
    model = ModelConfig.model_validate(ARCHITECTURES[arguments.model])
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        figures = asyncio.run(measured(model, arguments.python, Path(folder), arguments.rounds))
    return Outcome({"model": arguments.model, "rounds": arguments.rounds, "changed_share": CHANGED_SHARE}, figures)


async def measured(model: ModelConfig, python: Path | None, folder: Path, rounds: int) -> dict[str, float]:
    """Swap ``rounds`` times between versions of the model, and return the figures."""
    states = write_states(model, folder)
    engine = vllm_engine(VllmSettings(ROLLOUTS), python, folder / "vllm")
    engine.expect(WarmUp(PROMPT_TOKENS, Sampling(1.0, NEW_TOKENS, ())))
    versions = (state_of(model, number, states[which]) for number, which in enumerate(order(rounds)))
    swaps: list[tuple[Swap, float]] = []
    try:
        await swapped(engine, next(versions))  # it starts vLLM and goes through vLLM's own reload
        with watched_memory() as beyond:
            swaps += [await swapped(engine, version) for version in versions]
    finally:
        await engine.close()
    whole, part = ([one for one in swaps if one[0].kind == kind] for kind in ("keyframe", "delta"))
    size_bytes = states[0].stat().st_size
    keyframe_s, delta_s = (min(one.paused_s for one, _ in kind) for kind in (whole, part))
    keyframe_cpu_s, delta_cpu_s = (min(cpu_s for _, cpu_s in kind) for kind in (whole, part))
    return {
        "swap_pause_per_copy": keyframe_s / copy_s(states[0], rounds),
        "swap_delta_per_keyframe": delta_s / keyframe_s,
        "swap_delta_per_keyframe_cpu": delta_cpu_s / max(keyframe_cpu_s, _TICK_S),
        "swap_moved_share": part[0][0].moved_bytes / size_bytes,
        "swap_memory_share": max(beyond) / size_bytes,
        "swap_read_back": sum(one.read_back for one, _ in swaps) / len(swaps),
        "swap_keyframe_pause_s": keyframe_s,
        "swap_delta_pause_s": delta_s,
    }


def order(rounds: int) -> list[int]:
    """Return which state each version has: after the first, a whole other one and twice a little of it, each round."""
    return [0, *(which for number in range(rounds) for which in ((1, 2, 1) if number % 2 == 0 else (0, 3, 0)))]


def write_states(model: ModelConfig, folder: Path) -> list[Path]:
    """Write two states that have nothing in common, and of each one that differs at 1 % of its elements."""
    items = sum(int(np.prod(shape)) for shape in parameter_shapes(model).values())
    paths = [folder / f"state-{number}" for number in range(4)]
    random = np.random.default_rng(0)
    for number in (0, 1):
        # Of either sign, between 0.0078 and 0.125: nothing overflows.
        bits = random.integers(0, 1 << 16, items, np.uint16) & 0x81FF | 0x3C00
        bits.astype("<u2").tofile(paths[number])
        bits[random.integers(0, items, int(CHANGED_SHARE * items))] ^= 1
        bits.astype("<u2").tofile(paths[3 - number])
    return paths


def state_of(model: ModelConfig, number: int, path: Path) -> VersionState:
    """Return a version with the state of this file."""
    with path.open("rb") as file:
        state = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    tensors = tensor_table((name, model.precision, shape) for name, shape in parameter_shapes(model).items())
    return version_of(model, number, tensors, state, path)


async def swapped(engine: VllmEngine, version: VersionState) -> tuple[Swap, float]:
    """Put a version into vLLM as the first slice with it does, and read it back.

    Returns:
        What the swap took, and the seconds of processor time of vLLM's processes, to a hundredth.
    """
    await engine.load(version)
    await engine.activate(version.record.version)
    active, supervisor = engine.active, engine.supervisor
    assert active is not None
    before_s = cpu_s()
    await supervisor.prepare(engine.shape(active, PROMPT_TOKENS + NEW_TOKENS), active)
    taken_s = cpu_s() - before_s
    await supervisor.vouched()
    assert supervisor.last_swap is not None
    return supervisor.last_swap, taken_s


def cpu_s() -> float:
    """Return the seconds of processor time that this process's descendants have taken so far."""
    times = [one.cpu_times() for one in psutil.Process().children(recursive=True)]
    return sum(one.user + one.system for one in times)


def copy_s(path: Path, rounds: int) -> float:
    """Return the seconds of the fastest copy of a file's bytes from its mapping to memory."""
    source = np.memmap(path, np.uint8, "r")
    target = np.ones(len(source), np.uint8)
    seconds = []
    for _ in range(rounds + 1):
        begun_s = time.monotonic()
        np.copyto(target, source)
        seconds.append(time.monotonic() - begun_s)
    return min(seconds)


@contextmanager
def watched_memory() -> Iterator[list[int]]:
    """Yield a list of the anonymous bytes of vLLM's processes, beyond those at the beginning, as time goes on."""
    pids = [one.pid for one in psutil.Process().children(recursive=True)]
    before, beyond, ended = anonymous_bytes(pids), [0], threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            beyond.append(anonymous_bytes(pids) - before)

    thread = threading.Thread(target=look, name="look at memory")
    thread.start()
    try:
        yield beyond
    finally:
        ended.set()
        thread.join()


def anonymous_bytes(pids: list[int]) -> int:
    """Return the bytes of anonymous memory that processes have; one that has ended has none."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon:"))
    return total
