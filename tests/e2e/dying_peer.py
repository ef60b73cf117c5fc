"""Run a peer that is killed in its first batch, while it holds leases."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from peer.engines import jax_engine
from peer.engines.base import GenerateRequest
from rollcast.cli.main import main


def die(_self: jax_engine.JaxEngine, _requests: Sequence[GenerateRequest]) -> jax_engine.JaxGeneration:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("dead")


if __name__ == "__main__":
    jax_engine.JaxEngine.begin = die  # type: ignore[method-assign]
    main()
