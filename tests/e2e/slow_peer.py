"""A peer that generates slowly while the file named first exists: started in place of the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from peer.engines import jax_engine
from peer.engines.base import GenerateRequest
from rollcast.cli.main import main

_BATCH_S = 0.3
_begin = jax_engine.JaxEngine.begin


def be_slow(flag: Path) -> None:
    def begin_late(engine: jax_engine.JaxEngine, requests: Sequence[GenerateRequest]) -> jax_engine.JaxGeneration:
        if flag.exists():
            time.sleep(_BATCH_S)
        return _begin(engine, requests)

    jax_engine.JaxEngine.begin = begin_late  # type: ignore[method-assign]


if __name__ == "__main__":
    be_slow(Path(sys.argv.pop(1)))
    main()
