"""Compile a model's whole step for accelerators, and print what each program needs as JSON.

    python -m bench.ahead.compile_step qwen3-4b h100x8 --row-tokens 8192

bench.learner.fits starts this program with the environment that the compilers need (accelerators.environment).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, get_args

from bench.ahead.accelerators import ACCELERATORS, devices_of
from bench.ahead.whole_step import Program, step_programs
from rollcast.policy.config import ModelConfig, OptimiserName


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("accelerators", choices=ACCELERATORS)
    parser.add_argument("--row-tokens", type=int, required=True)
    parser.add_argument("--optimiser", choices=get_args(OptimiserName), default="adamw")
    parser.add_argument("--layers", type=int, default=0, help="compile a model of fewer layers; 0: all")
    parsed = parser.parse_args(arguments)
    accelerators = ACCELERATORS[parsed.accelerators]
    model = ModelConfig(preset=parsed.model)
    if parsed.layers:
        model = model.model_copy(update={"layers": parsed.layers})
    devices = devices_of(accelerators)
    began_s, cpu_began_s, found = time.monotonic(), _cpu_s(), []
    for program in step_programs(model, accelerators, devices, parsed.row_tokens, parsed.optimiser):
        found.append(_compiled(program))
        print(found[-1], file=sys.stderr)
    seconds = {"compile_s": time.monotonic() - began_s, "compile_cpu_s": _cpu_s() - cpu_began_s}
    print(json.dumps(seconds | {"programs": found}))


def _cpu_s() -> float:
    """Return the processor seconds of this process and of the assemblers that it started."""
    return sum(os.times()[:4])


def _compiled(program: Program) -> dict[str, Any]:
    began_s = time.monotonic()
    memory = program.lowered.compile().memory_analysis()
    made = memory.output_size_in_bytes - memory.alias_size_in_bytes + memory.temp_size_in_bytes
    return {
        "phase": program.phase,
        "bytes": program.alive_bytes + made,
        "made_bytes": made,
        "argument_bytes": memory.argument_size_in_bytes,
        "compile_s": time.monotonic() - began_s,
    }


if __name__ == "__main__":
    main()
