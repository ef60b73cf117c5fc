"""Measure the learner's step against the matmul roofline, its memory while publishing, and its loss on several devices.

``roofline_share``: model FLOP/s of whole train steps (gradients of every micro-batch, clipping, Adam) / those of the
best of some large matrix products, in float32, measured alternately in the same run; ``mfu``: the same step against
the processor's own peak, for GPUs and TPUs whose peak is known. Model FLOPs: 6 for each weight and token, in attention
12 for each pair of tokens and inner element, of which the causal half counts; recomputation does not count.

``publish_over_mib``: peak memory while a version is frozen, hashed, encoded and kept during training, beyond training's
own peak and the snapshot's size. ``sharded_publish_mib``: the most by which the memory of either of two processes of
four virtual devices each, over which the parameters are sharded, grows meanwhile, the snapshot included;
``sharded_snapshot_mib``: its size. ``freeze_gb_s``, ``freeze_stop_share``,
``checkpoint_save_gb_s``, ``checkpoint_stop_share`` ...: how fast a version and a checkpoint are written from 8 virtual
devices, and for which share of that time training waits (bench.programs.state_writer).

``mesh_loss_difference`` and ``two_process_loss_difference``: differences of the losses of two steps on 8 virtual
devices, and of two processes over gloo, from those on one device.
``recompute_rows_ratio`` and ``recompute_rows_ratio_8_devices``: see bench/learner/recompute_rows.py.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.machine import Outcome, alone
from rollcast.policy.shapes import parameter_count
from rollcast.policy.sizing.flops import training_flops
from rollcast.policy.sizing.hardware import peak_flops
from rollcast.runtime.errors import ProcessFailed

PROGRAM_TIMEOUT_S = 900.0
MATMUL_SIZE = 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--row-tokens", type=int, default=256)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--micro-batch-tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--precision", default="", help="default: float32 on a CPU, bfloat16 elsewhere")
    parser.add_argument("--remat", default="none", choices=["none", "blocks"])
    only = ["speed", "memory", "writing", "devices", "rows"]
    parser.add_argument("--checkpoint-gb", type=float, default=1.0, help="size of the state that is saved and restored")
    parser.add_argument("--only", choices=only, help="measure only this")


def run(arguments: argparse.Namespace) -> Outcome:
    figures: dict[str, float] = {}
    with alone():
        if arguments.only in (None, "speed"):
            figures |= speed(arguments)
        if arguments.only in (None, "memory"):
            figures |= _program("bench.programs.publishing_learner", [])
            figures |= sharded_publishing()
        if arguments.only in (None, "writing"):
            figures |= writing(arguments.checkpoint_gb)
        if arguments.only in (None, "devices"):
            figures |= devices()
        if arguments.only in (None, "rows"):
            from bench.learner.recompute_rows import recompute_rows_ratio

            figures["recompute_rows_ratio"] = recompute_rows_ratio()
            figures["recompute_rows_ratio_8_devices"] = recompute_rows_ratio(devices=8)
    settings = {name: getattr(arguments, name) for name in ("width", "layers", "vocabulary", "row_tokens", "rows")}
    settings |= {name: getattr(arguments, name) for name in ("micro_batch_tokens", "steps", "precision", "remat")}
    return Outcome(settings, figures, missing=() if "mfu" in figures else ("mfu",))


# ---------------------------------------------------------------- speed


def speed(arguments: argparse.Namespace) -> dict[str, float]:
    """Measure the share of the roofline, and of the processor's peak where it is known."""
    import jax

    from bench.learner.learner_step import Step, matmul_seconds

    on_cpu = jax.default_backend() == "cpu"
    precision = arguments.precision or ("float32" if on_cpu else "bfloat16")
    step = Step(arguments, precision)
    step.run()  # compiles
    matmul_s, step_s = [matmul_seconds(MATMUL_SIZE, precision)], []
    for _ in range(arguments.steps):
        started_s = time.perf_counter()
        step.run()
        step_s.append(time.perf_counter() - started_s)
        matmul_s.append(matmul_seconds(MATMUL_SIZE, precision))
    roofline = 2.0 * MATMUL_SIZE**3 / min(matmul_s)
    achieved = training_flops(step.model, [arguments.row_tokens] * arguments.rows) / min(step_s)
    figures = {
        "roofline_share": achieved / roofline,
        "parameters_million": parameter_count(step.model) / 1e6,
        "step_s": min(step_s),
        "tokens_per_second": arguments.rows * arguments.row_tokens / min(step_s),
        "achieved_gflop_s": achieved / 1e9,
        "roofline_gflop_s": roofline / 1e9,
    }
    peak = peak_flops(jax.devices()[0].device_kind)
    return figures if on_cpu or peak is None else figures | {"mfu": achieved / peak}


# ---------------------------------------------------------------- several devices and processes


def devices() -> dict[str, float]:
    """Measure the differences of losses on several devices and processes from those on one device."""
    virtual = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        meshes = ["--mesh", "1,1,1", "--mesh", "2,2,2", "--mesh", "1,4,2", "--mesh", "8,1,1"]
        one, *others = _program_json("tests.learner.distributed.several", [f"{folder}/virtual", *meshes], virtual)
        pair = two_processes(Path(folder) / "pair")
    return {
        "mesh_loss_difference": max(loss_difference(one, other) for other in others),
        "two_process_loss_difference": loss_difference(one, pair),
    }


def loss_difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference of the steps' losses."""
    steps = zip(one["metrics"], other["metrics"], strict=True)
    largest: float = max(abs(mine["loss"] - theirs["loss"]) for mine, theirs in steps)
    return largest


def two_processes(folder: Path) -> dict[str, Any]:
    """Return what tests.learner.distributed.several prints for two processes that share the parameters."""
    arguments = [str(folder), "--mesh", "1,2,1", "--processes", "2"]
    found: dict[str, Any] = _leader_and_follower("tests.learner.distributed.several", arguments, devices=1)[0][0]
    return found


def sharded_publishing() -> dict[str, float]:
    """Measure the memory of two processes that publish parameters sharded over them."""
    with tempfile.TemporaryDirectory() as folder:
        leader, told = _leader_and_follower("bench.programs.sharded_publisher", [folder], devices=4)
    follower = json.loads(told.splitlines()[-1])
    return {
        "sharded_publish_mib": max(leader["grown_mib"], follower["grown_mib"]),
        "sharded_snapshot_mib": leader["snapshot_mib"],
    }


def writing(checkpoint_gb: float) -> dict[str, float]:
    """Measure how fast versions and checkpoints are written from 8 virtual devices, and how long training waits."""
    virtual = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, float] = _program_json(
            "bench.programs.state_writer", [folder, "--checkpoint-gb", str(checkpoint_gb)], virtual
        )
    return figures


def _leader_and_follower(module: str, arguments: list[str], devices: int) -> tuple[Any, str]:
    """Run both processes; return the last line of process 0, which is JSON, and the whole output of process 1."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = [*arguments, "--address", address, "--process-id"]
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    follower = _start(module, [*common, "1"], environment)
    try:
        found = _program_json(module, [*common, "0"], environment)
        told, _ = follower.communicate(timeout=60.0)
    finally:
        follower.kill()
        follower.communicate()
    return found, told


def _program(module: str, arguments: list[str]) -> dict[str, float]:
    figures: dict[str, float] = _program_json(module, arguments, {})
    return figures


def _program_json(module: str, arguments: list[str], environment: dict[str, str]) -> Any:
    process = _start(module, arguments, environment)
    try:
        output, errors = process.communicate(timeout=PROGRAM_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    if process.returncode != 0:
        raise ProcessFailed(f"{module} ended with status {process.returncode}", cause=errors[-2000:])
    return json.loads(output.splitlines()[-1])


def _start(module: str, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
