"""Choose how XLA compiles for CPUs in tests: quickly, or as in a run.

The suite compiles hundreds of programs with tiny tensors, and runs each a few times. Without LLVM's optimisations a
program compiles in a sixth of the processor time. A test that compares two programs to the bit, where optimisations
could make a difference, passes `OPTIMISED` to `jax.jit` as ``compiler_options``. ``XLA_FLAGS= python -m pytest``
compiles everything with XLA's own optimisations, as `make demo` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

#: No optimisations by LLVM, one LLVM module a program, and loops without the lowering through MLIR.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false"
)

#: The options of `jax.jit` that undo `QUICK`.
OPTIMISED = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}


def printed_on_eight_devices(module: str, *arguments: str, timeout_s: float = 110.0) -> Any:
    """Return what a program prints as JSON, run on 8 virtual devices; their number is fixed when jax starts."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
