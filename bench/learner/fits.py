"""Compile the whole step of published models for real accelerators, and compare its memory with plan-memory's.

``MODEL.DEVICES.total_gib``: GiB of each device at the worst moment of a step, by XLA's own figures: gradients of a
micro-batch, the optimiser's step, the pass under an older version and publishing, each with all arrays that stay in
memory meanwhile. ``MODEL.DEVICES.planned_gib``: what `rollcast plan-memory` says of the same configuration;
``planned_error_max``: the largest relative difference. ``MODEL.DEVICES.compile_s``: seconds in which all these programs
are traced and compiled, and ``MODEL.DEVICES.compile_cpu_s`` the processor's seconds; ``compile_s_h100_max``,
``compile_s_tpu_max``: the longest. ``fullest_share``: the largest total / memory of the device.

``MODEL.DEVICES.sampler_gib``: GiB of each device with a peer's engine that divides the model among the same H100s, at
the worse of its two programs, which generate and read prompts: SAMPLER_ROLLOUTS rollouts of the rows' length, one
version on the devices. ``MODEL.DEVICES.sampler_planned_gib``: what plan-memory says of it. It is not compiled for TPUs,
whose compiler takes some 20 s for each layer of these programs.

It needs the compilers of the extra ``ahead``. Results are kept in --cache for the present sources, so that the table
can be made a piece at a time: --model qwen3-4b --devices h100x8.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

from bench.ahead.accelerators import ACCELERATORS, Accelerators, printed_by, why_not
from bench.machine import Outcome
from rollcast.policy.config import ModelConfig, OptimiserName
from rollcast.policy.sizing.hardware import GIB
from rollcast.policy.sizing.memory import Estimate, PeerShape, peer_memory

MODELS = ("qwen3-4b", "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b")
LARGEST = "qwen3-32b"
ROW_TOKENS = 8192
SAMPLER_ROLLOUTS, SAMPLER_PROMPT_TOKENS = 64, 1024
COMPILE_TIMEOUT_S = 7200.0

_ROOT = Path(__file__).parents[2]
#: Folders whose modules determine the compiled programs.
_SOURCES = (
    "bench/ahead",
    "learner",
    "learner/objective",
    "learner/optimisers",
    "learner/training",
    "rollcast/policy",
    "rollcast/policy/experts",
    "rollcast/policy/kernels",
    "rollcast/policy/products",
    "rollcast/policy/sampling",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", action="append", choices=MODELS, help="only this model; may be repeated")
    parser.add_argument("--devices", action="append", choices=ACCELERATORS, help="only these; may be repeated")
    parser.add_argument("--row-tokens", type=int, default=ROW_TOKENS, help="tokens of a row, one row a device")
    parser.add_argument("--optimiser", choices=get_args(OptimiserName), default="adamw")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "rollcast-fits")


def run(arguments: argparse.Namespace) -> Outcome:
    figures: dict[str, float] = {}
    missing: list[str] = []
    for model, name in table(arguments.model, arguments.devices):
        reason = why_not(ACCELERATORS[name])
        if reason:
            print(f"{model} on {name}: {reason}", file=sys.stderr)
            missing.append(f"{model}.{name}.total_gib")
            continue
        compiled = _compiled(model, name, arguments)
        estimate = planned(model, ACCELERATORS[name], arguments.row_tokens, arguments.optimiser)
        figures |= cell(model, name, compiled, estimate)
        if ACCELERATORS[name].platform == "gpu":
            figures |= sampler_cell(model, name, arguments)
    settings = {"row_tokens": arguments.row_tokens, "optimiser": arguments.optimiser}
    return Outcome(settings, figures | worst(figures), tuple(missing))


def table(models: list[str] | None, devices: list[str] | None) -> list[tuple[str, str]]:
    """Return the chosen pairs of model and devices; the largest slice is only for the largest model."""
    return [
        (model, name)
        for model in models or MODELS
        for name in devices or ACCELERATORS
        if model == LARGEST or ACCELERATORS[name].count < 1024
    ]


def planned(model: str, accelerators: Accelerators, row_tokens: int, optimiser: OptimiserName = "adamw") -> Estimate:
    """Return plan-memory's estimate for the configuration that is compiled."""
    from bench.ahead.whole_step import learner_config
    from rollcast.cli.start.plan_memory import learner_shape
    from rollcast.policy.sizing.memory import learner_memory

    shape = learner_shape(learner_config(accelerators, row_tokens, optimiser), row_tokens)
    return learner_memory(ModelConfig(preset=model), shape)


def cell(model: str, name: str, compiled: dict[str, Any], estimate: Estimate) -> dict[str, float]:
    """Return the figures of one model on one kind of devices, of the whole step and of each phase."""
    key, hardware = f"{model}.{name}", ACCELERATORS[name].hardware
    resident = sum(estimate.resident.values())
    phases: dict[str, int] = {}
    for program in compiled["programs"]:
        phases[program["phase"]] = max(phases.get(program["phase"], 0), program["bytes"])
    figures = {
        f"{key}.total_gib": max(phases.values()) / GIB,
        f"{key}.planned_gib": estimate.peak / GIB,
        f"{key}.compile_s": compiled["compile_s"],
        f"{key}.compile_cpu_s": compiled["compile_cpu_s"],
        f"{key}.device_share": max(phases.values()) / GIB / hardware.memory_gib,
    }
    for phase, size in phases.items():
        phase_key = f"{key}.{phase.replace(' ', '_')}"
        figures[f"{phase_key}_gib"] = size / GIB
        figures[f"{phase_key}_planned_gib"] = (resident + sum(estimate.phases[phase].values())) / GIB
    return figures


def sampler_cell(model: str, name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a peer whose engine divides a model among these devices."""
    shape = PeerShape(SAMPLER_ROLLOUTS, arguments.row_tokens, versions_on_device=1, devices=ACCELERATORS[name].count)
    options = {
        "--rollouts": SAMPLER_ROLLOUTS,
        "--prompt-tokens": SAMPLER_PROMPT_TOKENS,
        "--new-tokens": arguments.row_tokens - SAMPLER_PROMPT_TOKENS,
    }
    words = [str(word) for option in options.items() for word in option]
    path = arguments.cache / f"sampler-{model}-{name}-{arguments.row_tokens}-{_digest()}.json"
    programs = _kept(path, "bench.ahead.compile_sampler", [model, name, *words], ACCELERATORS[name])
    return {
        f"{model}.{name}.sampler_gib": max(programs.values()) / GIB,
        f"{model}.{name}.sampler_planned_gib": peer_memory(ModelConfig(preset=model), shape).peak / GIB,
    }


def worst(figures: dict[str, float]) -> dict[str, float]:
    """Return the summary over all cells."""
    cells = [key.removesuffix(".total_gib") for key in figures if key.endswith(".total_gib")]
    if not cells:
        return {}
    errors = [abs(figures[f"{one}.planned_gib"] / figures[f"{one}.total_gib"] - 1.0) for one in cells]
    found = {"planned_error_max": max(errors), "fullest_share": max(figures[f"{one}.device_share"] for one in cells)}
    for kind, key in (("h100", "compile_s_h100_max"), ("v5p", "compile_s_tpu_max")):
        seconds = [figures[f"{one}.compile_s"] for one in cells if one.split(".")[-1].startswith(kind)]
        found |= {key: max(seconds)} if seconds else {}
    return found


def _compiled(model: str, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what each program needs, compiled now or kept for the present sources."""
    row_tokens, optimiser = str(arguments.row_tokens), arguments.optimiser
    path = arguments.cache / f"{model}-{name}-{row_tokens}-{optimiser}-{_digest()}.json"
    options = ["--row-tokens", row_tokens, "--optimiser", optimiser]
    return _kept(path, "bench.ahead.compile_step", [model, name, *options], ACCELERATORS[name])


def _kept(path: Path, module: str, options: list[str], accelerators: Accelerators) -> dict[str, Any]:
    """Return what a module prints, which is kept in a file."""
    if not path.exists():
        found = printed_by(module, options, accelerators, COMPILE_TIMEOUT_S)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    kept: dict[str, Any] = json.loads(path.read_text())
    return kept


def _digest() -> str:
    """Return a digest of everything that determines the programs: the sources, and jax's version."""
    digest = hashlib.blake2b(importlib.metadata.version("jax").encode(), digest_size=8)
    for folder in _SOURCES:
        for source in sorted((_ROOT / folder).glob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()
