"""Run a peer that generates slowly while the file named first exists; it is started in place of the command line."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from peer.engines import jax_engine
from peer.engines.base import CompletionSlice
from rollcast.cli.main import main

_SLICE_S = 0.3
_generate = jax_engine.JaxGeneration._generate


def be_slow(flag: Path) -> None:
    def generate_slowly(generation: jax_engine.JaxGeneration, weights: Any, tokens_max: int) -> list[CompletionSlice]:
        if flag.exists():
            time.sleep(_SLICE_S)
        return _generate(generation, weights, tokens_max)

    jax_engine.JaxGeneration._generate = generate_slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    be_slow(Path(sys.argv.pop(1)))
    main()
