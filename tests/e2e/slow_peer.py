"""A peer that takes half a second longer for each batch, so that it holds leases at almost any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from peer.engines import jax_engine
from peer.engines.base import GeneratedRollout, GenerateRequest
from rollcast.cli.main import main

_generate = jax_engine.JaxEngine.generate


async def generate_slowly(
    self: jax_engine.JaxEngine, requests: Sequence[GenerateRequest]
) -> Sequence[GeneratedRollout]:
    await asyncio.sleep(0.5)
    return await _generate(self, requests)


if __name__ == "__main__":
    jax_engine.JaxEngine.generate = generate_slowly  # type: ignore[method-assign]
    main()
