"""Set what jax compiles: how exact matrix products are, whether they repeat to the bit, and where programs are kept."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Literal

import jax
from jax.experimental.compilation_cache import compilation_cache

#: How products of float32 matrices are computed. highest: with float32's own precision; high: in TF32 on GPUs and in
#: three passes of bfloat16 on TPUs; default: in TF32 and in one pass.
MatmulPrecision = Literal["highest", "high", "default"]

_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
_GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def use_matmul_precision(precision: MatmulPrecision, carrier_dtype: str) -> None:
    """Set the precision of products of float32 matrices in this process, for a model with this carrier.

    With the carrier bfloat16 nothing asks for more than jax's default: products of bfloat16 numbers are exact, and
    splash refuses to be asked.
    """
    jax.config.update("jax_default_matmul_precision", precision if carrier_dtype == "float32" else "default")


def use_repeatable_operations() -> None:
    """Make GPUs use only operations that give the same bits in every process, and choose none by timing it.

    TPUs and CPUs repeat themselves anyway. Without jax's plugin for GPUs nothing is set, because flags are part of the
    compilation cache's keys. It counts only before the first use of a device, when XLA reads its flags.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    if _DETERMINISTIC not in flags and any(map(importlib.util.find_spec, _GPU_PLUGINS)):
        os.environ["XLA_FLAGS"] = " ".join([*flags, _DETERMINISTIC])


def use_compilation_cache(folder: Path | None) -> None:
    """Keep compiled functions in ``folder`` from now on; None leaves jax's own setting as it is.

    Everything is kept, however quickly it compiled: a small model's functions are many and each counts.
    """
    if folder is None:
        return
    compilation_cache.reset_cache()  # jax opens its cache once and would otherwise keep using the first folder
    jax.config.update("jax_compilation_cache_dir", str(folder.absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
