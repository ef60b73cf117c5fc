"""Run a peer that generates slowly while the file named first exists, which holds the seconds that each slice waits.

It is started in place of the command line.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from peer.engines import jax_engine
from peer.engines.base import CompletionSlice
from rollcast.cli.main import main

_generate = jax_engine.JaxGeneration._generate


def be_slow(wait: Path) -> None:
    def generate_slowly(generation: jax_engine.JaxGeneration, weights: Any, tokens_max: int) -> list[CompletionSlice]:
        with contextlib.suppress(FileNotFoundError):
            time.sleep(float(wait.read_text()))
        return _generate(generation, weights, tokens_max)

    jax_engine.JaxGeneration._generate = generate_slowly  # type: ignore[method-assign]


def slow_down(wait: Path, slice_s: float) -> None:
    """Let the peers that read this file wait so long with each slice from now on."""
    new = wait.with_suffix(".new")
    new.write_text(str(slice_s))
    new.replace(wait)


if __name__ == "__main__":
    be_slow(Path(sys.argv.pop(1)))
    main()
