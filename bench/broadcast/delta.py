"""Measure sizes and speeds of deltas on updates as reinforcement learning makes them (``bench.broadcast.updates``).

Sizes are bytes of the delta / bytes of the bf16 keyframe, also for fp8. ``changed_`` is the share of bf16 values or fp8
codes that changed. Speeds are MB (10^6 bytes) of state a second of CPU time on one core, medians over layers, beside a
memcpy of the same states in the same run; ``_least`` is the slowest case. Every decoded state is compared. With
``--network`` one step's delta goes through the real daemons instead, see ``bench.broadcast.delta_network``.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zstandard

from bench.broadcast import delta_network, materialise, updates
from bench.machine import Outcome
from bench.wan.scenarios import SCENARIOS
from rollcast.wire.versions.delta import DeltaDecoder, InPlace, encode_delta
from rollcast.wire.versions.delta_blocks import ZSTD_LEVEL
from rollcast.wire.versions.tensors import TensorSpec, tensor_table

LEARNING_RATES = {"1e-6": 1e-6, "3e-6": 3e-6, "1e-5": 1e-5}
FORMATS = {"bf16": updates.as_bf16, "fp8": updates.as_fp8}
STEPS = 8
SNAPSHOTS = (0, 1, STEPS - 1, STEPS)
#: (from, to, suffix of the key): the single steps are averaged.
PAIRS = ((0, 1, ""), (STEPS - 1, STEPS, ""), (0, STEPS, f"_x{STEPS}"))
PIECE_BYTES = 64 << 10  # bytes that a decoder is fed at a time: a chunk

States = dict[tuple[str, int], bytes]  # (key such as bf16_1e-6, snapshot) -> state


@dataclass
class Sums:
    """The sums over all layers."""

    keyframe_bytes: int = 0
    zstd_bytes: int = 0
    delta_bytes: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    changed: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rates: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # MB/s of a layer
    disk: defaultdict[str, list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )  # see bench.broadcast.materialise
    decode_peak_bytes: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=256, help="least size of the bf16 keyframe")
    parser.add_argument(
        "--correlation", type=float, default=0.3, help="between successive gradients, see bench.broadcast.updates"
    )
    parser.add_argument("--seed", type=int, default=0)
    network = parser.add_argument_group("through the real daemons")
    network.add_argument("--network", action="store_true", help="measure the broadcast of a delta and of a keyframe")
    network.add_argument("--scenario", choices=sorted(SCENARIOS), default="het50")
    network.add_argument("--peers", type=int, default=0, help="receivers, of those of the scenario; 0: all")
    network.add_argument("--on-arrival", action="store_true", help="let the origin relay what still arrives")
    network.add_argument("--runs", type=int, default=5, help="pairs of keyframe and delta that count")
    network.add_argument("--scale", type=float, default=1.0, help="factor on all rates; delays stay")
    network.add_argument("--congestion", default="cubic", help="default congestion control of sockets")
    network.add_argument("--pace", type=int, default=0, help="ceiling of TCP's own pacing in Mbit/s; 0: no pacing")
    network.add_argument("--keep", type=Path, help="copy configurations and logs to this folder")


def run(arguments: argparse.Namespace) -> Outcome:
    if arguments.network:
        return delta_network.run(arguments)
    divisor = 2 if arguments.mib >= 128 else 4  # several layers even in a small state
    shapes = updates.layer_shapes(divisor)
    layer_bytes = 2 * sum(rows * columns for rows, columns in shapes.values())
    layers = -(-(arguments.mib << 20) // layer_bytes)
    rng = np.random.default_rng(arguments.seed)
    training = updates.Training(rng, list(LEARNING_RATES.values()), arguments.correlation)
    sums = Sums()
    for _ in range(layers):
        _measure_layer(training, shapes, sums)
    settings = {
        "mib": arguments.mib,
        "correlation": arguments.correlation,
        "seed": arguments.seed,
        "layers": layers,
        "layer_bytes": layer_bytes,
    }
    return Outcome(settings, _figures(sums))


def _measure_layer(training: updates.Training, shapes: dict[str, tuple[int, int]], sums: Sums) -> None:
    tables, states = _layer(training, shapes)
    keyframe = states["bf16_1e-6", 0]
    sums.keyframe_bytes += len(keyframe)
    sums.zstd_bytes += len(zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(keyframe))
    copy = np.empty(len(keyframe), np.uint8)
    copy.fill(0)  # touches every page, so that the timed copy has no page faults
    sums.rates["memcpy"].append(_rate(len(keyframe), lambda: np.copyto(copy, np.frombuffer(keyframe, np.uint8))))
    for name, value in materialise.rates(tables["bf16_1e-6"], keyframe, states["bf16_1e-6", 1]).items():
        sums.disk[name].append(value)
    for key, table in tables.items():
        for start, stop, suffix in PAIRS:
            _measure_pair(key + suffix, table, states[key, start], states[key, stop], sums)


def _measure_pair(key: str, table: tuple[TensorSpec, ...], old: bytes, new: bytes, sums: Sums) -> None:
    encoded = b""

    def encode() -> None:
        nonlocal encoded
        encoded = b"".join(encode_delta(table, old, new))

    def decode() -> None:
        decoder = DeltaDecoder(table, InPlace(state))
        for start in range(0, len(encoded), PIECE_BYTES):
            decoder.feed(memoryview(encoded)[start : start + PIECE_BYTES])
        decoder.finish()

    sums.rates[f"encode {key}"].append(_rate(len(new), encode))
    state = bytearray(old)
    sums.rates[f"decode {key}"].append(_rate(len(new), decode))
    if state != new:
        raise RuntimeError(f"{key}: the decoded state differs from the original")
    sums.delta_bytes[key].append(len(encoded))
    sums.changed[key].append(_changed_share(table, old, new))
    state[:] = old
    tracemalloc.start()
    decode()
    sums.decode_peak_bytes = max(sums.decode_peak_bytes, tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()


def _layer(
    training: updates.Training, shapes: dict[str, tuple[int, int]]
) -> tuple[dict[str, tuple[TensorSpec, ...]], States]:
    """Return one layer's tensor tables by key, and its states at the snapshots."""
    tensors: dict[tuple[str, int], updates.Tensors] = defaultdict(list)
    for name, shape in shapes.items():
        for step, masters in enumerate(training.masters(shape, STEPS)):
            if step not in SNAPSHOTS:
                continue
            for rate, master in zip(LEARNING_RATES, masters, strict=True):
                for form, publish in FORMATS.items():
                    tensors[f"{form}_{rate}", step] += publish(name, master)
    tables = {
        key: tensor_table((name, dtype, values.shape) for name, dtype, values in parts)
        for (key, step), parts in tensors.items()
        if step == 0
    }
    return tables, {place: b"".join(values.tobytes() for _, _, values in parts) for place, parts in tensors.items()}


def _changed_share(table: tuple[TensorSpec, ...], old: bytes, new: bytes) -> float:
    """Return the share of bf16 values or fp8 codes that changed; scales do not count."""
    changed = count = 0
    for tensor in table:
        if tensor.dtype != "float32":
            dtype = np.dtype(np.uint16 if tensor.dtype == "bfloat16" else np.uint8)
            items = tensor.size_bytes // dtype.itemsize
            before, after = (np.frombuffer(state, dtype, items, tensor.offset_bytes) for state in (old, new))
            changed += int(np.count_nonzero(before != after))
            count += items
    return changed / count


def _rate(state_bytes: int, work: Callable[[], None]) -> float:
    """Return the MB (10^6 bytes) of state a second of this thread's CPU time."""
    started_s = time.thread_time()
    work()
    return state_bytes / 1e6 / (time.thread_time() - started_s)


def _figures(sums: Sums) -> dict[str, float]:
    medians = {name: float(np.median(rates)) for name, rates in sums.rates.items()}
    memcpy = medians["memcpy"]
    figures: dict[str, float] = {}
    for key, sizes in sums.delta_bytes.items():
        repeats = 1 if key.endswith(f"_x{STEPS}") else 2
        figures[key] = sum(sizes) / repeats / sums.keyframe_bytes
        figures[f"changed_{key}"] = float(np.mean(sums.changed[key]))
    figures["zstd_alone"] = sums.zstd_bytes / sums.keyframe_bytes
    for verb in ("encode", "decode"):
        rates = {name: rate for name, rate in medians.items() if name.startswith(verb)}
        figures[f"{verb}_mb_s"] = medians[f"{verb} bf16_1e-6"]
        figures[f"{verb}_mb_s_least"] = min(rates.values())
        figures[f"{verb}_memcpy_ratio"] = figures[f"{verb}_mb_s"] / memcpy
        figures |= {f"{name.replace(' ', '_mb_s_')}": rate for name, rate in rates.items()}
    figures["memcpy_mb_s"] = memcpy
    figures["written_ratio"] = materialise.written_ratio()
    figures |= {name: float(np.median(values)) for name, values in sums.disk.items()}
    figures["decode_peak_extra_mib"] = sums.decode_peak_bytes / 2**20
    return figures
