"""A peer that is killed in its third batch, with leases in its hands."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from peer.engines import jax_engine
from peer.engines.base import GeneratedRollout, GenerateRequest
from rollcast.cli.main import main

_generate = jax_engine.JaxEngine.generate
_batches = 0


async def generate_or_die(
    self: jax_engine.JaxEngine, requests: Sequence[GenerateRequest]
) -> Sequence[GeneratedRollout]:
    global _batches
    _batches += 1
    if _batches == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return await _generate(self, requests)


if __name__ == "__main__":
    jax_engine.JaxEngine.generate = generate_or_die  # type: ignore[method-assign]
    main()
