"""Set up jax's persistent compilation cache, so that the processes of one machine compile each function once."""

from __future__ import annotations

from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache


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
